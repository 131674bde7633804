#include "nn/graph/liveness.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <set>

namespace lockstep {
namespace {

// What is smaller stays on the device: a copy's own time is that of this many bytes.
constexpr std::size_t kLeastSent = std::size_t{64} << 10;
// A buffer leaves for this many steps less, or stretches that images come back to, at either end:
// a copy takes its time.
constexpr int kAhead = 2;

/// Values that have no memory of their own: inputs that lie inside their concatenation, and inputs
/// that a layer overwrites with its output.
class Nesting {
 public:
  explicit Nesting(const Graph& graph)
      : graph_(graph),
        layers_(static_cast<int>(graph.layers.size())),
        parent_(graph.values.size(), -1),
        becomes_(graph.values.size(), -1),
        first_channel_(graph.values.size(), 0) {
    for (const GraphLayer& layer : graph.layers) {
      if (layer.forward_in_place) becomes_[layer.inputs[0]] = layer.output;
    }
    if (graph.share_memory) place_concatenated();
  }

  /// The concatenation that a value lies inside, -1: none.
  int parent(int value) const { return parent_[value]; }
  /// The value that is computed where this one lies, -1: none.
  int becomes(int value) const { return becomes_[value]; }
  /// Where it lies, inside its parent.
  Placement inside(int value, const Placement& whole) const {
    return {whole.buffer, whole.first_channel + first_channel_[value], whole.row_stride,
            whole.by_tile};
  }

 private:
  const GraphLayer& layer(int index) const { return graph_.layers[index]; }

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

  // The network's input and outputs may not, since they are copied from and to the host whole. No
  // value may lie in two concatenations.
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

  const Graph& graph_;
  const int layers_;
  std::vector<int> parent_;                  // [value]
  std::vector<int> becomes_;                 // [value]
  std::vector<std::int64_t> first_channel_;  // [value] in its parent
};

class Liveness {
 public:
  explicit Liveness(const Graph& graph)
      : graph_(graph),
        layers_(static_cast<int>(graph.layers.size())),
        time_(graph),
        nesting_(graph),
        written_(graph.values.size(), false),
        grad_by_tile_(graph.values.size(), false) {
    static_cast<PassPlan&>(plan_) = time_.passes();
    plan_.data.resize(graph.values.size());
    plan_.grad.resize(graph.values.size());
    plan_.saved.assign(graph.layers.size(), -1);
    for (const GraphLayer& layer : graph.layers) {
      const auto index = static_cast<int>(plan_.routes.size());
      plan_.routes.emplace_back();
      for (const int input : layer.inputs) {
        plan_.routes.back().push_back({.needed = time_.needs_grad(index, input)});
      }
    }
  }

  MemoryPlan run() {
    plan_data();
    if (graph_.training) plan_gradients();
    plan_saved();
    if (!graph_.share_memory) keep_everything();
    if (graph_.offload && graph_.share_memory) plan_round_trips();
    plan_.bytes = assign_offsets(plan_.buffers);
    return std::move(plan_);
  }

 private:
  /// Steps at either end of the time between the passes.
  struct Uses {
    int last_forward = -1;
    int first_backward = std::numeric_limits<int>::max();
  };

  bool kept(int value) const { return plan_.schedule.kept[value]; }
  const GraphLayer& layer(int index) const { return graph_.layers[index]; }

  int add_buffer(std::size_t bytes, int first, int last) {
    plan_.buffers.push_back({.bytes = bytes, .first = first, .last = last});
    uses_.emplace_back();
    return static_cast<int>(plan_.buffers.size()) - 1;
  }
  void touch(const Placement& placement, int step) {
    Buffer& buffer = plan_.buffers[placement.buffer];
    const Timeline::Span span = placement.by_tile ? Timeline::Span{step, step} : time_.span(step);
    buffer.first = std::min(buffer.first, span.first);
    buffer.last = std::max(buffer.last, span.last);
    Uses& uses = uses_[placement.buffer];
    if (step <= time_.loss_step()) {
      uses.last_forward = std::max(uses.last_forward, span.last);
    } else {
      uses.first_backward = std::min(uses.first_backward, span.first);
    }
  }
  std::size_t bytes_of(int value, bool by_tile) const {
    return by_tile ? graph_.values[value].tile_bytes : graph_.values[value].bytes;
  }
  Placement dense(int value, int buffer, bool by_tile = false) const {
    return {buffer, 0, graph_.values[value].channels, by_tile};
  }

