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
  /// Channels of the output.
  std::int64_t classes() const { return classes_; }
  std::size_t output_index() const { return index_; }
  int ignore_index() const { return cross_entropy().ignore_index; }

  /// The labels in `memory` of the batch that `network` is set to.
  Tensor labels(const Network& network, void* memory) const;

  /// Adds this replica's part of the loss to `*loss` (device memory) and writes the output's
  /// gradient, multiplied by `grad_scale`. `normalizer`: of the whole global batch. `image_losses`:
  /// as CrossEntropy::image_losses.
  void forward_backward(const Network& network, const Tensor& labels,
                        DeviceScalar<double> normalizer, DeviceScalar<float> grad_scale,
                        double* loss, double* image_losses) const;
  /// Adds the sum over all valid positions, without weights, to `*loss`.
  void evaluate(const Network& network, const Tensor& labels, double* loss) const;

 private:
  const CrossEntropyLoss& cross_entropy() const { return std::get<CrossEntropyLoss>(loss_.loss); }
  CrossEntropy arguments(const Network& network, const Tensor& labels, double* loss) const;

  const NamedLoss loss_;
  const std::size_t index_;  // of the output
  const std::int64_t classes_;
  Storage class_weight_;  // [classes]; empty: all 1
};

/// What the sum over a global batch is divided by, given its labels of each class: the weights of
/// the valid positions. 0 where there are none.
double loss_normalizer(const Loss& loss, std::span<const std::int64_t> label_counts);

}  // namespace lockstep
