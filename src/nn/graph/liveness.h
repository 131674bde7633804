#pragma once
// When every tensor of a network is alive, and which tensors share memory: gradients computed in
// place, values that lie inside a concatenation. Time counts steps: forward of layer i is step i,
// the loss step L (L layers), backward of layer i is step 2L - i, and step 2L + 1 is after the
// pass.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/nn/layer.h"
#include "nn/graph/memory_planner.h"

namespace lockstep {

/// A layer and its place in the graph.
struct GraphLayer : LayerTraits {
  std::vector<int> inputs;  // values
  int output = 0;
  bool has_parameters = false;
};

struct GraphValue {
  std::size_t bytes = 0;
  std::int64_t channels = 0;
};

/// What the network is asked for, and whether its gradient is given before the backward pass.
struct GraphOutput {
  int value = 0;
  bool grad = true;
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
};

/// Where a tensor lies: in a buffer, from a channel on, with the row stride of the whole buffer.
struct Placement {
  int buffer = -1;  // -1: it does not exist
  std::int64_t first_channel = 0;
  std::int64_t row_stride = 0;
};

/// How a layer's backward pass delivers the gradient of one input.
struct GradDelivery {
  bool needed = false;
  bool accumulate = false;
  int temporary = -1;  // a buffer to write to; the network then adds it to the gradient
};

struct MemoryPlan {
  std::vector<Buffer> buffers;
  std::vector<Placement> data;      // [value]
  std::vector<Placement> grad;      // [value]
  std::vector<int> saved;           // [layer] buffer, -1: none
  std::vector<bool> runs_backward;  // [layer]
  std::vector<int> weights_until;   // [layer] in whose backward pass its weight gradients are due
  std::vector<std::vector<GradDelivery>> deliveries;  // [layer][input]
  std::size_t bytes = 0;                              // of the arena
};

MemoryPlan plan_memory(const Graph& graph);

}  // namespace lockstep
