#pragma once
// Steps that are recorded once and replayed as a whole, where streams do all the waiting.

#include <functional>

namespace lockstep {

/// One rank's part; all ranks make the same calls at the same time. Owned by the SyncGroup, used by
/// the rank's thread.
class Recorder {
 public:
  virtual ~Recorder() = default;

  /// Calls `issue`, which gives this rank's stream its part of a step of all ranks; nothing of it
  /// is done, it becomes the recording that `replay` does, in place of an earlier one. What was
  /// issued has been issued once before (it allocates nothing), and keeps its addresses. Throws
  /// Error when something in it cannot be recorded.
  virtual void record(const std::function<void()>& issue) = 0;
  /// Gives all ranks' streams the recorded step, after what they have been given before.
  virtual void replay() = 0;
};

}  // namespace lockstep
