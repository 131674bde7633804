#include "lockstep/sync/barrier.h"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/sync/threading.h"
#include "sync/describe.h"

namespace lockstep {
namespace {

/// Leaves the core to its other thread for a moment.
void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             threading::Clock::now().time_since_epoch())
      .count();
}

}  // namespace

// --- Failure ---

bool Failure::raise(std::exception_ptr cause) {
  if (!cause) {
    cause = std::make_exception_ptr(ReplicaError(
        "a replica failed and gave no cause (a null exception_ptr: std::current_exception() is "
        "null outside of a catch block)"));
  }
  {
    const std::lock_guard lock(mutex_);
    if (cause_) return false;
    cause_ = std::move(cause);
    raised_.store(true, std::memory_order_release);
  }
  const std::lock_guard lock(listeners_mutex_);
  std::for_each(listeners_.rbegin(), listeners_.rend(),
                [](Listener* listener) { listener->end_waits(); });
  return true;
}

std::exception_ptr Failure::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

void Failure::add(Listener& listener) {
  const std::lock_guard lock(listeners_mutex_);
  listeners_.push_back(&listener);
}

void Failure::remove(Listener& listener) {
  const std::lock_guard lock(listeners_mutex_);
  listeners_.erase(std::find(listeners_.begin(), listeners_.end(), &listener));
}

// --- Progress ---

Progress::Progress(int ranks, int first)
    : ranks_(ranks), first_(first), entries_(std::make_unique<Entry[]>(ranks)) {
  for (int i = 0; i < ranks; ++i) entries_[i].since_ns = now_ns();
}

void Progress::enter(int rank, const char* activity, const char* place) {
  Entry& own = entry(rank);
  own.activity.store(activity, std::memory_order_relaxed);
  own.place.store(place, std::memory_order_relaxed);
  own.since_ns.store(now_ns(), std::memory_order_relaxed);
}

void Progress::set_step(int rank, std::int64_t step) {
  entry(rank).step.store(step, std::memory_order_relaxed);
}

std::string Progress::describe(int rank) const {
  const Entry& of = entry(rank);
  const std::string_view place = of.place.load(std::memory_order_relaxed);
  const std::int64_t step = of.step.load(std::memory_order_relaxed);
  const std::int64_t since = of.since_ns.load(std::memory_order_relaxed);
  std::string text = concat("replica ", rank, ": ", of.activity.load(std::memory_order_relaxed));
  if (!place.empty()) text += concat(" in ", place);
  if (step >= 0) text += concat(", step ", step);
  return text + ", for " + describe_seconds(static_cast<double>(now_ns() - since) * 1e-9);
}

// --- Barrier ---

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

AnyBarrier::AnyBarrier(std::vector<int> ranks, Failure& failure, const Progress* progress,
                       std::chrono::microseconds spin)
    : ranks_(std::move(ranks)),
      failure_(failure),
      progress_(progress),
      spin_(spin),
      slots_(ranks_.size()) {
  LOCKSTEP_CHECK(!ranks_.empty(), "a barrier needs at least one replica");
  failure_.add(*this);
}

AnyBarrier::~AnyBarrier() { failure_.remove(*this); }

void AnyBarrier::check_place(int place) const {
  LOCKSTEP_CHECK(place >= 0 && place < size(), "place ", place, " is none of the ", size(),
                 " of this barrier");
}

std::unique_lock<threading::Mutex> AnyBarrier::open_post(int place, const SyncCall& call) {
  check_place(place);
  std::unique_lock lock(mutex_);
  if (failure_.raised()) throw_aborted(place);
  LOCKSTEP_CHECK(!slots_[place].posted, "replica ", ranks_[place], " posts twice");
  slots_[place] = {call, true, true, generation_, threading::Clock::now()};
  return lock;
}

void AnyBarrier::close_post(std::unique_lock<threading::Mutex> lock) {
  if (++posted_ < size()) return;
  run_callback(lock);
  lock.unlock();  // the others would wake only to wait for it
  answered_.notify_all();
}

void AnyBarrier::wait_for_answer(int place) {
  check_place(place);
  std::unique_lock lock(mutex_);
  LOCKSTEP_CHECK(slots_[place].owed || failure_.raised(), "replica ", ranks_[place],
                 " awaits an answer and has posted nothing: every await follows a post");
  const std::uint64_t mine = slots_[place].generation;
  look_for([&] { return generation_ != mine || failure_.raised(); }, lock);
  answered_.wait(lock, [&] { return generation_ != mine || (failure_.raised() && !running_); });
  if (failed_here_) std::rethrow_exception(failure_.cause());
  if (failure_.raised()) throw_aborted(place);
  slots_[place].owed = false;
}

