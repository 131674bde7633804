#include "step/replica_group.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/start_thread.h"
#include "lockstep/core/check.h"
#include "lockstep/parallel/data_parallel.h"
#include "sync/describe.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kPatience{1};     // for a rank to return after an abort
constexpr std::chrono::milliseconds kLook{250};  // from one look for a stall to the next

std::atomic<bool> left_behind{false};

std::string prefix(const std::exception_ptr& cause, std::span<const std::exception_ptr> thrown,
                   const RankLayout& layout) {
  int throwers = 0;
  std::size_t thrower = 0;
  for (std::size_t rank = 0; rank < thrown.size(); ++rank) {
    if (!thrown[rank] || (thrown[rank] != cause && describe(thrown[rank]) != describe(cause))) {
      continue;
    }
    thrower = rank;
    ++throwers;
  }
  if (throwers != 1) return "";
  return layout.describe_rank(layout.first_rank() + static_cast<int>(thrower)) + ": ";
}

/// The error to report for the first failure `cause` of a group; `thrown`: by this process's ranks.
/// When one rank alone threw it, its text is preceded by "replica 2 (cpu:2): "; when several did (a
/// mismatch all learn of) or none (the watchdog), the text names the replicas itself and stays as
/// it is. `remark` is added at the end.
std::exception_ptr attribute_failure(const std::exception_ptr& cause,
                                     std::span<const std::exception_ptr> thrown,
                                     const RankLayout& layout, const std::string& remark) {
  return with_text(cause, prefix(cause, thrown, layout) + describe(cause) + remark);
}

}  // namespace

// Shared with the threads: one that is stuck may come back after the group is gone.
struct ReplicaGroup::Impl {
  Impl(std::span<const Device> ranks, SyncGroup& ends)
      : devices(ranks.begin(), ranks.end()),
        group(ends),
        returned(devices.size(), true),
        thrown(devices.size()) {}

  int size() const { return static_cast<int>(devices.size()); }
  int first() const { return group.rank_layout().first_rank(); }
  void serve(int rank);
  void end_threads();
  void start(const std::function<void(int)>& all, bool may_fail);
  void note_failure(int rank, std::exception_ptr failure);
  bool has_stalled() const;
  bool wait_for_all(std::unique_lock<std::mutex>& lock);
  void end(std::unique_lock<std::mutex>& lock);
  void forget_failure();
  std::exception_ptr root_cause() const;

  const std::vector<Device> devices;
  SyncGroup& group;

  std::mutex mutex;
  std::condition_variable work_given;
  std::condition_variable rank_returned;
  std::function<void(int)> work;
  std::uint64_t generation = 0;  // of the work
  bool stop = false;
  int running = 0;
  std::vector<bool> returned;              // [rank] of the present work
  std::vector<std::exception_ptr> thrown;  // [rank]
  bool recoverable = false;                // the present work
  std::exception_ptr first_thrown;
  std::optional<std::chrono::steady_clock::time_point> failed_at;
  std::exception_ptr failure;  // what every further run throws
  std::vector<std::thread> threads;
};

void ReplicaGroup::Impl::serve(int rank) {
  std::unique_lock lock(mutex);
  for (std::uint64_t seen = 0;;) {
    work_given.wait(lock, [&] { return stop || generation != seen; });
    if (stop) return;
    seen = generation;
    lock.unlock();
    std::exception_ptr failure_here;
    try {
      work(first() + rank);
    } catch (...) {
      failure_here = std::current_exception();
    }
    lock.lock();
    if (failure_here) note_failure(rank, failure_here);
    returned[rank] = true;
    if (--running == 0 || failure_here) rank_returned.notify_all();
  }
}

void ReplicaGroup::Impl::note_failure(int rank, std::exception_ptr failure_here) {
  thrown[rank] = failure_here;
  if (failed_at) return;
  failed_at = std::chrono::steady_clock::now();
  first_thrown = failure_here;
  if (recoverable) return;
  // Under the mutex: `run` cannot return, and the sync group cannot go, before this is done.
  group.abort(failure_here);
}

