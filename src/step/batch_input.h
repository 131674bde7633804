#pragma once
// Brings a replica's shard to the device: images, and what its losses compare outputs with.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/nn/loss.h"
#include "step/step.h"

namespace lockstep {

using LossNodes = std::span<const std::unique_ptr<LossNode>>;

/// Targets are labels, which all losses against labels have in common, and values for each output
/// that is compared with such. Owned by its replica and used by that replica's thread.
class BatchInput {
 public:
  /// `network`: of training, set to the largest batch that will come. Both outlive the object.
  /// `options`: for its micro-batches, which may lie in device memory ahead of their step, and
  /// whether samples have weights. Throws Error when two losses want labels of different shapes.
  BatchInput(LossNodes losses, Network& network, const DataParallelOptions& options);

  /// Whether batches go to the device ahead of their step. The CPU would gain nothing by it.
  bool prefetches() const { return prefetched_images_.data() != nullptr; }
  /// Brings a micro-batch of the next step to the device. REQUIRES: `prefetches`.
  void prefetch(const BatchPart& part, std::size_t micro);
  /// Sets the network to the micro-batch and brings it there, from where `prefetched` has put it.
  void load(const BatchPart& part, std::size_t micro, bool prefetched);
  /// Returns the target of a loss, for the network's present batch.
  Tensor target(std::size_t loss) const;
  /// Of its samples, in device memory; null: all weigh 1.
  const float* sample_weights() const {
    return weighted_ ? static_cast<const float*>(places_.back().memory.data()) : nullptr;
  }

  /// Throws Error when the batch lacks targets or weights, or has too few of them.
  void check(const Batch& batch) const;
  /// Returns what a loss's sum over a global batch, in any number of pieces, is divided by
  /// (LossNode::normalizer). Throws Error for a label that is neither a class nor ignored.
  double normalizer(std::size_t loss, std::span<const Batch> batches);

 private:
  struct Place {
    const LossNode* loss = nullptr;  // the first that looks here; null: the samples' weights
    Storage memory = {};
    Storage prefetched = {};  // [micro-batch]
  };

  void find_place(const LossNode& loss, std::size_t micro_batches);
  Place make_place(const LossNode* loss, std::size_t micro_batches) const;
  Tensor in_place(const Place& place, void* memory) const;
  const void* source_of(const BatchPart& part, const Place& place) const;
  void bring(const BatchPart& part, const Place& place, std::size_t micro);
  const float* images_of(const BatchPart& part);
  Tensor prefetched_images(std::int64_t count, std::size_t micro) const;
  Tensor prefetched_target(const Place& place, std::int64_t count, std::size_t micro) const;

  const LossNodes losses_;
  Network& network_;
  Backend& backend_;
  const Shape planned_;                // of the network's input
  Storage prefetched_images_;          // [micro-batch], fp32; empty: no prefetching
  const bool weighted_;                // whether samples have weights
  std::vector<Place> places_;          // the weights' is the last
  std::vector<std::size_t> place_of_;  // [loss]
  std::vector<double> label_counts_;   // [class] of the batch at hand
  std::vector<float> reordered_;       // images of a shard that lay otherwise
};

/// Where the targets of the batch's samples from `begin` on lie on the host. `shape`: of `loss`'s
/// target. Throws Error when the batch has none, or too few of them.
const void* targets_of(const Batch& batch, std::int64_t begin, const LossNode& loss,
                       const Shape& shape);

/// Adds the batch's labels of each class to `counts` [classes], without those that are
/// `ignore_index`: class_pixels where the batch has them. With `sample_weights` each counts as much
/// as its sample weighs. `positions`: labels per sample. Throws Error for a label that is neither a
/// class nor ignored.
void add_label_counts(const Batch& batch, std::size_t positions, int ignore_index,
                      std::span<double> counts, bool sample_weights = false);

}  // namespace lockstep
