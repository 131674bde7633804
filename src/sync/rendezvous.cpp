#include "sync/rendezvous.h"

#include <algorithm>
#include <thread>

#include "lockstep/core/check.h"
#include "lockstep/sync/describe.h"

namespace lockstep {
namespace {

/// Adds the life time of the object, in seconds, to a total.
class WaitTimer {
 public:
  explicit WaitTimer(double& total) : total_(total) {}
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;
  ~WaitTimer() {
    total_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  double& total_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// About what it costs to fall asleep and be woken: whoever waits longer than that loses at most as
// much again.
constexpr std::chrono::microseconds kSpin{50};

/// How long a rank looks for the others before it sleeps. The threads of GPUs do little but issue
/// work, and one that is woken comes tens of microseconds late. Virtual devices on the CPU compute:
/// the core of a rank that looks is missing to the one that it waits for.
std::chrono::microseconds spin_of(std::span<const Device> devices) {
  const bool gpus = devices.front().kind == DeviceKind::kCuda;
  const bool room = devices.size() <= std::thread::hardware_concurrency();
  return gpus && room ? kSpin : std::chrono::microseconds{0};
}

}  // namespace

/// Calls before_wait, and after_wait at the end of its life.
class RendezvousEnd::Waiting {
 public:
  explicit Waiting(RendezvousEnd& end) : end_(end) { end_.before_wait(); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() { end_.after_wait(); }

 private:
  RendezvousEnd& end_;
};

int RendezvousEnd::size() const { return group_.size(); }

AllReduce* RendezvousEnd::all_reduce() const { return group_.all_reduce(rank_); }

void RendezvousEnd::attach(Backend& backend) {
  AllReduce* const sums = all_reduce();
  if (sums == nullptr) return;
  meet_all("the set-up of the all-reduce");
  sums->attach(backend);
}

bool RendezvousEnd::hook_allows(const SyncCall& call) const {
  const auto& hook = group_.options().hook;
  return !hook || hook(rank_, call);
}

SyncAnswer RendezvousEnd::meet(const SyncMessage& message) {
  const Waiting waiting(*this);
  const WaitTimer timer(message.call.direction == Direction::kOther ? barrier_wait_
                                                                    : exchange_wait_);
  return group_.exchange(rank_, message);
}

std::span<const StatSlot> RendezvousEnd::exchange(const SyncCall& call, const StatSlot& local) {
  enter(to_string(call.direction), call.layer);
  turn_ = 1 - turn_;
  own_[turn_] = local;
  std::span<const StatSlot> slots(&own_[turn_], 1);
  if (hook_allows(call)) slots = exchange_in_group(call, local);
  last_count_ = 0;
  for (const StatSlot& slot : slots) last_count_ += slot.count;
  return slots;
}

void RendezvousEnd::barrier(const char* where) {
  enter("barrier", where);
  if (!hook_allows({where, Direction::kOther, 0, 0})) return;
  before_barrier();
  meet_all(where);
  after_barrier();
}

// Through the callback barrier: a rank that left out its last BatchNorm call of a step meets the
// others' call here and is named at once, where a plain barrier would leave both sides waiting.
void RendezvousEnd::meet_all(const SyncCall& call) {
  meet({call, 0, nullptr});
  const Waiting waiting(*this);
  const WaitTimer timer(barrier_wait_);
  group_.wait_for_all_groups(rank_);
}

// The meeting comes first, so that no rank starts a sum that the others do not.
void RendezvousEnd::start_all_reduce(float* data, std::int64_t count) {
  LOCKSTEP_CHECK(all_reduce() != nullptr,
                 "this run has no all-reduce; make its communicators with all_reduce = true");
  LOCKSTEP_CHECK(count > 0, "expected an all-reduce of at least 1 value, got ", count);
  const WaitTimer timer(all_reduce_seconds_);
  const SyncCall call{"gradients", Direction::kOther, all_reduces_++, count};
  enter("all-reduce", call.layer);
  if (!hook_allows(call)) return;
  meet_all(call);
  all_reduce()->start(data, count);
}

void RendezvousEnd::finish_all_reduces() {
  all_reduces_ = 0;
  if (AllReduce* const sums = all_reduce()) sums->finish();
}

void RendezvousEnd::enter(const char* activity, const char* place) {
  group_.progress().enter(rank_, activity, place);
}

RendezvousGroup::RendezvousGroup(std::span<const Device> devices,
                                 const CommunicatorOptions& options,
                                 const MakeCallback& make_callback, const MakeEnd& make_end)
    : ranks_(static_cast<int>(devices.size())),
      options_(options),
      progress_(ranks_),
      masters_([&] {
        const int width = options.sync_group == 0 ? ranks_ : options.sync_group;
        std::vector<std::unique_ptr<SyncMaster>> masters;
        for (int first = 0; first < ranks_; first += width) {
          masters.push_back(std::make_unique<SyncMaster>(width, make_callback(first, width),
                                                         &progress_, first, spin_of(devices)));
        }
        return masters;
      }()),
      all_ranks_(ranks_),
      all_reduces_(options.all_reduce ? make_all_reduces(devices) : AllReduces()),
      ends_([&] {
        std::vector<std::unique_ptr<RendezvousEnd>> ends;
        for (int rank = 0; rank < ranks_; ++rank) ends.push_back(make_end(*this, rank));
        return ends;
      }()),
      watchdog_(
          options.stall_timeout, [this] { return longest_wait(); },
          [this](std::exception_ptr stall) { abort(std::move(stall)); }) {}

SyncAnswer RendezvousGroup::exchange(int rank, const SyncMessage& message) {
  try {
    return masters_[rank / ranks_per_group()]->exchange(rank % ranks_per_group(), message);
  } catch (const PeerAborted&) {
    throw;
  } catch (...) {
    // The failure of one sync group must also end the waits of the others.
    abort(std::current_exception());
    throw;
  }
}

void RendezvousGroup::wait_for_all_groups(int rank) {
  if (masters_.size() > 1) all_ranks_.arrive_and_wait(rank);
}

void RendezvousGroup::abort(std::exception_ptr cause) {
  bool first = false;
  {
    const std::lock_guard lock(failure_mutex_);
    first = !failure_;
    if (first) failure_ = cause;
  }
  for (const auto& master : masters_) master->abort(cause);
  all_ranks_.abort(cause);
  if (!first) return;
  for (const auto& sums : all_reduces_) sums->abort(cause);
  for (const auto& end : ends_) end->abort();
}

std::exception_ptr RendezvousGroup::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

std::optional<SyncMaster::Wait> RendezvousGroup::longest_wait() const {
  std::optional<SyncMaster::Wait> all;
  const auto add = [&](std::chrono::steady_clock::duration longest, const std::string& report) {
    if (!all) {
      all = {longest, report};
      return;
    }
    all->longest = std::max(all->longest, longest);
    all->report += "; " + report;
  };
  for (const auto& master : masters_) {
    if (const auto wait = master->waiting()) add(wait->longest, wait->report);
  }
  if (const auto wait = all_ranks_.waiting()) {
    const double seconds = std::chrono::duration<double>(wait->longest).count();
    add(wait->longest, concat(describe_ranks(wait->waiting), " waited up to ",
                              describe_seconds(seconds), " for the other sync groups"));
  }
  return all;
}

}  // namespace lockstep