// Without `spin_` waits sleep at once. Yielding first looks cheaper while nothing else runs, but
// behind any other busy thread (one that decodes images, say) a rank that yields comes back
// milliseconds later than one that is woken.
template <typename Done>
void AnyBarrier::look_for(const Done& done, std::unique_lock<threading::Mutex>& lock) const {
  if (spin_.count() == 0 || done()) return;
  lock.unlock();
  const auto end = threading::Clock::now() + spin_;
  do {
    for (int i = 0; i < 16 && !done(); ++i) pause_processor();
  } while (!done() && threading::Clock::now() < end);
  lock.lock();
}

void AnyBarrier::run_callback(std::unique_lock<threading::Mutex>& lock) {
  running_ = true;
  lock.unlock();
  bool failed_here = false;
  try {
    check_agreement();
    answer(slots_.front().call);
  } catch (...) {
    failed_here = failure_.raise(std::current_exception());
  }
  lock.lock();
  running_ = false;
  failed_here_ = failed_here;
  if (failure_.raised()) return;
  for (Slot& slot : slots_) slot.posted = false;
  posted_ = 0;
  ++generation_;
}

void AnyBarrier::check_agreement() const {
  const SyncCall& first = slots_.front().call;
  for (const Slot& slot : slots_) {
    if (!same_call(slot.call, first)) throw_disagreement();
  }
}

void AnyBarrier::throw_disagreement() const {
  // What most ranks do is taken for right, so that the message names the one that went astray.
  const auto votes = [&](const Slot& slot) {
    return std::count_if(slots_.begin(), slots_.end(),
                         [&](const Slot& other) { return same_call(slot.call, other.call); });
  };
  const auto usual =
      std::max_element(slots_.begin(), slots_.end(),
                       [&](const Slot& a, const Slot& b) { return votes(a) < votes(b); });
  std::vector<int> agreeing;
  std::string astray;
  for (int place = 0; place < size(); ++place) {
    if (same_call(slots_[place].call, usual->call)) {
      agreeing.push_back(ranks_[place]);
      continue;
    }
    astray += concat(astray.empty() ? "replica " : ", replica ", ranks_[place], " is at ",
                     describe(slots_[place].call));
  }
  const bool of_users = std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.call.direction == Direction::kOther;
  });
  throw ReplicaError(concat(astray, " while ", describe_ranks(agreeing),
                            agreeing.size() == 1 ? " is at " : " are at ", describe(usual->call),
                            ": every replica must make the same ",
                            of_users ? "calls" : "BatchNorm calls", " in the same order"));
}

void AnyBarrier::throw_aborted(int place) const {
  throw PeerAborted(concat("replica ", ranks_[place],
                           " leaves the exchange, because of: ", describe(failure_.cause())));
}

// Nobody is between a look at the failure and the sleep that follows: both are under the mutex.
void AnyBarrier::end_waits() {
  { const std::lock_guard lock(mutex_); }
  answered_.notify_all();
}

std::optional<AnyBarrier::Wait> AnyBarrier::waiting() const {
  const std::lock_guard lock(mutex_);
  if (posted_ == 0 || failure_.raised()) return std::nullopt;
  const auto now = threading::Clock::now();
  threading::Clock::duration longest{};
  for (const Slot& slot : slots_) {
    if (slot.posted) longest = std::max(longest, now - slot.since);
  }
  return Wait{longest, report(now)};
}

std::string AnyBarrier::report(threading::Clock::time_point now) const {
  std::string text;
  std::vector<int> missing;
  for (int place = 0; place < size(); ++place) {
    const Slot& slot = slots_[place];
    if (!slot.posted) {
      missing.push_back(ranks_[place]);
      continue;
    }
    const std::chrono::duration<double> waited = now - slot.since;
    text += concat("replica ", ranks_[place], " has waited ", describe_seconds(waited.count()),
                   " in ", describe(slot.call), "; ");
  }
  if (missing.empty()) return text + "all are there and the callback runs";
  text += describe_ranks(missing) + (missing.size() == 1 ? " is missing" : " are missing");
  if (progress_ == nullptr) return text;
  for (const int rank : missing) text += "; last seen: " + progress_->describe(rank);
  return text;
}

}  // namespace lockstep
