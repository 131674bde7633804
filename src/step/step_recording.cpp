#include "step/step_recording.h"

#include <algorithm>

#include "nn/norms/batch_norm_layer.h"

namespace lockstep {

StepMode RecordingSchedule::next_mode(const StepInput& input) {
  if (!records_ || input.batch != batch_) return StepMode::kIssue;
  if (parts_.empty()) {
    for (const BatchPart& part : input.parts) parts_.push_back(part.count);
  }
  if (!std::equal(parts_.begin(), parts_.end(), input.parts.begin(), input.parts.end(),
                  [](std::int64_t count, const BatchPart& part) { return count == part.count; })) {
    return StepMode::kIssue;
  }
  const StepMode mode = mode_;
  mode_ = mode == StepMode::kIssue ? StepMode::kRecord : StepMode::kReplay;
  return mode;
}

void StepRecording::record(const std::function<void()>& issue) {
  const auto batch_norms = network_.parameters().batch_norms();
  tracked_.clear();
  for (const auto& state : batch_norms) tracked_.push_back(-state->num_batches_tracked);
  recorder_->record(issue);
  for (std::size_t i = 0; i < tracked_.size(); ++i) {
    tracked_[i] += batch_norms[i]->num_batches_tracked;
  }
  recorder_->replay();
}

// The device does all of the step; what the layers keep on the host follows.
void StepRecording::replay(const StepContext& context) {
  recorder_->replay();
  const auto batch_norms = network_.parameters().batch_norms();
  for (std::size_t i = 0; i < batch_norms.size(); ++i) {
    batch_norms[i]->num_batches_tracked += tracked_[i];
  }
  for (BatchNormLayer* layer : batch_norms_of(network_)) layer->set_local_moments(context);
}

}  // namespace lockstep
