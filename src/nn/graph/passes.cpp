// The passes of a network: its stretches one after another, the images of each tile by tile, and
// what the layers see of them.

#include <algorithm>

#include "lockstep/sync/communicator.h"
#include "nn/graph/network_impl.h"

namespace lockstep {

// --- views ---

// Without memory it is a shape alone, which a layer may ask for.
Tensor Network::Impl::place(const Placement& placement, const Value& value,
                            const Images& images) const {
  const Shape shape = value.shape.with_batch(images.count);
  if (placement.buffer < 0) return {nullptr, shape, activations};
  auto* memory = static_cast<std::byte*>(arena.data()) + plan.buffers[placement.buffer].offset;
  const std::int64_t rows = placement.by_tile ? 0 : images.first * shape.rows_per_sample();
  const std::int64_t first = placement.first_channel + rows * placement.row_stride;
  Tensor tensor(memory + static_cast<std::size_t>(first) * size_of(activations), shape,
                activations);
  tensor.row_stride = placement.row_stride;
  return tensor;
}

void Network::Impl::view_all(int value) {
  const auto all = [&](const Placement& placement) {
    return place(placement.by_tile ? Placement{} : placement, *values[value], {0, batch});
  };
  values[value]->data = all(plan.data[value]);
  values[value]->grad = all(plan.grad[value]);
}

void Network::Impl::set_views() {
  for (std::size_t v = 0; v < values.size(); ++v) view_all(static_cast<int>(v));
  for (std::size_t s = 0; s < plan.backward.size(); ++s) {
    const Stretch& stretch = plan.schedule.backward[s];
    if (stretch.by_tile) continue;
    for (const Action& action : stretch.actions) set_targets(action.layer, false, {0, batch});
  }
}

void Network::Impl::set_targets(int layer, bool by_tile, const Images& images) {
  const std::span<Value* const> inputs = layers[layer]->inputs();
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const GradRoute& route = plan.routes[layer][k];
    const Value& value = *inputs[k];
    if (!route.needed) continue;
    if (route.temporary >= 0) {
      const Placement temporary{route.temporary, 0, value.shape.channels(), by_tile};
      targets[layer][k] = {place(temporary, value, images), false};
    } else {
      targets[layer][k] = {value.grad, route.accumulate};
    }
  }
}

void Network::Impl::view(const Stretch& stretch, const StretchMemory& memory,
                         const Images& images) {
  if (stretch.by_tile) {
    for (const int v : memory.values) {
      values[v]->data = place(plan.data[v], *values[v], images);
      values[v]->grad = place(plan.grad[v], *values[v], images);
    }
  }
  for (const auto& [v, placement] : memory.data) {
    values[v]->data = place(placement, *values[v], images);
  }
  if (!stretch.by_tile) return;
  for (const Action& action : stretch.actions) {
    if (action.kind == ActionKind::kBackward) set_targets(action.layer, true, images);
  }
}

class Network::Impl::StretchViews {
 public:
  StretchViews(Impl& impl, const Stretch& stretch, const StretchMemory& memory)
      : impl_(impl), stretch_(stretch), memory_(memory) {
    for (const auto& [layer, buffer] : memory.saved) {
      auto* const arena = static_cast<std::byte*>(impl.arena.data());
      impl.layers[layer]->set_saved(arena + impl.plan.buffers[buffer].offset);
    }
  }
  StretchViews(const StretchViews&) = delete;
  StretchViews& operator=(const StretchViews&) = delete;
  ~StretchViews() {
    if (!stretch_.by_tile && memory_.data.empty()) return;
    for (const int value : memory_.values) impl_.view_all(value);
  }

  void show(const Images& images) const { impl_.view(stretch_, memory_, images); }

 private:
  Impl& impl_;
  const Stretch& stretch_;
  const StretchMemory& memory_;
};

// An empty batch goes through, too: its layers meet those of other ranks.
template <typename Body>
void Network::Impl::for_each_tile(const Stretch& stretch, const StretchMemory& memory,
                                  const Body& body) {
  const StretchViews views(*this, stretch, memory);
  const std::int64_t step = stretch.by_tile ? tile : batch;
  std::int64_t first = 0;
  do {
    const Images images{first, std::min(step, batch - first)};
    views.show(images);
    body(images);
    first += step;
  } while (first < batch);
}

// Whole batches and tiles of this many images.
void Network::Impl::prepare(const Images& images) {
  const bool is_new = !prepared[static_cast<std::size_t>(batch)];
  for (std::size_t s = 0; s < plan.forward.size(); ++s) {
    const Stretch& stretch = plan.schedule.forward[s];
    const StretchViews views(*this, stretch, plan.forward[s]);
    views.show(stretch.by_tile ? images : Images{0, batch});
    for (const Action& action : stretch.actions) {
      Layer& layer = *layers[action.layer];
      if (action.kind == ActionKind::kForward) layer.list_weights(weights);
      if (is_new) layer.prepare(backend, training);
    }
  }
}

// --- passes ---

