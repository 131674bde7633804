#pragma once
// The master/worker callback barrier. Every rank of the group posts a message and waits; when all
// have posted, rank 0's thread runs the callback once over the messages in rank order, and everyone
// receives its answer. The one rule: every rank posts the same calls in the same order; a rank that
// does not is named in the error everyone gets.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/sync/progress.h"

namespace lockstep {

enum class Direction : std::uint8_t { kForward, kBackward, kOther };

const char* to_string(Direction direction);

/// Identifies one exchange within a step. All ranks of a group must agree on all of it.
struct SyncCall {
  const char* layer = "";  // name of the layer; must outlive the call
  Direction direction = Direction::kOther;
  int index = 0;              // of the call within the step and direction
  std::int64_t channels = 0;  // payload extent
};

/// What a rank hands in. The payload must stay valid until the rank's answer has come.
struct SyncMessage {
  SyncCall call;
  std::int64_t count = 0;
  const void* payload = nullptr;
};

/// What a rank gets back. The callback owns the memory behind it; it stays valid until the callback
/// runs for the second time after this one (double buffering is enough: nobody posts call i+2
/// before all have left i).
struct SyncAnswer {
  std::int64_t count = 0;
  const void* payload = nullptr;
};

/// Safe from any thread; each rank has one thread.
class SyncMaster {
 public:
  /// Runs on rank 0's thread: `messages` [rank], fills `answers` [rank]. What it throws, every rank
  /// gets.
  using Callback =
      std::function<void(std::span<const SyncMessage> messages, std::span<SyncAnswer> answers)>;

  /// `rank_offset` is added to ranks in messages (a sync group that starts at a later rank);
  /// `progress` may be null. `spin`: how long a rank that waits keeps looking before it sleeps; of
  /// use where every rank has a core of its own.
  SyncMaster(int ranks, Callback callback, Progress* progress = nullptr, int rank_offset = 0,
             std::chrono::microseconds spin = {});

  /// Posts and waits. Throws ReplicaError naming replica, layer and call if the ranks disagree, the
  /// callback's exception, or PeerAborted after `abort`.
  SyncAnswer exchange(int rank, const SyncMessage& message);

  /// Wakes everyone, now and for ever; the first cause is kept. Safe from any thread.
  void abort(std::exception_ptr cause);

  /// How long the longest-waiting rank of the present exchange has waited and a report of who
  /// waits, in which call, since when and who is missing; nullopt when nobody waits.
  struct Wait {
    std::chrono::steady_clock::duration longest;
    std::string report;
  };
  std::optional<Wait> waiting() const;

  /// Number of times the callback ran.
  std::int64_t callbacks() const;

 private:
  struct Slot {
    SyncMessage message;
    bool posted = false;
    std::chrono::steady_clock::time_point since;
  };

  int size() const { return static_cast<int>(slots_.size()); }
  void post(int rank, const SyncMessage& message);
  void wait_as_master(std::unique_lock<std::mutex>& lock);
  void wait_as_worker(std::unique_lock<std::mutex>& lock);
  template <typename Done>
  void look_for(const Done& done, std::unique_lock<std::mutex>& lock) const;
  void run_callback(std::unique_lock<std::mutex>& lock);
  void check_agreement() const;
  [[noreturn]] void throw_disagreement() const;
  [[noreturn]] void throw_aborted(int rank) const;
  std::string report(std::chrono::steady_clock::time_point now) const;

  const Callback callback_;
  Progress* const progress_;
  const int rank_offset_;
  const std::chrono::microseconds spin_;

  // Two conditions, so that the last worker to post wakes the master alone and the answer wakes
  // each worker once: with more replicas than cores every needless wake-up is paid by someone's
  // computation.
  mutable std::mutex mutex_;
  std::condition_variable all_posted_;
  std::condition_variable answered_;
  std::vector<Slot> slots_;            // [rank]
  std::vector<SyncMessage> messages_;  // [rank], as the callback sees them
  std::vector<SyncAnswer> answers_;    // [rank]
  // Written under the mutex; a rank that spins reads these three without it.
  std::atomic<int> posted_{0};
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<bool> failed_{false};  // failure_ is set
  bool running_ = false;  // the callback reads the payloads: nobody may leave, not even after abort
  std::exception_ptr failure_;
  bool failed_here_ = false;  // failure_ is this exchange's own, not one handed to abort()
  std::int64_t callbacks_ = 0;
};

}  // namespace lockstep
