#pragma once
// A replica's share of an evaluation: whole images, by the replica's running statistics or others.
// No replica waits for another.

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/nn/loss.h"
#include "nn/forward.h"
#include "step/step.h"

namespace lockstep {

/// Owned by its replica, used by the rank's thread.
class Validation {
 public:
  /// `loss`: the first of the run, whose output is judged. All outlive the object.
  Validation(const DataParallelOptions& options, Communicator& communicator, Backend& backend,
             ParameterStore& store, LossNode& loss);

  void begin();
  EvalOutcome evaluate(const Batch& batch, const EvaluationOptions& options = {});
  /// Confusion matrix [classes, classes] of the batches since `begin`; empty where the loss has no
  /// labels.
  std::vector<std::int64_t> end();

  /// The class of every row of the output: that of the largest logit, or of the largest probability
  /// that windows come to; the first of equal ones.
  std::vector<std::int32_t> predict(const Batch& batch, const EvaluationOptions& options = {});

  /// The network of the batch that came last. REQUIRES: there was one.
  Network& network() const { return present_->forward.network(); }
  /// Its output on the host, in fp32. Good until the next batch.
  std::span<const float> read_logits() { return present_->forward.read_logits(); }

 private:
  /// The model as it normalises by one kind of statistics.
  struct Way {
    Forward forward;
    Storage target;  // for the largest batch of the present plan
  };

  /// `rows` of a sample's image, as WindowMerge gives them.
  using SampleRows =
      std::function<void(std::size_t sample, int first, std::span<const float> probabilities)>;

  std::array<Way, 3> ways_of(const DataParallelOptions& options, Communicator& communicator,
                             Backend& backend, ParameterStore& store) const;
  Way& way_of(EvalNormalizer by) { return ways_[static_cast<std::size_t>(by)]; }
  static void check_images(const Batch& batch, const Shape& input);
  void prepare(const Batch& batch, EvalNormalizer by);
  /// The output for the batch, for which the network has been prepared.
  const Tensor& run(const Batch& batch);
  EvalOutcome evaluate_windows(const Batch& batch, const EvaluationOptions& options);
  std::vector<std::int32_t> predict_windows(const Batch& batch, const EvaluationOptions& options);
  TileMismatch run_windows(const Batch& batch, const EvaluationOptions& options,
                           const SampleRows& rows);
  bool is_of_samples(const Tensor& output) const;
  std::int64_t count_top5(const Batch& batch, std::span<const float> logits) const;
  std::int64_t count_terms(const Batch& batch, const Shape& target);
  Tensor confusion_tensor() const;
  Tensor sum_tensor() const;

  const Shape planned_;  // of training
  Communicator& communicator_;
  Backend& backend_;
  LossNode& loss_;
  std::array<Way, 3> ways_;  // [EvalNormalizer]
  Way* present_ = &way_of(EvalNormalizer::kRunning);
  Storage sum_;        // double: the loss of a batch
  Storage confusion_;  // int64 [classes, classes]; empty where the loss has no labels
  std::vector<std::int64_t> window_confusion_;  // [classes, classes] of what came in windows
  std::vector<double> label_counts_;            // [class] of the batch at hand
  std::vector<float> reordered_;                // its images, where they lay otherwise
};

}  // namespace lockstep
