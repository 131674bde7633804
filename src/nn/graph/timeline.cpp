#include "nn/graph/timeline.h"

#include <algorithm>

#include "nn/graph/liveness.h"

namespace lockstep {

Timeline::Timeline(const Graph& graph)
    : graph_(graph),
      layers_(static_cast<int>(graph.layers.size())),
      wanted_(graph.values.size(), false),
      has_grad_(graph.values.size(), false) {
  passes_.runs_backward.assign(graph.layers.size(), false);
  for (const GraphLayer& layer : graph.layers) passes_.frozen.push_back(layer.frozen);
  find_gradients();
  passes_.schedule = plan_schedule(graph, passes_.runs_backward);
  count_steps();
  defer_weight_gradients();
}

// A value has a gradient if something to learn lies before it and an output whose gradient is
// given after it. A gradient that is given has memory in any case.
void Timeline::find_gradients() {
  if (!graph_.training) return;
  wanted_[graph_.input] = graph_.input_grad;
  for (const GraphLayer& layer : graph_.layers) {
    wanted_[layer.output] = layer.learns || std::any_of(layer.inputs.begin(), layer.inputs.end(),
                                                        [&](int input) { return wanted_[input]; });
  }
  for (const GraphOutput& output : graph_.outputs) {
    has_grad_[output.value] = output.grad;
  }
  for (int i = layers_ - 1; i >= 0; --i) {
    const GraphLayer& layer = graph_.layers[i];
    if (!has_grad_[layer.output] || !wanted_[layer.output]) continue;
    passes_.runs_backward[i] = true;
    for (const int input : layer.inputs) {
      if (wanted_[input]) has_grad_[input] = true;
    }
  }
}

void Timeline::count_steps() {
  forward_step_.assign(layers_, 0);
  backward_step_.assign(layers_, 0);
  stretch_of_.assign(layers_, 0);
  for (const Stretch& stretch : passes_.schedule.forward) count_steps(stretch);
  const int loss = passes_.loss_step = static_cast<int>(spans_.size());
  spans_.push_back({loss, loss});
  for (std::size_t i = 0; i < passes_.schedule.backward.size(); ++i) {
    const Stretch& stretch = passes_.schedule.backward[i];
    count_steps(stretch);
    for (const Action& action : stretch.actions) {
      if (action.kind == ActionKind::kBackward) stretch_of_[action.layer] = static_cast<int>(i);
    }
  }
  end_ = static_cast<int>(spans_.size());
  spans_.push_back({end_, end_});
}

void Timeline::count_steps(const Stretch& stretch) {
  const int first = static_cast<int>(spans_.size());
  const int last = first + static_cast<int>(stretch.actions.size()) - 1;
  const bool comes_back = stretch.by_tile && graph_.several_tiles;
  for (const Action& action : stretch.actions) {
    const int step = static_cast<int>(spans_.size());
    if (action.kind == ActionKind::kForward) forward_step_[action.layer] = step;
    if (action.kind == ActionKind::kBackward) backward_step_[action.layer] = step;
    spans_.push_back(comes_back ? Span{first, last} : Span{step, step});
  }
}

// Until the next exchange, but of one layer at a time: every one that waits keeps two tensors.
// What is computed again is there for the stretch alone.
void Timeline::defer_weight_gradients() {
  int waiting = -1;
  for (int i = 0; i < layers_; ++i) passes_.weights_until.push_back(i);
  if (graph_.recompute) return;
  for (int i = layers_ - 1; i >= 0; --i) {
    const GraphLayer& layer = graph_.layers[i];
    if (layer.inputs.empty() || !needs_grad(i, layer.inputs[0])) continue;  // empty: a constant
    if (waiting >= 0 && layer.meets_in_backward) {
      passes_.weights_until[waiting] = i;
      waiting = -1;
    }
    if (layer.splits_backward && !layer.frozen) waiting = i;
  }
}

}  // namespace lockstep
