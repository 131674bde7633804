#include "nn/graph/liveness.h"

#include <algorithm>
#include <cstddef>

namespace lockstep {
namespace {

class Liveness {
 public:
  explicit Liveness(const Graph& graph)
      : graph_(graph),
        layers_(static_cast<int>(graph.layers.size())),
        parent_(graph.values.size(), -1),
        becomes_(graph.values.size(), -1),
        first_channel_(graph.values.size(), 0),
        has_grad_(graph.values.size(), false),
        written_(graph.values.size(), false) {
    plan_.data.resize(graph.values.size());
    plan_.grad.resize(graph.values.size());
    plan_.saved.assign(graph.layers.size(), -1);
    plan_.runs_backward.assign(graph.layers.size(), false);
    for (const GraphLayer& layer : graph.layers) {
      plan_.routes.emplace_back(layer.inputs.size());
      if (layer.forward_in_place) becomes_[layer.inputs[0]] = layer.output;
    }
  }

  MemoryPlan run() {
    find_gradients();
    defer_weight_gradients();
    if (graph_.share_memory) place_concatenated();
    plan_data();
    if (graph_.training) plan_gradients();
    plan_saved();
    if (!graph_.share_memory) keep_everything();
    plan_.bytes = assign_offsets(plan_.buffers);
    return std::move(plan_);
  }

 private:
  int loss_step() const { return layers_; }
  int backward_step(int layer) const { return 2 * layers_ - layer; }
  int weights_step(int layer) const { return backward_step(plan_.weights_until[layer]); }
  int end() const { return 2 * layers_ + 1; }
  const GraphLayer& layer(int index) const { return graph_.layers[index]; }

  int add_buffer(std::size_t bytes, int first, int last) {
    plan_.buffers.push_back({bytes, first, last, 0});
    return static_cast<int>(plan_.buffers.size()) - 1;
  }
  void touch(const Placement& placement, int step) {
    Buffer& buffer = plan_.buffers[placement.buffer];
    buffer.first = std::min(buffer.first, step);
    buffer.last = std::max(buffer.last, step);
  }
  Placement dense(int value, int buffer) const {
    return {buffer, 0, graph_.values[value].channels};
  }
  Placement inside(int value, const Placement& whole) const {
    return {whole.buffer, whole.first_channel + first_channel_[value], whole.row_stride};
  }

  // A value has a gradient if something to learn lies before it and an output whose gradient is
  // given after it. What is given has a place in any case.
  void find_gradients() {
    if (!graph_.training) return;
    std::vector<bool> wanted(graph_.values.size(), false);
    wanted[graph_.input] = graph_.input_grad;
    for (const GraphLayer& layer : graph_.layers) {
      wanted[layer.output] = layer.learns || std::any_of(layer.inputs.begin(), layer.inputs.end(),
                                                         [&](int input) { return wanted[input]; });
    }
    for (const GraphOutput& output : graph_.outputs) {
      has_grad_[output.value] = output.grad;
    }
    for (int i = layers_ - 1; i >= 0; --i) {
      if (!has_grad_[layer(i).output] || !wanted[layer(i).output]) continue;
      plan_.runs_backward[i] = true;
      for (std::size_t k = 0; k < layer(i).inputs.size(); ++k) {
        const int input = layer(i).inputs[k];
        plan_.routes[i][k].needed = wanted[input];
        if (wanted[input]) has_grad_[input] = true;
      }
    }
  }

  // Until the next exchange, but of one layer at a time: every one that waits keeps two tensors.
  void defer_weight_gradients() {
    int waiting = -1;
    for (int i = 0; i < layers_; ++i) plan_.weights_until.push_back(i);
    for (int i = layers_ - 1; i >= 0; --i) {
      if (!plan_.runs_backward[i] || plan_.routes[i].empty()) continue;  // the latter: a constant
      if (!plan_.routes[i][0].needed) continue;
      if (waiting >= 0 && layer(i).meets_in_backward) {
        plan_.weights_until[waiting] = i;
        waiting = -1;
      }
      if (layer(i).splits_backward && !layer(i).frozen) waiting = i;
    }
  }

  void place_concatenated() {
    for (int i = 0; i < layers_; ++i) {
      if (!layer(i).concatenates) continue;
      std::int64_t channel = 0;
      for (const int part : layer(i).inputs) {
        if (may_lie_inside(part, i)) {
          parent_[part] = layer(i).output;
          first_channel_[part] = channel;
        }
        channel += graph_.values[part].channels;
      }
    }
  }

  bool is_output(int value) const {
    return std::any_of(graph_.outputs.begin(), graph_.outputs.end(),
                       [value](const GraphOutput& output) { return output.value == value; });
  }

  // Not the network's input and outputs, which are copied from and to the host whole, and in one
  // place only.
  bool may_lie_inside(int value, int concatenation) const {
    if (value == graph_.input || is_output(value)) return false;
    for (int i = 0; i < layers_; ++i) {
      const GraphLayer& other = layer(i);
      const auto uses = std::count(other.inputs.begin(), other.inputs.end(), value);
      if (uses == 0 && other.output != value) continue;
      if (other.prefers_dense) return false;
      if (i == concatenation ? uses != 1 : uses != 0 && other.concatenates) return false;
    }
    return true;
  }

