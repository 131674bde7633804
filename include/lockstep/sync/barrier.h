#pragma once
// The master/worker callback barrier. Every rank of the group posts a message and waits; whoever
// posts last is the call's master and runs the callback once over the messages in rank order, and
// everyone receives its answer. The master waits for nobody, and a rank that has other work may do
// it between posting and waiting: then the answer is there when it comes. The one rule: every rank
// posts the same calls in the same order; a rank that does not is named in the error everyone gets.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/sync/threading.h"

namespace lockstep {

/// The first failure of a run. It is sticky: whatever waits, now or later, throws PeerAborted, so
/// that one failure ends all threads. One object is shared by all that waits for other ranks. Safe
/// from any thread. Outlives its listeners.
class Failure {
 public:
  /// Whoever keeps threads waiting, or has work on a device that must end when the run fails.
  class Listener {
   public:
    /// Called once, by the thread that raises, after `raised` has become true. Raises nothing and
    /// adds no listener.
    virtual void end_waits() = 0;

   protected:
    ~Listener() = default;
  };

  Failure() = default;
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;

  /// Keeps the cause and tells the listeners, the last one added first. Does nothing when there is
  /// a cause already. Returns whether this was the first. A null cause, as std::current_exception()
  /// is outside of a catch block, becomes a ReplicaError that says so.
  bool raise(std::exception_ptr cause);
  bool raised() const { return raised_.load(std::memory_order_acquire); }
  /// Null when none was raised.
  std::exception_ptr cause() const;

  void add(Listener& listener);
  /// Returns when the listener is not called any more.
  void remove(Listener& listener);

 private:
  threading::Atomic<bool> raised_{false};
  mutable threading::Mutex mutex_;
  std::exception_ptr cause_;
  threading::Mutex listeners_mutex_;  // held while they are called
  std::vector<Listener*> listeners_;
};

/// Where every replica is: breadcrumbs that the watchdog and the error messages read. Each rank
/// writes only its own entry; anyone may read.
class Progress {
 public:
  /// Has an entry for each of the ranks [first, first + ranks).
  explicit Progress(int ranks, int first = 0);

  /// Notes that `rank` now does `activity` in `place` (a layer, say); both must outlive the
  /// Progress (string literals, layer names). Cheap; no lock.
  void enter(int rank, const char* activity, const char* place);
  void set_step(int rank, std::int64_t step);

  int ranks() const { return ranks_; }
  /// "replica 2: backward in encoder.1.0.bn, step 812, for 61.0 s".
  std::string describe(int rank) const;

 private:
  struct Entry {
    std::atomic<const char*> activity{"starting"};
    std::atomic<const char*> place{""};
    std::atomic<std::int64_t> step{-1};
    std::atomic<std::int64_t> since_ns{0};
  };

  Entry& entry(int rank) const { return entries_[static_cast<std::size_t>(rank - first_)]; }

  const int ranks_, first_;
  std::unique_ptr<Entry[]> entries_;
};

struct StatSlot;

enum class Direction : std::uint8_t { kForward, kBackward, kOther };

const char* to_string(Direction direction);

/// Merges slots, in their order, into `merged` [2, channels] and returns the number of rows behind
/// it (backend/moments.h).
using MergeSlots = std::int64_t (*)(std::span<const StatSlot> slots, std::int64_t channels,
                                    float* merged);

/// Identifies one exchange within a step. All ranks of a group must agree on all of it.
struct SyncCall {
  const char* layer = "";  // name of the layer; must outlive the call
  Direction direction = Direction::kOther;
  int index = 0;              // of the call within the step and direction
  std::int64_t channels = 0;  // payload extent; 0: a meeting within this process
  int partition = 0;          // whose process groups exchange (Communicator::join); 0: all ranks
  /// How an exchange of statistics merges the slots; null: they stay apart. Where they lie on the
  /// host the barrier's callback merges them, once for all ranks; elsewhere every rank gets all
  /// slots and merges them on its device, to the same bits.
  MergeSlots merge = nullptr;
};

/// How the ranks of a barrier wait for each other, whatever their messages are: see Barrier. Safe
/// from any thread; each rank has one thread.
class AnyBarrier : private Failure::Listener {
 public:
  AnyBarrier(const AnyBarrier&) = delete;
  AnyBarrier& operator=(const AnyBarrier&) = delete;
  /// REQUIRES: nobody waits here any more.
  virtual ~AnyBarrier();