// The watchdog's word. Ranks that wait for a device do not hear of it, and may be all that there
// are.
bool ReplicaGroup::Impl::has_stalled() const {
  const std::exception_ptr cause = group.failure();
  if (!cause) return false;
  try {
    std::rethrow_exception(cause);
  } catch (const StalledError&) {
    return true;
  } catch (...) {
    return false;
  }
}

bool ReplicaGroup::Impl::wait_for_all(std::unique_lock<std::mutex>& lock) {
  const auto all_returned = [this] { return running == 0; };
  while (!rank_returned.wait_for(lock, kLook, [&] { return all_returned() || failed_at; })) {
    if (has_stalled()) failed_at = std::chrono::steady_clock::now();
  }
  if (!failed_at) return true;
  return rank_returned.wait_until(lock, *failed_at + kPatience, all_returned);
}

std::exception_ptr ReplicaGroup::Impl::root_cause() const {
  std::string stuck;
  for (int rank = 0; rank < size(); ++rank) {
    if (returned[rank]) continue;
    stuck += concat("; ", group.rank_layout().describe_rank(first() + rank),
                    " does not return and is left behind (",
                    group.progress().describe(first() + rank), ")");
  }
  return attribute_failure(group.failure(), thrown, group.rank_layout(), stuck);
}

ReplicaGroup::ReplicaGroup(std::span<const Device> devices, SyncGroup& group)
    : impl_(std::make_shared<Impl>(devices, group)) {
  LOCKSTEP_CHECK(!devices.empty(), "expected at least one device");
  try {
    for (int rank = 0; rank < size(); ++rank) {
      impl_->threads.push_back(start_thread<std::thread>(
          "for a replica", [state = impl_, rank] { state->serve(rank); }));
    }
  } catch (...) {
    impl_->end_threads();
    throw;
  }
}

ReplicaGroup::~ReplicaGroup() { impl_->end_threads(); }

void ReplicaGroup::Impl::end_threads() {
  std::unique_lock lock(mutex);
  stop = true;
  const std::vector<bool> idle = returned;
  lock.unlock();
  work_given.notify_all();
  for (std::size_t rank = 0; rank < threads.size(); ++rank) {
    idle[rank] ? threads[rank].join() : threads[rank].detach();
  }
}

int ReplicaGroup::size() const { return impl_->size(); }

void ReplicaGroup::Impl::start(const std::function<void(int)>& all, bool may_fail) {
  {
    const std::lock_guard lock(mutex);
    if (failure) std::rethrow_exception(failure);
    work = all;
    recoverable = may_fail;
    running = size();
    returned.assign(returned.size(), false);
    ++generation;
  }
  work_given.notify_all();
}

// For good.
void ReplicaGroup::Impl::end(std::unique_lock<std::mutex>& lock) {
  if (!wait_for_all(lock)) left_behind = true;
  if (!failed_at) return;
  failure = root_cause();
  std::rethrow_exception(failure);
}

void ReplicaGroup::Impl::forget_failure() {
  first_thrown = nullptr;
  failed_at.reset();
  thrown.assign(thrown.size(), nullptr);
}

void ReplicaGroup::run(const std::function<void(int rank)>& work) {
  impl_->start(work, false);
  std::unique_lock lock(impl_->mutex);
  impl_->end(lock);
}

void ReplicaGroup::attempt(const std::function<void(int rank)>& work) {
  Impl& state = *impl_;
  state.start(work, true);
  std::unique_lock lock(state.mutex);
  const bool all_returned = state.wait_for_all(lock);
  if (!state.failed_at) return;
  if (all_returned && !state.group.failure()) {
    const std::exception_ptr cause =
        attribute_failure(state.first_thrown, state.thrown, state.group.rank_layout(), "");
    state.forget_failure();
    std::rethrow_exception(cause);
  }
  state.group.abort(state.first_thrown);
  state.failed_at = std::chrono::steady_clock::now();
  state.end(lock);
}

bool ReplicaGroup::has_failed() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->failure != nullptr;
}

bool threads_left_behind() { return left_behind; }

bool ReplicaGroup::has_stuck_thread() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->running > 0;
}

}  // namespace lockstep
