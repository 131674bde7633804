#include "nn/graph/planned_memory.h"

#include <algorithm>
#include <unordered_map>

#include "backend/operands.h"

namespace lockstep {
namespace {

std::int64_t images_together(const DeclaredNetwork& network, const PlanOptions& options) {
  const std::int64_t planned = network.input->shape.batch();
  return options.training && options.tile > 0 ? std::min(options.tile, planned) : planned;
}

// What an output overwrites is nobody else's.
void check_in_place(const DeclaredNetwork& network, const PlanOptions& options) {
  for (const auto& layer : network.layers) {
    if (!layer->traits().forward_in_place) continue;
    const Value* const x = layer->inputs()[0];
    std::ptrdiff_t uses = std::ranges::count(network.outputs, x, &Output::value);
    for (const auto& other : network.layers) uses += std::ranges::count(other->inputs(), x);
    LOCKSTEP_CHECK(!options.training && uses == 1 && x != network.input, layer->name(),
                   ": it overwrites '", x->name,
                   "' (forward_in_place): only a network without a backward pass may, and only a "
                   "value that no other layer and nobody outside reads");
  }
}

// Channels-last; the batch is the planned one.
Graph describe(const DeclaredNetwork& network, const PlanOptions& options) {
  check_in_place(network, options);
  const std::int64_t tile = images_together(network, options);
  Graph graph;
  std::unordered_map<const Value*, int> index;
  for (const auto& value : network.values) {
    index[value.get()] = static_cast<int>(graph.values.size());
    const auto bytes = [&](const Shape& shape) {
      return static_cast<std::size_t>(shape.elements()) * size_of(options.activations);
    };
    graph.values.push_back(
        {bytes(value->shape), value->shape.channels(), bytes(value->shape.with_batch(tile))});
  }
  for (const auto& layer : network.layers) {
    const std::vector<const Parameter*> own = layer->parameters();
    const bool learns = std::any_of(own.begin(), own.end(), [&](const Parameter* parameter) {
      return !options.is_frozen || !options.is_frozen(parameter->name);
    });
    GraphLayer described{
        layer->traits(), {}, index.at(layer->output()), learns, !own.empty() && !learns};
    for (const Value* value : layer->inputs()) described.inputs.push_back(index.at(value));
    graph.layers.push_back(std::move(described));
  }
  graph.input = index.at(network.input);
  const std::vector<std::string>& given = options.grad_outputs;
  for (const Output& output : network.outputs) {
    if (!index.contains(output.value)) continue;
    const bool grad =
        given.empty() || std::find(given.begin(), given.end(), output.name) != given.end();
    graph.outputs.push_back({index.at(output.value), grad});
  }
  graph.training = options.training;
  graph.input_grad = options.input_grad;
  graph.share_memory = options.share_memory;
  graph.several_tiles = options.training && tile < network.input->shape.batch();
  graph.recompute = options.training && (options.recompute || graph.several_tiles);
  graph.offload = options.training && options.offload;
  return graph;
}

}  // namespace

PlannedMemory::PlannedMemory(DeclaredNetwork& network, const PlanOptions& options)
    : network_(network),
      activations_(options.activations),
      tile_(images_together(network, options)),
      plan_(plan_memory(describe(network, options))),
      arena_(network.backend.allocate(plan_.bytes)) {
  for (std::size_t i = 0; i < network.layers.size(); ++i) {
    Layer& layer = *network.layers[i];
    if (plan_.saved[i] >= 0) layer.set_saved(at(plan_.saved[i]));
    targets_.emplace_back(layer.inputs().size());
  }
}

std::unique_ptr<Offload> PlannedMemory::make_offload() const {
  if (plan_.round_trips.empty()) return nullptr;
  std::vector<Tensor> tensors;
  for (const RoundTrip& trip : plan_.round_trips) {
    tensors.push_back(bytes_tensor(at(trip.buffer), plan_.buffers[trip.buffer].bytes));
  }
  return network_.backend.make_offload(tensors);
}

std::byte* PlannedMemory::at(int buffer) const {
  return static_cast<std::byte*>(arena_.data()) + plan_.buffers[buffer].offset;
}

// --- views ---

// Without memory it is a shape alone, which a layer may ask for.
Tensor PlannedMemory::place(const Placement& placement, const Value& value,
                            const Images& images) const {
  const Shape shape = value.shape.with_batch(images.count);
  if (placement.buffer < 0) return {nullptr, shape, activations_};
  const std::int64_t rows = placement.by_tile ? 0 : images.first * shape.rows_per_sample();
  const std::int64_t first = placement.first_channel + rows * placement.row_stride;
  Tensor tensor(at(placement.buffer) + static_cast<std::size_t>(first) * size_of(activations_),
                shape, activations_);
  tensor.row_stride = placement.row_stride;
  return tensor;
}

void PlannedMemory::view_all(int value) {
  Value& of = *network_.values[value];
  const auto all = [&](const Placement& placement) {
    return place(placement.by_tile ? Placement{} : placement, of, {0, batch_});
  };
  of.data = all(plan_.data[value]);
  of.grad = all(plan_.grad[value]);
}

void PlannedMemory::set_batch(std::int64_t batch) {
  batch_ = batch;
  for (std::size_t v = 0; v < network_.values.size(); ++v) view_all(static_cast<int>(v));
  for (const Stretch& stretch : plan_.schedule.backward) {
    if (stretch.by_tile) continue;
    for (const Action& action : stretch.actions) set_targets(action.layer, false, {0, batch_});
  }
}

void PlannedMemory::set_targets(int layer, bool by_tile, const Images& images) {
  const std::span<Value* const> inputs = network_.layers[layer]->inputs();
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const GradRoute& route = plan_.routes[layer][k];
    const Value& value = *inputs[k];
    if (!route.needed) continue;
    if (route.temporary >= 0) {
      const Placement temporary{route.temporary, 0, value.shape.channels(), by_tile};
      targets_[layer][k] = {place(temporary, value, images), false};
    } else {
      targets_[layer][k] = {value.grad, route.accumulate};
    }
  }
}

