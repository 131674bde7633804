#include "nn/graph/schedule.h"

#include <algorithm>
#include <set>
#include <utility>

#include "nn/graph/liveness.h"

namespace lockstep {
namespace {

// A value is kept if more layers than this would have to run again to compute it. This limits a
// long chain, such as a residual stream, in which each sum needs the one before.
constexpr int kMostAgain = 10;

Schedule plan_whole(const Graph& graph) {
  Schedule schedule{.forward = {{}}, .backward = {{}}, .kept = {}};
  const auto layers = static_cast<int>(graph.layers.size());
  for (int i = 0; i < layers; ++i) {
    schedule.forward[0].actions.push_back({ActionKind::kForward, i});
    schedule.backward[0].actions.push_back({ActionKind::kBackward, layers - 1 - i});
  }
  schedule.kept.assign(graph.values.size(), true);
  return schedule;
}

/// Numbers stretches in the order of the forward pass; those of the backward pass continue the
/// count.
class Scheduler {
 public:
  Scheduler(const Graph& graph, const std::vector<bool>& runs_backward)
      : graph_(graph),
        runs_backward_(runs_backward),
        layers_(static_cast<int>(graph.layers.size())),
        writer_(graph.values.size(), -1),
        cost_(graph.values.size(), 0) {
    schedule_.kept.assign(graph.values.size(), false);
  }

  Schedule run() {
    cut();
    keep_what_meets();
    count_costs();
    keep_what_is_read_elsewhere();
    for (int i = 0; i < stretches(); ++i) plan_forward(i);
    for (int i = stretches() - 1; i >= 0; --i) plan_backward(i);
    return std::move(schedule_);
  }

 private:
  const GraphLayer& layer(int index) const { return graph_.layers[index]; }
  int stretches() const { return static_cast<int>(schedule_.forward.size()); }
  bool is_tiled(int stretch) const { return schedule_.forward[stretch].by_tile; }

  // A stretch lies between any two layers that meet all images, be it empty.
  void cut() {
    schedule_.forward = {{.by_tile = true}};
    for (int i = 0; i < layers_; ++i) {
      writer_[layer(i).output] = i;
      if (!layer(i).by_image) schedule_.forward.push_back({.first_layer = i});
      stretch_of_.push_back(stretches() - 1);
      if (!layer(i).by_image) schedule_.forward.push_back({.by_tile = true, .first_layer = i + 1});
    }
  }

  /// Where the value is written first. What a layer that meets all images can compute again is not
  /// written by it.
  int written_in(int value) const {
    const int writer = writer_[value];
    if (writer < 0) return -1;
    return stretch_of_[writer] + (is_left_out(writer) ? 1 : 0);
  }
  bool is_left_out(int index) const {
    return !layer(index).by_image && layer(index).computes_again;
  }

  void keep_what_meets() {
    keep_first(graph_.input);
    for (const GraphOutput& output : graph_.outputs) keep_first(output.value);
    for (int i = 0; i < layers_; ++i) {
      const GraphLayer& at = layer(i);
      if (at.by_image) continue;
      const bool all = !at.computes_again, backward = runs_backward_[i];
      for (std::size_t k = 0; k < at.inputs.size(); ++k) {
        if (all || k == 0 || (backward && at.reads_other_inputs)) keep_first(at.inputs[k]);
      }
      if (all || (backward && at.reads_output)) keep_first(at.output);
    }
  }
  void keep_first(int value) { schedule_.kept[value] = true; }

  void count_costs() {
    for (int i = 0; i < layers_; ++i) {
      again_.push_back(layer(i).computes_again);
      const int value = layer(i).output;
      if (schedule_.kept[value] || !again_[i]) continue;
      int cost = 1;
      for (const int input : layer(i).inputs) cost += cost_[input];
      again_[i] = cost <= kMostAgain;
      if (again_[i]) cost_[value] = cost;
    }
  }