  // Concatenations come after their parts, so that going backwards the whole is placed before its
  // parts.
  void plan_data() {
    for (int i = layers_ - 1; i >= 0; --i) place_data(layer(i).output);
    place_data(graph_.input);
    touch(plan_.data[graph_.input], 0);
    touch(plan_.data[graph_.input], time_.end());  // a second forward pass may want the same input
    for (const GraphOutput& output : graph_.outputs)
      touch(plan_.data[output.value], time_.loss_step());
    int step = 0;
    for (const Stretch& stretch : plan_.schedule.forward) {
      plan_.forward.push_back(plan_stretch(stretch, step));
    }
    step = time_.loss_step() + 1;
    for (const Stretch& stretch : plan_.schedule.backward) {
      plan_.backward.push_back(plan_stretch(stretch, step));
    }
  }

  // Values are placed from the last one to the first. A value that another one overwrites comes
  // before that, which has its memory by then.
  void place_data(int value) {
    if (!kept(value) || plan_.data[value].buffer >= 0) return;
    if (nesting_.becomes(value) >= 0) {
      plan_.data[value] = plan_.data[nesting_.becomes(value)];
      return;
    }
    const int parent = nesting_.parent(value);
    plan_.data[value] = parent >= 0 && kept(parent)
                            ? nesting_.inside(value, plan_.data[parent])
                            : dense(value, add_buffer(bytes_of(value, false), time_.end(), 0));
  }

  // --- the values of a stretch ---

  StretchMemory plan_stretch(const Stretch& stretch, int& step) {
    here_.clear();
    saved_here_.clear();
    for (const Action& action : stretch.actions) {
      if (action.kind != ActionKind::kBackward) here_[layer(action.layer).output] = {};
    }
    StretchMemory memory;
    for (const Action& action : stretch.actions) {
      note_values(action.layer, memory);
      action.kind == ActionKind::kBackward ? read_backward(action.layer)
                                           : run_forward(action, stretch.by_tile, step, memory);
      if (stretch.by_tile) save_here(action.layer, step);
      ++step;
    }
    for (const auto& [value, placement] : here_) {
      if (placement.buffer >= 0) memory.data.emplace_back(value, placement);
    }
    memory.saved.assign(saved_here_.begin(), saved_here_.end());
    return memory;
  }

  void note_values(int index, StretchMemory& memory) const {
    const auto note = [&](int value) {
      if (std::count(memory.values.begin(), memory.values.end(), value) == 0) {
        memory.values.push_back(value);
      }
    };
    note(layer(index).output);
    for (const int input : layer(index).inputs) note(input);
  }

  void run_forward(const Action& action, bool by_tile, int step, StretchMemory& memory) {
    const GraphLayer& at = layer(action.layer);
    // Of all images a layer that computes its output again takes the statistics alone.
    const bool leaves_out = graph_.recompute && !by_tile && at.computes_again;
    if (leaves_out) {
      memory.data.emplace_back(at.output, Placement{});
      here_.erase(at.output);
      return touch(plan_.data[at.inputs[0]], step);
    }
    touch_data(at.output, step);
    for (const int input : at.inputs) touch_data(input, step);
  }