  /// How long the longest-waiting rank of the present exchange has waited, and a report of who
  /// waits, in which call, since when, and who is missing.
  struct Wait {
    threading::Clock::duration longest;
    std::string report;
  };
  /// Returns nullopt when nobody waits.
  std::optional<Wait> waiting() const;

 protected:
  AnyBarrier(std::vector<int> ranks, Failure& failure, const Progress* progress,
             std::chrono::microseconds spin);

  /// The rank's message is stored between the first two.
  std::unique_lock<threading::Mutex> open_post(int place, const SyncCall& call);
  void close_post(std::unique_lock<threading::Mutex> lock);
  void wait_for_answer(int place);

 private:
  struct Slot {
    SyncCall call;
    bool posted = false;
    bool owed = false;             // whether the rank has posted and has no answer yet
    std::uint64_t generation = 0;  // at the end of which the answer is there
    threading::Clock::time_point since;
  };

  /// Runs the callback, on the thread of the rank that posts last and without the mutex.
  virtual void answer(const SyncCall& call) = 0;

  int size() const { return static_cast<int>(slots_.size()); }
  void end_waits() override;
  void check_place(int place) const;
  template <typename Done>
  void look_for(const Done& done, std::unique_lock<threading::Mutex>& lock) const;
  void run_callback(std::unique_lock<threading::Mutex>& lock);
  void check_agreement() const;
  [[noreturn]] void throw_disagreement() const;
  [[noreturn]] void throw_aborted(int place) const;
  std::string report(threading::Clock::time_point now) const;

  const std::vector<int> ranks_;  // [place]
  Failure& failure_;
  const Progress* const progress_;
  const std::chrono::microseconds spin_;

  // Each rank is woken once, with its answer: with more replicas than cores every needless wake-up
  // is paid by someone's computation.
  mutable threading::Mutex mutex_;
  threading::Condition answered_;
  std::vector<Slot> slots_;  // [place]
  // Written under the mutex; a rank that spins reads them without it.
  threading::Atomic<int> posted_{0};
  threading::Atomic<std::uint64_t> generation_{0};
  bool running_ = false;      // the callback reads messages: nobody may leave, not even after abort
  bool failed_here_ = false;  // the failure is this exchange's own
};

/// A callback barrier for messages of one type and answers of another. What a message points to
/// must stay valid until the rank's answer has come; where a rank may fail between `post` and
/// `await`, until the threads of all ranks have been joined. What an answer points to the callback
/// owns, and may use again when it runs for the next time: by then every rank has posted again, and
/// so is done with it.
template <typename Message, typename Answer>
class Barrier final : public AnyBarrier {
 public:
  /// Runs on the thread of the rank that posts last and fills `answers`, which are in the order of
  /// the ranks, as `messages` are. Every rank gets what it throws.
  using Callback = std::function<void(const SyncCall& call, std::span<const Message> messages,
                                      std::span<Answer> answers)>;

  /// `ranks`: who meets here, in their order. `failure` and `progress` outlive the object; the
  /// latter may be null. `spin`: how long a rank that waits keeps looking before it sleeps; of use
  /// where every rank has a core of its own. SyncGroup::make_barrier makes one for a whole group.
  Barrier(std::vector<int> ranks, Callback callback, Failure& failure,
          const Progress* progress = nullptr, std::chrono::microseconds spin = {})
      : AnyBarrier(ranks, failure, progress, spin),
        callback_(std::move(callback)),
        messages_(ranks.size()),
        answers_(ranks.size()) {}

  /// Posts the message and waits for the answer: `post`, then `await`.
  Answer exchange(int place, const SyncCall& call, const Message& message = {}) {
    post(place, call, message);
    return await(place);
  }

  /// Runs the callback where all others have posted. `place`: the rank's index among those who
  /// meet here. Throws PeerAborted after a failure.
  void post(int place, const SyncCall& call, const Message& message = {}) {
    auto lock = open_post(place, call);
    messages_[static_cast<std::size_t>(place)] = message;
    close_post(std::move(lock));
  }
  /// Waits for the answer to what the rank has posted last, and returns it once. Throws Error where
  /// the rank has posted nothing since its last answer; ReplicaError naming replica, layer and call
  /// if the ranks disagree, or the callback's exception: either is raised as the failure. Throws
  /// PeerAborted after any other failure.
  Answer await(int place) {
    wait_for_answer(place);
    return answers_[static_cast<std::size_t>(place)];
  }

 private:
  void answer(const SyncCall& call) override { callback_(call, messages_, answers_); }

  const Callback callback_;
  std::vector<Message> messages_;  // [place]
  std::vector<Answer> answers_;    // [place]
};

}  // namespace lockstep
