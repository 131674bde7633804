#pragma once
// What a replica's losses compare its outputs with, from the batch on the host to the device.

#include <cstdint>
#include <span>
#include <vector>

#include "nn/losses/loss_node.h"
#include "step/step.h"

namespace lockstep {

/// The targets of one batch: labels, which all cross-entropies have in common, and values for every
/// other loss. Owned by its replica and used by that replica's thread.
class Targets {
 public:
  /// `network`: of training, set to the largest batch that will come. Both outlive the object.
  /// `micro_batches`: how many may lie in device memory ahead of their step. Throws Error
  /// when two losses want labels of different shapes.
  Targets(std::span<const LossNode> losses, const Network& network, std::size_t micro_batches);

  /// Brings those of the network's present batch to the device.
  void upload(const BatchPart& part);
  /// The same in two parts, ahead of the step and in it.
  void stage(const BatchPart& part, std::size_t micro);
  void take_staged(const BatchPart& part, std::size_t micro);
  /// Of a loss, for the network's present batch.
  Tensor of(std::size_t loss) const;

  /// Throws Error when the batch lacks targets, or has too few of them.
  void check(const Batch& batch) const;
  /// What a loss's sum over a global batch, in any number of parts, is divided by
  /// (loss_normalizer). Throws Error for a label that is neither a class nor ignored.
  double normalizer(std::size_t loss, std::span<const Batch> batches);

 private:
  struct Place {
    const LossNode* loss;  // the first that looks here
    Storage memory;
    Storage staged;  // [micro-batch]
  };

  void find_place(const LossNode& loss, std::size_t micro_batches);
  Tensor staged(const Place& place, std::int64_t count, std::size_t micro) const;

  const std::span<const LossNode> losses_;
  const Network& network_;
  std::vector<Place> places_;
  std::vector<std::size_t> place_of_;       // [loss]
  std::vector<std::int64_t> label_counts_;  // [class] of the batch at hand
};

/// Where the targets of the batch's samples from `begin` on lie on the host. `shape`: of `loss`'s
/// target. Throws Error when the batch has none, or too few of them.
const void* targets_of(const Batch& batch, std::int64_t begin, const LossNode& loss,
                       const Shape& shape);

/// Adds the batch's labels of each class to `counts` [classes], without those that are
/// `ignore_index`: class_pixels where the batch has them. `positions`: labels per sample. Throws
/// Error for a label that is neither a class nor ignored.
void add_label_counts(const Batch& batch, std::size_t positions, int ignore_index,
                      std::span<std::int64_t> counts);

}  // namespace lockstep