  // Weight gradients that are deferred read what the rest of the layer's pass has read.
  void read_backward(int i) {
    if (!plan_.runs_backward[i]) return;
    const auto read = [&](int value) {
      touch_data(value, time_.backward_step(i));
      touch_data(value, time_.weights_step(i));
    };
    if (layer(i).reads_input) read(layer(i).inputs[0]);
    if (layer(i).reads_other_inputs) {
      for (const int input : layer(i).inputs) {
        if (input != layer(i).inputs[0]) read(input);
      }
    }
    if (layer(i).reads_output) touch_data(layer(i).output, time_.backward_step(i));
  }

  void touch_data(int value, int step) {
    if (kept(value)) return touch(plan_.data[value], step);
    touch(place_here(value), step);
  }
  // Inside its concatenation where that is written in this stretch, too.
  const Placement& place_here(int value) {
    Placement& placement = here_.at(value);
    if (placement.buffer >= 0) return placement;
    const int parent = nesting_.parent(value);
    placement = parent >= 0 && !kept(parent) && here_.contains(parent)
                    ? nesting_.inside(value, place_here(parent))
                    : dense(value, add_buffer(bytes_of(value, true), time_.end(), 0), true);
    return placement;
  }

  // --- gradients ---

  void plan_gradients() {
    find_gradients_of_one_stretch();
    for (const GraphOutput& output : graph_.outputs) {
      if (!output.grad || !time_.has_grad(output.value)) continue;
      plan_.grad[output.value] = new_gradient(output.value, time_.loss_step());
      written_[output.value] = true;
    }
    for (int i = layers_ - 1; i >= 0; --i) {
      if (!plan_.runs_backward[i]) continue;
      touch(plan_.grad[layer(i).output], time_.weights_step(i));
      for (std::size_t k = 0; k < layer(i).inputs.size(); ++k) {
        if (plan_.routes[i][k].needed) route_gradient(i, k);
      }
    }
    if (time_.has_grad(graph_.input)) touch(plan_.grad[graph_.input], time_.end());
  }

  // Others are of all images.
  void find_gradients_of_one_stretch() {
    std::vector<int> stretch(graph_.values.size(), -1);
    for (int i = 0; i < layers_; ++i) {
      const auto meet = [&](int value) {
        const bool first = stretch[value] < 0;
        if (first) stretch[value] = time_.backward_stretch(i);
        const bool by_tile = plan_.schedule.backward[time_.backward_stretch(i)].by_tile;
        grad_by_tile_[value] = by_tile && stretch[value] == time_.backward_stretch(i) &&
                               (first || grad_by_tile_[value]);
      };
      if (!plan_.runs_backward[i]) continue;
      meet(layer(i).output);
      for (std::size_t k = 0; k < layer(i).inputs.size(); ++k) {
        if (plan_.routes[i][k].needed) meet(layer(i).inputs[k]);
      }
    }
    grad_by_tile_[graph_.input] = false;
    for (const GraphOutput& output : graph_.outputs) grad_by_tile_[output.value] = false;
  }

  Placement new_gradient(int value, int step) {
    const bool by_tile = grad_by_tile_[value];
    const Placement placement =
        dense(value, add_buffer(bytes_of(value, by_tile), step, step), by_tile);
    touch(placement, step);
    return placement;
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
        const bool by_tile = plan_.schedule.backward[time_.backward_stretch(i)].by_tile;
        route.temporary =
            add_buffer(bytes_of(value, by_tile), time_.backward_step(i), time_.backward_step(i));
      }
    }
    touch(plan_.grad[value], time_.backward_step(i));
  }

  Placement first_gradient(int i, std::size_t k) {
    const int value = layer(i).inputs[k];
    const int output = layer(i).output;
    const bool alike = grad_by_tile_[value] == grad_by_tile_[output];
    // Where another consumer comes first the gradient is dense, and the concatenation adds to it.
    if (alike && nesting_.parent(value) == output)
      return nesting_.inside(value, plan_.grad[output]);
    if (alike && k == 0 && works_in_place(i)) {
      return dense(value, plan_.grad[output].buffer, grad_by_tile_[value]);
    }
    return new_gradient(value, time_.backward_step(i));
  }

