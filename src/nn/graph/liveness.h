#pragma once
// When every tensor of a network is alive (timeline.h counts the steps), and which tensors share
// memory: gradients computed in place, values that lie inside a concatenation. And where buffers of
// known lifetimes lie in one arena: two that are alive at a common step never overlap.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/nn/layer.h"
#include "nn/graph/timeline.h"

namespace lockstep {

/// A block of memory that is alive from step `first` to step `last`, both included.
struct Buffer {
  std::size_t bytes = 0;
  int first = 0;
  int last = 0;
  std::size_t offset = 0;  // set by assign_offsets, a multiple of kBufferAlignment
  /// Steps in between, both included, during which its contents are on the host and the memory
  /// belongs to others. There are none where the last is before the first.
  int away_first = 0;
  int away_last = -1;

  bool goes_away() const { return away_first <= away_last; }
};

inline constexpr std::size_t kBufferAlignment = 256;

/// Sets every buffer's offset and returns the bytes of the arena. Greedy, largest first and in a
/// few other orders, of which the smallest result is taken (Pisarchyk and Lee 2020, "Efficient
/// memory management for deep neural net inference").
std::size_t assign_offsets(std::span<Buffer> buffers);

/// The most bytes alive at one step: no assignment needs less.
std::size_t largest_live_bytes(std::span<const Buffer> buffers);

/// A layer as the graph knows it.
struct GraphLayer : LayerTraits {
  std::vector<int> inputs;  // values
  int output = 0;
  bool learns = false;  // it has a parameter that is not frozen
  bool frozen = false;  // it has parameters, and all of them are
};

struct GraphValue {
  std::size_t bytes = 0;
  std::int64_t channels = 0;
  std::size_t tile_bytes = 0;  // of the images that go through a stretch together
};

/// What the network is asked for, and whether its gradient is given before the backward pass.
struct GraphOutput {
  int value = 0;
  bool grad = true;
};

/// A buffer's way to the host and back (Buffer::away_first).
struct RoundTrip {
  int buffer = 0;
  int last_use = 0;  // the step after which it leaves
  int next_use = 0;  // the step before which it has to be back
};

/// Layers in execution order; every value but the input is the output of exactly one.
struct Graph {
  std::vector<GraphValue> values;
  std::vector<GraphLayer> layers;
  int input = 0;
  std::vector<GraphOutput> outputs;  // of different values
  bool training = true;
  bool input_grad = false;
  bool share_memory = true;
  /// Whether values are computed again where they may be. Needs `training`.
  bool recompute = false;
  /// Whether what is kept from the forward pass to the backward pass waits on the host between
  /// them, where the way is worth it. Needs `training` and `share_memory`.
  bool offload = false;
  /// Whether images go through a stretch in several tiles, so that what is kept of all of them is
  /// in use for as long as the stretch takes.
  bool several_tiles = false;
};

/// Where a tensor lies: in which buffer, from which channel on, with the buffer's row stride.
struct Placement {
  int buffer = -1;  // -1: it does not exist
  std::int64_t first_channel = 0;
  std::int64_t row_stride = 0;
  bool by_tile = false;  // of the images at hand, else of all
};

/// The route of the gradient of one input out of a layer's backward pass.
struct GradRoute {
  bool needed = false;
  bool accumulate = false;
  int temporary = -1;  // a buffer to write to; the network then adds it to the gradient
};

/// What lies elsewhere during a stretch.
struct StretchMemory {
  std::vector<int> values;                      // that its layers know
  std::vector<std::pair<int, Placement>> data;  // of values that are not kept
  std::vector<std::pair<int, int>> saved;       // layer, buffer
};

struct MemoryPlan : PassPlan {
  std::vector<Buffer> buffers;
  std::vector<StretchMemory> forward, backward;  // [stretch]
  std::vector<Placement> data;                   // [value]
  std::vector<Placement> grad;                   // [value]
  std::vector<int> saved;                      // [layer] buffer, -1: none, or only during stretches
  std::vector<std::vector<GradRoute>> routes;  // [layer][input]
  std::vector<RoundTrip> round_trips;
  std::size_t bytes = 0;  // of the arena
};

MemoryPlan plan_memory(const Graph& graph);

}  // namespace lockstep