namespace {

// A rank that meets no other may have a long way to go when another one fails.
void leave_if_failed(const StepContext& context) {
  if (context.communicator != nullptr) context.communicator->leave_if_failed();
}

StepContext context_of(const StepContext& context, const Images& images) {
  StepContext own = context;
  own.sample_offset += images.first;
  own.first_image = images.first;
  return own;
}

}  // namespace

void Network::Impl::run_forward(const Action& action, Direction pass, const StepContext& context) {
  const auto index = static_cast<std::size_t>(action.layer);
  observed(index, pass, [&] {
    action.kind == ActionKind::kForward ? layers[index]->forward(backend, context)
                                        : layers[index]->forward_again(backend, context);
    leave_if_failed(context);
  });
}

void Network::Impl::forward(const StepContext& context) {
  backend.convolutions().prepack_conv2d_weights(weights);
  for (std::size_t s = 0; s < plan.forward.size(); ++s) {
    const Stretch& stretch = plan.schedule.forward[s];
    for_each_tile(stretch, plan.forward[s], [&](const Images& images) {
      const StepContext own = context_of(context, images);
      for (const Action& action : stretch.actions) run_forward(action, Direction::kForward, own);
    });
  }
}

void Network::Impl::backward(const StepContext& context, const AfterLayer& after_layer) {
  deferred_weights.reset();  // of a pass that failed
  auto left_behind = static_cast<int>(layers.size());
  const auto leave = [&](int first) {
    if (!after_layer || deferred_weights) return;
    while (left_behind > first) after_layer(static_cast<std::size_t>(--left_behind));
  };
  for (std::size_t s = 0; s < plan.backward.size(); ++s) {
    const Stretch& stretch = plan.schedule.backward[s];
    gradients->begin_stretch(s, context.gradient_parts, batch);
    for_each_tile(stretch, plan.backward[s], [&](const Images& images) {
      StepContext own = context_of(context, images);
      own.meanwhile = [this, &context] { compute_deferred_weights(context); };
      gradients->begin_tile(images.first, images.count);
      for (const Action& action : stretch.actions) {
        const auto index = static_cast<std::size_t>(action.layer);
        own.gradient_parts = gradients->parts_of(*layers[index]);
        if (action.kind != ActionKind::kBackward) {
          run_forward(action, Direction::kBackward, own);
        } else if (plan.runs_backward[index]) {
          observed(index, Direction::kBackward, [&] {
            run_backward(index, own);
            leave_if_failed(context);
          });
        }
        if (!stretch.by_tile) leave(action.layer);
      }
      gradients->end_tile();
    });
    if (stretch.by_tile) leave(stretch.first_layer);
  }
}

// Only where others are waited for is there time to fill. An observer hears a layer's work as that
// layer's.
bool Network::Impl::defers_weights(std::size_t layer, const StepContext& context) const {
  return plan.weights_until[layer] != static_cast<int>(layer) && observer == nullptr &&
         context.communicator != nullptr && context.communicator->size() > 1;
}

void Network::Impl::compute_deferred_weights(const StepContext& context) {
  if (!deferred_weights) return;
  layers[*deferred_weights]->backward_weights(backend, context);
  deferred_weights.reset();
}

void Network::Impl::run_backward(std::size_t i, const StepContext& context) {
  Layer& layer = *layers[i];
  const bool defers = defers_weights(i, context);
  if (!defers && !frozen[i]) layer.backward_weights(backend, context);
  layer.backward(backend, context, targets[i]);
  for (std::size_t k = 0; k < targets[i].size(); ++k) {
    if (plan.routes[i][k].temporary < 0) continue;
    backend.copy(targets[i][k].tensor, layer.inputs()[k]->grad, true);
  }
  if (deferred_weights && plan.weights_until[*deferred_weights] == static_cast<int>(i)) {
    compute_deferred_weights(context);  // nobody was waited for
  }
  if (defers) deferred_weights = i;
}

// --- what a pass has to do ---

// A value of which some images are there at a time is seen as all of them for this.
LayerWork Network::Impl::work(std::size_t layer, Direction direction) {
  if (direction == Direction::kBackward && !plan.runs_backward[layer]) return {};
  const Layer& at = *layers.at(layer);
  const auto see = [this](Value& value) {
    const Tensor all(arena.data(), value.shape.with_batch(batch), activations);
    if (!value.data) value.data = all;
    if (!value.grad) value.grad = all;
  };
  see(*at.output());
  std::vector<GradTarget> grads = targets[layer];
  for (std::size_t k = 0; k < grads.size(); ++k) {
    see(*at.inputs()[k]);
    const GradRoute& route = plan.routes[layer][k];
    grads[k].accumulate = route.accumulate;  // whoever does the adding
    if (route.needed) grads[k].tensor.shape = at.inputs()[k]->data.shape;
    if (route.needed && !grads[k].tensor) grads[k].tensor = at.inputs()[k]->grad;
  }
  const LayerWork work =
      direction == Direction::kForward ? at.forward_work() : at.backward_work(grads);
  for (std::size_t v = 0; v < values.size(); ++v) view_all(static_cast<int>(v));
  return work;
}

}  // namespace lockstep