void PlannedMemory::view(const Stretch& stretch, const StretchMemory& memory,
                         const Images& images) {
  if (stretch.by_tile) {
    for (const int v : memory.values) {
      Value& value = *network_.values[v];
      value.data = place(plan_.data[v], value, images);
      value.grad = place(plan_.grad[v], value, images);
    }
  }
  for (const auto& [v, placement] : memory.data) {
    network_.values[v]->data = place(placement, *network_.values[v], images);
  }
  if (!stretch.by_tile) return;
  for (const Action& action : stretch.actions) {
    if (action.kind == ActionKind::kBackward) set_targets(action.layer, true, images);
  }
}

StretchViews::StretchViews(PlannedMemory& planned, const Stretch& stretch,
                           const StretchMemory& memory)
    : planned_(planned), stretch_(stretch), memory_(memory) {
  for (const auto& [layer, buffer] : memory.saved) {
    planned.network_.layers[layer]->set_saved(planned.at(buffer));
  }
}

StretchViews::~StretchViews() {
  if (!stretch_.by_tile && memory_.data.empty()) return;
  for (const int value : memory_.values) planned_.view_all(value);
}

// --- what a pass has to do ---

// A value of which some images are there at a time is seen as all of them for this.
LayerWork PlannedMemory::work(std::size_t layer, Direction direction) {
  if (direction == Direction::kBackward && !plan_.runs_backward[layer]) return {};
  const Layer& at = *network_.layers.at(layer);
  const auto see = [this](Value& value) {
    const Tensor all(arena_.data(), value.shape.with_batch(batch_), activations_);
    if (!value.data) value.data = all;
    if (!value.grad) value.grad = all;
  };
  see(*at.output());
  std::vector<GradTarget> grads = targets_[layer];
  for (std::size_t k = 0; k < grads.size(); ++k) {
    see(*at.inputs()[k]);
    const GradRoute& route = plan_.routes[layer][k];
    grads[k].accumulate = route.accumulate;  // whoever does the adding
    if (route.needed) grads[k].tensor.shape = at.inputs()[k]->data.shape;
    if (route.needed && !grads[k].tensor) grads[k].tensor = at.inputs()[k]->grad;
  }
  const LayerWork work =
      direction == Direction::kForward ? at.forward_work() : at.backward_work(grads);
  for (std::size_t v = 0; v < network_.values.size(); ++v) view_all(static_cast<int>(v));
  return work;
}

}  // namespace lockstep
