#pragma once
// A loss at an output of a network: the end of the forward pass and the start of the backward pass.

#include "lockstep/nn/loss.h"
#include "lockstep/nn/network.h"

namespace lockstep {

/// Owned by its replica and used by that replica's thread; of use for every network of one model.
class LossNode {
 public:
  /// Throws ConfigError when the class weights do not fit the classes of the output.
  LossNode(const NamedLoss& loss, const Network& network, Backend& backend);

  const std::string& output() const { return loss_.output; }
  std::size_t output_index() const { return index_; }
  const Loss& loss() const { return loss_.loss; }
  /// Null where the output is compared with values and not with labels.
  const CrossEntropyLoss* cross_entropy() const {
    return std::get_if<CrossEntropyLoss>(&loss_.loss);
  }
  /// Channels of the output.
  std::int64_t classes() const { return classes_; }

  /// What the output is compared with, in `memory`, for the batch that `network` is set to: labels,
  /// uint8 [N, ..., 1], or values, fp32 of the output's shape.
  Tensor target(const Network& network, void* memory) const;

  /// Adds this replica's part of the loss to `*loss` (device memory) and writes the output's
  /// gradient, multiplied by `grad_scale`. `normalizer`: of the whole global batch. `image_losses`:
  /// as CrossEntropy::image_losses.
  void forward_backward(const Network& network, const Tensor& target,
                        DeviceScalar<double> normalizer, DeviceScalar<float> grad_scale,
                        double* loss, double* image_losses) const;
  /// Adds the sum over all valid positions, or over all elements, without weights, to `*loss`.
  void evaluate(const Network& network, const Tensor& target, double* loss) const;

 private:
  CrossEntropy arguments(const CrossEntropyLoss& loss, const Network& network,
                         const Tensor& labels) const;
  MeanSquaredError arguments(const MeanSquaredErrorLoss& loss, const Network& network,
                             const Tensor& target) const;

  const NamedLoss loss_;
  const std::size_t index_;  // of the output
  const std::int64_t classes_;
  Storage class_weight_;  // [classes]; empty: all 1
};

/// What the sum over a global batch is divided by, given its labels of each class: the weights of
/// the valid positions. 0 where there are none.
double loss_normalizer(const CrossEntropyLoss& loss, std::span<const std::int64_t> label_counts);
/// The same, given how many elements the output has for the global batch.
double loss_normalizer(const MeanSquaredErrorLoss& loss, std::int64_t elements);

}  // namespace lockstep
