#pragma once
// Where the tensors of a network lie: an arena, in which each has an offset (liveness.h), and the
// views through which its layers see them: of the present batch, or of the images at hand.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nn/graph/declared_network.h"
#include "nn/graph/liveness.h"

namespace lockstep {

/// Some of a batch, in order.
struct Images {
  std::int64_t first = 0, count = 0;
};

/// Owned by its network, as are the values whose views it sets and the layers whose memory it is.
class PlannedMemory {
 public:
  /// Plans it, allocates it and gives layers their saved memory.
  PlannedMemory(DeclaredNetwork& network, const PlanOptions& options);

  const MemoryPlan& plan() const { return plan_; }
  /// For the plan's round trips; null where there are none.
  std::unique_ptr<Offload> make_offload() const;
  DType activations() const { return activations_; }
  /// Images that go through a stretch together.
  std::int64_t tile() const { return tile_; }
  std::int64_t batch() const { return batch_; }
  /// What a layer's backward pass writes, [input].
  std::span<const GradTarget> targets(std::size_t layer) const { return targets_[layer]; }

  /// Sets the views of all values to a batch: at most the planned one.
  void set_batch(std::int64_t batch);
  /// What a layer's pass over the present batch has to do.
  LayerWork work(std::size_t layer, Direction direction);

 private:
  friend class StretchViews;

  Tensor place(const Placement& placement, const Value& value, const Images& images) const;
  void view_all(int value);
  void view(const Stretch& stretch, const StretchMemory& memory, const Images& images);
  void set_targets(int layer, bool by_tile, const Images& images);
  std::byte* at(int buffer) const;

  DeclaredNetwork& network_;
  const DType activations_;
  const std::int64_t tile_;
  const MemoryPlan plan_;
  Storage arena_;
  std::int64_t batch_ = 0;
  std::vector<std::vector<GradTarget>> targets_;  // [layer][input]
};

/// What the values of a stretch are seen as, while it runs; those of all images, for the rest.
class StretchViews {
 public:
  StretchViews(PlannedMemory& planned, const Stretch& stretch, const StretchMemory& memory);
  StretchViews(const StretchViews&) = delete;
  StretchViews& operator=(const StretchViews&) = delete;
  ~StretchViews();

  void show(const Images& images) const { planned_.view(stretch_, memory_, images); }

 private:
  PlannedMemory& planned_;
  const Stretch& stretch_;
  const StretchMemory& memory_;
};

}  // namespace lockstep