  // Not inside a concatenation: whoever reads the result would read a strided tensor.
  bool works_in_place(int i) const {
    const GraphLayer& at = layer(i);
    if (!graph_.share_memory || !at.grad_in_place || nesting_.parent(at.output) >= 0) return false;
    return std::count(at.inputs.begin(), at.inputs.end(), at.inputs[0]) == 1;
  }

  bool repeats_input(int i, std::size_t k) const {
    const std::vector<int>& inputs = layer(i).inputs;
    return std::find(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(k), inputs[k]) !=
           inputs.begin() + static_cast<std::ptrdiff_t>(k);
  }

  // --- what layers save ---

  void plan_saved() {
    for (int i = 0; i < layers_; ++i) {
      if (layer(i).saved_bytes == 0 || saves_in_stretches(i)) continue;
      const int last = plan_.runs_backward[i] ? time_.weights_step(i) : time_.forward_step(i);
      plan_.saved[i] = layer(i).saved_persists
                           ? add_buffer(layer(i).saved_bytes, 0, time_.end())
                           : add_buffer(layer(i).saved_bytes, time_.forward_step(i), last);
    }
  }
  bool saves_in_stretches(int i) const {
    return graph_.recompute && layer(i).by_image && !layer(i).saved_persists;
  }
  void save_here(int i, int step) {
    if (layer(i).saved_bytes == 0 || !saves_in_stretches(i)) return;
    const auto [place, first] = saved_here_.try_emplace(i, -1);
    if (first) place->second = add_buffer(layer(i).saved_bytes, step, step);
    plan_.buffers[place->second].last = step;
  }

  // --- what waits on the host ---

  // A buffer that would not be on the host when the losses begin stays on the device: a forward
  // pass has to be done with all copies that it starts.
  void plan_round_trips() {
    for (const int index : buffers_that_may_leave()) {
      Buffer& buffer = plan_.buffers[index];
      const Uses& uses = uses_[index];
      if (uses.first_backward > time_.end()) continue;
      int first = uses.last_forward + 1, last = uses.first_backward - 1;
      for (int i = 0; i < kAhead; ++i) {
        first = time_.span(std::min(first, time_.end())).last + 1;
        last = time_.span(std::max(last, 0)).first - 1;
      }
      if (first > time_.loss_step() || last < time_.loss_step()) continue;
      buffer.away_first = first;
      buffer.away_last = last;
      plan_.round_trips.push_back({index, uses.last_forward, uses.first_backward});
    }
  }

  // Those of kept values but the input and the outputs, which others look at.
  std::set<int> buffers_that_may_leave() const {
    std::set<int> buffers;
    for (std::size_t value = 0; value < plan_.data.size(); ++value) {
      const int buffer = plan_.data[value].buffer;
      if (buffer >= 0 && plan_.buffers[buffer].bytes >= kLeastSent) buffers.insert(buffer);
    }
    buffers.erase(plan_.data[graph_.input].buffer);
    for (const GraphOutput& output : graph_.outputs) buffers.erase(plan_.data[output.value].buffer);
    return buffers;
  }

  void keep_everything() {
    for (Buffer& buffer : plan_.buffers) {
      buffer.first = 0;
      buffer.last = time_.end();
    }
  }

  const Graph& graph_;
  const int layers_;
  const Timeline time_;
  const Nesting nesting_;
  std::vector<bool> written_;       // [value] while going backwards
  std::vector<bool> grad_by_tile_;  // [value]
  std::vector<Uses> uses_;          // [buffer]
  std::map<int, Placement> here_;   // [value] that the present stretch writes
  std::map<int, int> saved_here_;   // [layer] its buffer in the present stretch
  MemoryPlan plan_;
};

}  // namespace

MemoryPlan plan_memory(const Graph& graph) { return Liveness(graph).run(); }

}  // namespace lockstep
