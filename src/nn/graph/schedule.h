#pragma once
// In which order the layers of a network run, and for which images: all at once, or a few at a time
// where memory is to be spared. What is not kept of the forward pass is then computed again
// wherever a later layer reads it.
//
// A layer that is not LayerTraits::by_image meets all images: it cuts the others into stretches.
// All images go through one stretch, a few at a time; then the layer takes them together.

#include <cstdint>
#include <vector>

namespace lockstep {

struct Graph;

enum class ActionKind : std::uint8_t {
  kForward,
  kForwardAgain,  // Layer::forward_again
  kBackward,
};

struct Action {
  ActionKind kind = ActionKind::kForward;
  int layer = 0;
};

/// Actions that some images go through before the next ones do.
struct Stretch {
  std::vector<Action> actions = {};
  bool by_tile = false;  // false: all images at once
  /// In a backward pass: after this stretch the pass is done with this layer and all behind it.
  int first_layer = 0;
};

struct Schedule {
  std::vector<Stretch> forward, backward;
  /// [value] whether it is kept, of all images, from when it is written to when it is read last.
  /// Another one lives as long as the stretch for the images at hand, and is written in every
  /// stretch that reads it.
  std::vector<bool> kept;
};

/// `runs_backward`: [layer]. Without Graph::recompute one stretch, forward and backward, of all
/// layers.
Schedule plan_schedule(const Graph& graph, const std::vector<bool>& runs_backward);

}  // namespace lockstep