  // Concatenations come after their parts, so that going backwards the whole is placed before its
  // parts.
  void plan_data() {
    for (int i = layers_ - 1; i >= 0; --i) place_data(layer(i).output);
    place_data(graph_.input);
    touch(plan_.data[graph_.input], 0);
    touch(plan_.data[graph_.input], end());  // a second forward pass may want the same input
    for (const GraphOutput& output : graph_.outputs) touch(plan_.data[output.value], loss_step());
    for (int i = 0; i < layers_; ++i) {
      touch(plan_.data[layer(i).output], i);
      for (const int input : layer(i).inputs) touch(plan_.data[input], i);
      if (!plan_.runs_backward[i]) continue;
      if (layer(i).reads_input) touch(plan_.data[layer(i).inputs[0]], weights_step(i));
      if (layer(i).reads_other_inputs) {
        for (const int input : layer(i).inputs) {
          if (input != layer(i).inputs[0]) touch(plan_.data[input], weights_step(i));
        }
      }
      if (layer(i).reads_output) touch(plan_.data[layer(i).output], backward_step(i));
    }
  }

  // What becomes another value in place comes before it, so that going backwards that one is
  // placed.
  void place_data(int value) {
    if (plan_.data[value].buffer >= 0) return;
    if (becomes_[value] >= 0) {
      plan_.data[value] = plan_.data[becomes_[value]];
      return;
    }
    plan_.data[value] = parent_[value] >= 0
                            ? inside(value, plan_.data[parent_[value]])
                            : dense(value, add_buffer(graph_.values[value].bytes, end(), 0));
  }

  void plan_gradients() {
    for (const GraphOutput& output : graph_.outputs) {
      if (!output.grad || !has_grad_[output.value]) continue;
      plan_.grad[output.value] = new_gradient(output.value, loss_step());
      written_[output.value] = true;
    }
    for (int i = layers_ - 1; i >= 0; --i) {
      if (!plan_.runs_backward[i]) continue;
      touch(plan_.grad[layer(i).output], weights_step(i));
      for (std::size_t k = 0; k < layer(i).inputs.size(); ++k) {
        if (plan_.routes[i][k].needed) route_gradient(i, k);
      }
    }
    if (has_grad_[graph_.input]) touch(plan_.grad[graph_.input], end());
  }

  Placement new_gradient(int value, int step) {
    return dense(value, add_buffer(graph_.values[value].bytes, step, step));
  }

  void route_gradient(int i, std::size_t k) {
    const int value = layer(i).inputs[k];
    GradRoute& route = plan_.routes[i][k];
    if (!written_[value]) {
      plan_.grad[value] = first_gradient(i, k);
      written_[value] = true;
    } else {
      route.accumulate = true;
      // The same value twice: the second gradient must not be added before the first is there.
      if (k < layer(i).accumulates_from || repeats_input(i, k)) {
        route.temporary =
            add_buffer(graph_.values[value].bytes, backward_step(i), backward_step(i));
      }
    }
    touch(plan_.grad[value], backward_step(i));
  }

  Placement first_gradient(int i, std::size_t k) {
    const int value = layer(i).inputs[k];
    const int output = layer(i).output;
    // Where another consumer comes first the gradient is dense, and the concatenation adds its
    // part.
    if (parent_[value] == output) return inside(value, plan_.grad[output]);
    if (k == 0 && works_in_place(i)) return dense(value, plan_.grad[output].buffer);
    return new_gradient(value, backward_step(i));
  }

  // Not inside a concatenation: whoever reads the result would read a strided tensor.
  bool works_in_place(int i) const {
    const GraphLayer& at = layer(i);
    if (!graph_.share_memory || !at.grad_in_place || parent_[at.output] >= 0) return false;
    return std::count(at.inputs.begin(), at.inputs.end(), at.inputs[0]) == 1;
  }

  bool repeats_input(int i, std::size_t k) const {
    const std::vector<int>& inputs = layer(i).inputs;
    return std::find(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(k), inputs[k]) !=
           inputs.begin() + static_cast<std::ptrdiff_t>(k);
  }

  void plan_saved() {
    for (int i = 0; i < layers_; ++i) {
      if (layer(i).saved_bytes == 0) continue;
      const int forward_only = plan_.runs_backward[i] ? weights_step(i) : i;
      plan_.saved[i] = layer(i).saved_persists ? add_buffer(layer(i).saved_bytes, 0, end())
                                               : add_buffer(layer(i).saved_bytes, i, forward_only);
    }
  }

  void keep_everything() {
    for (Buffer& buffer : plan_.buffers) {
      buffer.first = 0;
      buffer.last = end();
    }
  }

  const Graph& graph_;
  const int layers_;
  std::vector<int> parent_;                  // [value] the concatenation it lies inside, -1: none
  std::vector<int> becomes_;                 // [value] the one that takes its place, -1: none
  std::vector<std::int64_t> first_channel_;  // [value] in its parent
  std::vector<bool> has_grad_;               // [value]
  std::vector<bool> written_;                // [value] while going backwards
  MemoryPlan plan_;
};

}  // namespace

MemoryPlan plan_memory(const Graph& graph) { return Liveness(graph).run(); }

}  // namespace lockstep
