#pragma once
// The master/worker callback barrier. Every rank of the group posts a message and waits; whoever
// posts last is the call's master and runs the callback once over the messages in rank order, and
// everyone receives its answer. The master waits for nobody, and a rank that has other work may do
// it between posting and waiting: then the answer is there when it comes. The one rule: every rank
// posts the same calls in the same order; a rank that does not is named in the error everyone gets.

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/sync/failure.h"
#include "lockstep/sync/progress.h"
#include "lockstep/sync/threading.h"

namespace lockstep {

enum class Direction : std::uint8_t { kForward, kBackward, kOther };

const char* to_string(Direction direction);

/// Identifies one exchange within a step. All ranks of a group must agree on all of it.
struct SyncCall {
  const char* layer = "";  // name of the layer; must outlive the call
  Direction direction = Direction::kOther;
  int index = 0;              // of the call within the step and direction
  std::int64_t channels = 0;  // payload extent; 0: a meeting within this process
  int partition = 0;          // whose process groups exchange (Communicator::join); 0: all ranks
};

/// What a rank hands in. The payload must stay valid until the rank's answer has come; where a rank
/// may fail between `post` and `await`, until the threads of all ranks have been joined.
struct SyncMessage {
  SyncCall call;
  std::int64_t count = 0;
  const void* payload = nullptr;
};

/// What a rank gets back. The callback owns the memory behind it, and may use it again when it runs
/// for the next time: by then every rank has posted again, and so is done with this answer.
struct SyncAnswer {
  std::int64_t count = 0;
  const void* payload = nullptr;
};

/// Safe from any thread; each rank has one thread.
class SyncMaster final : private Failure::Listener {
 public:
  /// Runs on the thread of the rank that posts last: `messages` and `answers`, which it fills, in
  /// the order of the ranks. What it throws, every rank gets.
  using Callback =
      std::function<void(std::span<const SyncMessage> messages, std::span<SyncAnswer> answers)>;

  /// `ranks`: who meets here, in their order. `failure` and `progress` outlive the object; the
  /// latter may be null. `spin`: how long a rank that waits keeps looking before it sleeps; of use
  /// where every rank has a core of its own. SyncGroup::make_master makes one for a whole group.
  SyncMaster(std::vector<int> ranks, Callback callback, Failure& failure,
             const Progress* progress = nullptr, std::chrono::microseconds spin = {});
  SyncMaster(const SyncMaster&) = delete;
  SyncMaster& operator=(const SyncMaster&) = delete;
  /// Nobody waits here any more.
  ~SyncMaster();

  /// Posts and waits: the two below.
  SyncAnswer exchange(int place, const SyncMessage& message);

  /// `place`: of the rank among those who meet here. Where all others have posted, runs the
  /// callback. Throws PeerAborted after a failure.
  void post(int place, const SyncMessage& message);
  /// The answer to what the rank has posted last. Throws ReplicaError naming replica, layer and
  /// call if the ranks disagree, or the callback's exception: either is raised as the failure.
  /// Throws PeerAborted after any other failure.
  SyncAnswer await(int place);

  /// How long the longest-waiting rank of the present exchange has waited and a report of who
  /// waits, in which call, since when and who is missing; nullopt when nobody waits.
  struct Wait {
    threading::Clock::duration longest;
    std::string report;
  };
  std::optional<Wait> waiting() const;

 private:
  struct Slot {
    SyncMessage message;
    bool posted = false;
    std::uint64_t generation = 0;  // whose end is the answer
    threading::Clock::time_point since;
  };

  int size() const { return static_cast<int>(slots_.size()); }
  void end_waits() override;
  template <typename Done>
  void look_for(const Done& done, std::unique_lock<threading::Mutex>& lock) const;
  void run_callback(std::unique_lock<threading::Mutex>& lock);
  void check_agreement() const;
  [[noreturn]] void throw_disagreement() const;
  [[noreturn]] void throw_aborted(int place) const;
  std::string report(threading::Clock::time_point now) const;

  const std::vector<int> ranks_;  // [place]
  const Callback callback_;
  Failure& failure_;
  const Progress* const progress_;
  const std::chrono::microseconds spin_;

  // Each rank is woken once, with its answer: with more replicas than cores every needless wake-up
  // is paid by someone's computation.
  mutable threading::Mutex mutex_;
  threading::Condition answered_;
  std::vector<Slot> slots_;            // [place]
  std::vector<SyncMessage> messages_;  // [place], as the callback sees them
  std::vector<SyncAnswer> answers_;    // [place]
  // Written under the mutex; a rank that spins reads them without it.
  threading::Atomic<int> posted_{0};
  threading::Atomic<std::uint64_t> generation_{0};
  bool running_ = false;  // the callback reads the payloads: nobody may leave, not even after abort
  bool failed_here_ = false;  // the failure is this exchange's own
};

}  // namespace lockstep
