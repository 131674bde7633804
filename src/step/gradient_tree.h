#pragma once
// The order in which a step's gradients are added up: that of the images of the global batch, in
// the binary tree of Backend::sums_by_image, however the images are spread over ranks.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/image_tree.h"
#include "step/step.h"

namespace lockstep {

/// Images [begin, end) of the global batch whose gradients are added up by the rank that has them.
struct GradientNode : ImageNode {
  int rank = 0;
  std::size_t part = 0;  // of the rank
};

/// The largest nodes of the tree over `batch` images that the images [begin, end) fill.
void add_largest_nodes(int rank, std::int64_t begin, std::int64_t end, std::int64_t batch,
                       std::vector<GradientNode>& nodes);

/// How nodes, in the order of their images, are joined: [node] OptimizerShard::joins. `waiting` is
/// scratch.
void plan_joins(std::span<const GradientNode> nodes, std::int64_t batch, std::vector<int>& joins,
                std::vector<GradientNode>& waiting);

/// Planned anew for each step, to the same order on all ranks; allocates only for more nodes than
/// ever before.
class GradientTree {
 public:
  /// parts [rank]: consecutive images. Each rank adds up the largest nodes of the tree that its
  /// images fill: one if they are 2^j images from a multiple of 2^j on or the last of the batch, at
  /// most about 2 log2(images) otherwise.
  void plan_by_image(std::span<const BatchPart> parts, std::int64_t batch);
  /// Each rank adds up its own; the tree is over the ranks.
  void plan_by_rank(int ranks);

  /// In the order of the images.
  std::span<const GradientNode> nodes() const { return nodes_; }
  /// The rank's.
  std::span<const GradientNode> nodes_of(int rank) const;
  /// [node]: OptimizerShard::joins.
  std::span<const int> joins() const { return joins_; }
  /// What the tree is over: images, or ranks.
  std::int64_t leaves() const { return leaves_; }

 private:
  void plan(std::int64_t leaves);

  std::int64_t leaves_ = 0;
  std::vector<GradientNode> nodes_;
  std::vector<int> joins_;
  std::vector<GradientNode> waiting_;  // sums, while the joins are planned
};

}  // namespace lockstep
