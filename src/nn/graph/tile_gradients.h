#pragma once
// Gradients of parameters of which a pass sees a few images at a time. They are summed in the tree
// of Backend::sums_by_image as if it saw all: every pass adds the nodes of the tree that its images
// fill, each in memory of its own; nodes that make up a larger one are joined.

#include <cstdint>
#include <span>
#include <vector>

#include "core/image_tree.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/parameter_store.h"

namespace lockstep {

/// Serves one backward pass after another, stretch by stretch. It has memory for the parameters of
/// one stretch, a few times.
class TileGradients {
 public:
  /// `planned`: the largest batch; `tile`: images that a pass sees at most. The backend and the
  /// store outlive the object.
  TileGradients(Backend& backend, const ParameterStore& store, std::int64_t planned,
                std::int64_t tile);

  /// Declares the next stretch: its layers in the order of their backward passes. Set-up only.
  void add_stretch(std::span<const Layer* const> layers);
  /// Takes the memory for a batch whose gradients are one part. Set-up only.
  void reserve();

  /// `parts`: StepContext::gradient_parts of all `batch` images.
  void begin_stretch(std::size_t stretch, std::span<const GradientPart> parts, std::int64_t batch);
  void begin_tile(std::int64_t first, std::int64_t count);
  /// Where a layer of the stretch adds its gradients of the tile: StepContext::gradient_parts.
  std::span<const GradientPart> parts_of(const Layer& layer);
  void end_tile();

 private:
  /// A layer's parameters, from the first to the last of them.
  struct Region {
    const Layer* layer = nullptr;
    std::int64_t first = 0, count = 0;  // of ParameterStore::grads()
    std::int64_t at = 0;                // of a node's memory
  };
  struct StretchRegions {
    std::vector<Region> regions;
    std::int64_t elements = 0;  // of all
  };
  struct Node : ImageNode {  // images of the part
    std::size_t part = 0;
    float* memory = nullptr;
  };

  void open(std::size_t part, const ImageNode& node);
  void add(const Node& node);
  void add_to_part(const Node& root);
  float* take();
  Tensor all_of(const Node& node) const { return {node.memory, Shape{1, stretch_->elements}}; }

  Backend& backend_;
  const ParameterStore& store_;
  const std::int64_t planned_, tile_;
  std::vector<StretchRegions> stretches_;
  std::int64_t elements_ = 0;    // of the largest stretch
  std::vector<Storage> memory_;  // of a node each
  std::vector<float*> free_;

  const StretchRegions* stretch_ = nullptr;
  bool in_tree_ = false;                // else all gradients are added to those of the parts
  std::vector<GradientPart> parts_;     // of all images
  std::int64_t first_ = 0;              // image of the tile
  std::vector<Node> waiting_, opened_;  // of a part that is not complete; of the tile
  std::vector<GradientPart> given_;
};

}  // namespace lockstep
