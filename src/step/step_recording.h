#pragma once
// How a rank comes to a step's work: operation by operation, or by a recording of a step before
// (DataParallelOptions::cuda_graph). Where nothing is recorded every step is issued.

#include <functional>
#include <vector>

#include "lockstep/nn/network.h"
#include "step/step.h"
#include "sync/transport.h"

namespace lockstep {

/// When steps are recorded and replayed. Used by the run's caller.
class RecordingSchedule {
 public:
  /// `batch`: samples of a full one, which alone is replayed. Without `records` all are issued.
  RecordingSchedule(bool records, std::int64_t batch) : records_(records), batch_(batch) {}
  /// The first full batch is issued as any other, which makes what is made on first use; the second
  /// is recorded. One that is spread otherwise over the ranks is another step, which is issued.
  StepMode next_mode(const StepInput& input);

 private:
  const bool records_;
  const std::int64_t batch_;
  StepMode mode_ = StepMode::kIssue;  // of the next full batch
  std::vector<std::int64_t> parts_;   // [rank] samples of the first full batch
};

/// Owned by its replica's TrainStep, used by the rank's thread.
class StepRecording {
 public:
  /// `recorder`: null where steps cannot be recorded, and then are issued alone. `network`: of
  /// training. Both outlive the object.
  StepRecording(Recorder* recorder, Network& network) : recorder_(recorder), network_(network) {}

  /// Does the work of a step that `issue` gives the device. `context`: of its forward pass.
  template <typename Issue>
  void run(StepMode mode, const StepContext& context, const Issue& issue) {
    if (mode == StepMode::kIssue) return issue();
    mode == StepMode::kRecord ? record(issue) : replay(context);
  }

 private:
  void record(const std::function<void()>& issue);
  void replay(const StepContext& context);

  Recorder* const recorder_;
  Network& network_;
  std::vector<std::int64_t> tracked_;  // [BatchNorm state] batches that the recording counts
};

}  // namespace lockstep