  void keep_what_is_read_elsewhere() {
    const std::vector<bool> met = schedule_.kept;
    for (std::size_t value = 0; value < met.size(); ++value) {
      if (met[value]) read_to_write(static_cast<int>(value));
    }
    for (int i = 0; i < layers_; ++i) {
      if (!layer(i).by_image || !runs_backward_[i]) continue;
      for_each_read(i, [&](int value) { read(value, stretches() + stretch_of_[i]); });
    }
  }

  // Where a value is kept, what leads to it is read where it is written.
  void read_to_write(int value) {
    if (writer_[value] < 0) return;
    for (const int input : layer(writer_[value]).inputs) read(input, written_in(value));
  }
  void read(int value, int stretch) {
    if (schedule_.kept[value] || !seen_.insert({stretch, value}).second) return;
    if (written_in(value) != stretch && !again_[writer_[value]]) {
      schedule_.kept[value] = true;
      return read_to_write(value);
    }
    for (const int input : layer(writer_[value]).inputs) read(input, stretch);
  }

  // What the backward pass of a layer reads, or what is run again for it reads. What was saved is
  // gone.
  bool saves_again(int index) const {
    return layer(index).saved_bytes > 0 && layer(index).computes_again;
  }
  template <typename Read>
  void for_each_read(int index, const Read& read) const {
    const GraphLayer& at = layer(index);
    for (std::size_t k = 0; k < at.inputs.size(); ++k) {
      if (saves_again(index) || (k == 0 ? at.reads_input : at.reads_other_inputs)) {
        read(at.inputs[k]);
      }
    }
    if (at.reads_output) read(at.output);
  }

  // --- the actions of one stretch ---

  void add(Stretch& stretch, ActionKind kind, int index) {
    stretch.actions.push_back({kind, index});
    there_.insert(layer(index).output);
  }
  void provide(Stretch& stretch, int value, int own) {
    if (!schedule_.kept[value]) write(stretch, value, own);
  }
  /// `own`: the stretch whose layers run for the first time; -1: none.
  void write(Stretch& stretch, int value, int own) {
    if (there_.contains(value)) return;
    const int writer = writer_[value];
    for (const int input : layer(writer).inputs) provide(stretch, input, own);
    const bool first = layer(writer).by_image && stretch_of_[writer] == own;
    add(stretch, first ? ActionKind::kForward : ActionKind::kForwardAgain, writer);
  }

  void plan_forward(int index) {
    Stretch& stretch = schedule_.forward[index];
    there_.clear();
    for (int i = 0; i < layers_; ++i) {
      const bool meets = !stretch.by_tile && stretch_of_[i] == index;
      if (meets) add(stretch, ActionKind::kForward, i);
      const int value = layer(i).output;
      if (!meets && schedule_.kept[value] && written_in(value) == index) {
        write(stretch, value, index);
      }
    }
  }

  void plan_backward(int index) {
    Stretch stretch{.by_tile = is_tiled(index), .first_layer = first_layer(index)};
    there_.clear();
    for (int i = layers_ - 1; i >= 0; --i) {
      if (stretch_of_[i] != index || !runs_backward_[i]) continue;
      if (stretch.by_tile) {
        for_each_read(i, [&](int value) { provide(stretch, value, -1); });
        if (saves_again(i)) write(stretch, layer(i).output, -1);
      }
      stretch.actions.push_back({ActionKind::kBackward, i});
    }
    schedule_.backward.push_back(std::move(stretch));
  }
  int first_layer(int index) const { return schedule_.forward[index].first_layer; }

  const Graph& graph_;
  const std::vector<bool>& runs_backward_;
  const int layers_;
  std::vector<int> writer_;             // [value] the layer; -1: the input
  std::vector<int> cost_;               // [value] layers to run for it again; 0: it is there
  std::vector<bool> again_;             // [layer] whether its output is computed again
  std::vector<int> stretch_of_;         // [layer]
  std::set<std::pair<int, int>> seen_;  // [stretch, value] reads
  std::set<int> there_;                 // values that the present stretch has written
  Schedule schedule_;
};

}  // namespace

Schedule plan_schedule(const Graph& graph, const std::vector<bool>& runs_backward) {
  if (!graph.recompute) return plan_whole(graph);
  return Scheduler(graph, runs_backward).run();
}

}  // namespace lockstep
