#include "lockstep/sync/sync_master.h"

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/sync/describe.h"

namespace lockstep {
namespace {

/// Leaves the core to its other thread for a moment.
void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

const char* to_string(Direction direction) {
  switch (direction) {
    case Direction::kForward:
      return "forward";
    case Direction::kBackward:
      return "backward";
    case Direction::kOther:
      return "other";
  }
  return "?";
}

SyncMaster::SyncMaster(int ranks, Callback callback, Progress* progress, int rank_offset,
                       std::chrono::microseconds spin)
    : callback_(std::move(callback)),
      progress_(progress),
      rank_offset_(rank_offset),
      spin_(spin),
      slots_(static_cast<std::size_t>(ranks)),
      messages_(slots_.size()),
      answers_(slots_.size()) {
  LOCKSTEP_CHECK(ranks > 0, "a barrier needs at least one replica, got ", ranks);
}

SyncAnswer SyncMaster::exchange(int rank, const SyncMessage& message) {
  std::unique_lock lock(mutex_);
  if (failure_) throw_aborted(rank);
  post(rank, message);
  rank == 0 ? wait_as_master(lock) : wait_as_worker(lock);
  if (failed_here_) std::rethrow_exception(failure_);
  if (failure_) throw_aborted(rank);
  return answers_[rank];
}

void SyncMaster::post(int rank, const SyncMessage& message) {
  LOCKSTEP_CHECK(rank >= 0 && rank < size() && !slots_[rank].posted, "replica ",
                 rank_offset_ + rank, " posts twice, or is not one of the ", size(),
                 " replicas of this barrier");
  slots_[rank] = {message, true, std::chrono::steady_clock::now()};
  ++posted_;
}

// Without `spin_` waits sleep at once. Yielding first looks cheaper while nothing else runs, but
// behind any other busy thread (one that decodes images, say) a rank that yields comes back
// milliseconds later than one that is woken.
template <typename Done>
void SyncMaster::look_for(const Done& done, std::unique_lock<std::mutex>& lock) const {
  if (spin_.count() == 0 || done()) return;
  lock.unlock();
  const auto end = std::chrono::steady_clock::now() + spin_;
  do {
    for (int i = 0; i < 16 && !done(); ++i) pause_processor();
  } while (!done() && std::chrono::steady_clock::now() < end);
  lock.lock();
}

void SyncMaster::wait_as_master(std::unique_lock<std::mutex>& lock) {
  look_for([&] { return posted_ == size() || failed_; }, lock);
  all_posted_.wait(lock, [&] { return posted_ == size() || failure_; });
  if (failure_) return;
  run_callback(lock);
  lock.unlock();
  answered_.notify_all();
  lock.lock();
}

void SyncMaster::wait_as_worker(std::unique_lock<std::mutex>& lock) {
  const std::uint64_t mine = generation_;
  if (posted_ == size()) {
    // Notified without the lock: the master would wake only to wait for it.
    lock.unlock();
    all_posted_.notify_one();
    lock.lock();
  }
  look_for([&] { return generation_ != mine || failed_; }, lock);
  answered_.wait(lock, [&] { return generation_ != mine || (failure_ && !running_); });
}

void SyncMaster::run_callback(std::unique_lock<std::mutex>& lock) {
  running_ = true;
  lock.unlock();
  std::exception_ptr failure;
  try {
    check_agreement();
    std::transform(slots_.begin(), slots_.end(), messages_.begin(),
                   [](const Slot& slot) { return slot.message; });
    callback_(messages_, answers_);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  running_ = false;
  if (failure_) return;
  if (failure) {
    failure_ = failure;
    failed_ = true;
    failed_here_ = true;
    return;
  }
  for (Slot& slot : slots_) slot.posted = false;
  posted_ = 0;
  ++generation_;
  ++callbacks_;
}

void SyncMaster::check_agreement() const {
  const SyncCall& first = slots_.front().message.call;
  for (const Slot& slot : slots_) {
    if (!same_call(slot.message.call, first)) throw_disagreement();
  }
}

void SyncMaster::throw_disagreement() const {
  // What most ranks do is taken for right, so that the message names the one that went astray.
  const auto votes = [&](const Slot& slot) {
    return std::count_if(slots_.begin(), slots_.end(), [&](const Slot& other) {
      return same_call(slot.message.call, other.message.call);
    });
  };
  const auto usual =
      std::max_element(slots_.begin(), slots_.end(),
                       [&](const Slot& a, const Slot& b) { return votes(a) < votes(b); });
  std::vector<int> agreeing;
  int astray = -1;
  for (int rank = 0; rank < size(); ++rank) {
    if (same_call(slots_[rank].message.call, usual->message.call)) {
      agreeing.push_back(rank_offset_ + rank);
    } else if (astray < 0) {
      astray = rank;
    }
  }
  throw ReplicaError(
      concat("replica ", rank_offset_ + astray, " is at ", describe(slots_[astray].message.call),
             " while ", describe_ranks(agreeing), agreeing.size() == 1 ? " is at " : " are at ",
             describe(usual->message.call),
             ": every replica must make the same BatchNorm calls in the same order"));
}

void SyncMaster::throw_aborted(int rank) const {
  throw PeerAborted(concat("replica ", rank_offset_ + rank,
                           " leaves the exchange, because of: ", describe(failure_)));
}

void SyncMaster::abort(std::exception_ptr cause) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(cause);
    failed_ = true;
  }
  all_posted_.notify_all();
  answered_.notify_all();
}

std::optional<SyncMaster::Wait> SyncMaster::waiting() const {
  const std::lock_guard lock(mutex_);
  if (posted_ == 0 || failure_) return std::nullopt;
  const auto now = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration longest{};
  for (const Slot& slot : slots_) {
    if (slot.posted) longest = std::max(longest, now - slot.since);
  }
  return Wait{longest, report(now)};
}

std::string SyncMaster::report(std::chrono::steady_clock::time_point now) const {
  std::string text;
  std::vector<int> missing;
  for (int rank = 0; rank < size(); ++rank) {
    const Slot& slot = slots_[rank];
    if (!slot.posted) {
      missing.push_back(rank_offset_ + rank);
      continue;
    }
    const std::chrono::duration<double> waited = now - slot.since;
    text += concat("replica ", rank_offset_ + rank, " has waited ",
                   describe_seconds(waited.count()), " in ", describe(slot.message.call), "; ");
  }
  if (missing.empty()) return text + "all are there and the callback runs";
  text += describe_ranks(missing) + (missing.size() == 1 ? " is missing" : " are missing");
  if (progress_ == nullptr) return text;
  for (const int rank : missing) text += "; last seen: " + progress_->describe(rank);
  return text;
}

std::int64_t SyncMaster::callbacks() const {
  const std::lock_guard lock(mutex_);
  return callbacks_;
}

}  // namespace lockstep
