#include "nn/graph/passes.h"

#include <algorithm>

#include "core/profiler.h"
#include "lockstep/sync/communicator.h"

namespace lockstep {

// --- set-up ---

Passes::Passes(DeclaredNetwork& network, PlannedMemory& memory, bool training)
    : network_(network),
      backend_(network.backend),
      memory_(memory),
      plan_(memory.plan()),
      training_(training),
      gradients_(network.backend, network.store, planned_batch(), memory.tile()),
      round_trips_(memory.plan(), memory.make_offload()),
      prepared_(static_cast<std::size_t>(planned_batch()) + 1, false) {
  declare_gradients();
}

// What meets all images has their gradient parts, too.
void Passes::declare_gradients() {
  std::vector<const Layer*> of_stretch;
  for (const Stretch& stretch : plan_.schedule.backward) {
    of_stretch.clear();
    for (const Action& action : stretch.actions) {
      const bool adds = stretch.by_tile && action.kind == ActionKind::kBackward;
      if (adds) of_stretch.push_back(network_.layers[static_cast<std::size_t>(action.layer)].get());
    }
    gradients_.add_stretch(of_stretch);
  }
  gradients_.reserve();
}

void Passes::set_batch(std::int64_t batch) {
  LOCKSTEP_CHECK(batch >= 0 && batch <= planned_batch(), "a batch of ", batch,
                 " samples; the network is planned for 0 to ", planned_batch());
  memory_.set_batch(batch);
  weights_.clear();
  const std::int64_t tile = memory_.tile();
  prepare({0, std::min(tile, batch)});
  if (batch % tile != 0 && batch > tile) prepare({0, batch % tile});
  if (prepared_[static_cast<std::size_t>(batch)]) return;
  backend_.convolutions().prepack_conv2d_weights(weights_);  // takes the memory for it
  prepared_[static_cast<std::size_t>(batch)] = true;
}

// Whole batches and tiles of this many images.
void Passes::prepare(const Images& images) {
  const std::int64_t batch = memory_.batch();
  const bool is_new = !prepared_[static_cast<std::size_t>(batch)];
  for (std::size_t s = 0; s < plan_.forward.size(); ++s) {
    const Stretch& stretch = plan_.schedule.forward[s];
    const StretchViews views(memory_, stretch, plan_.forward[s]);
    views.show(stretch.by_tile ? images : Images{0, batch});
    for (const Action& action : stretch.actions) {
      Layer& layer = *network_.layers[action.layer];
      if (action.kind == ActionKind::kForward) layer.list_weights(weights_);
      if (is_new) layer.prepare(backend_, training_);
    }
  }
}

// --- passes ---

namespace {

/// The images of a batch that go through the actions of a stretch together. There is always a tile:
/// an empty batch goes through, too, because its layers meet those of other ranks.
class Tiles {
 public:
  Tiles(const Stretch& stretch, const PlannedMemory& memory)
      : batch_(memory.batch()), size_(stretch.by_tile ? memory.tile() : memory.batch()) {}

  std::int64_t count() const { return batch_ <= size_ ? 1 : (batch_ + size_ - 1) / size_; }
  Images operator[](std::int64_t tile) const {
    return {tile * size_, std::min(size_, batch_ - tile * size_)};
  }

 private:
  const std::int64_t batch_, size_;
};

// A rank that meets no other may have a long way to go when another one fails.
void leave_if_failed(const StepContext& context) { context.communicator.get().leave_if_failed(); }

StepContext context_of(const StepContext& context, const Images& images) {
  StepContext own = context;
  own.sample_offset += images.first;
  own.first_image = images.first;
  return own;
}

}  // namespace

// A buffer that holds values of all images is in use from the first tile's turn at an action to the
// last one's.
void Passes::begin_action(int step, const Images& images) {
  if (images.first == 0) round_trips_.before(step);
}

void Passes::end_action(int step, const Images& images) {
  if (images.first + images.count >= memory_.batch()) round_trips_.after(step);
}

void Passes::forward(const StepContext& context) {
  backend_.convolutions().prepack_conv2d_weights(weights_);
  round_trips_.begin();
  int first = 0;
  for (std::size_t s = 0; s < plan_.forward.size(); ++s) {
    const Stretch& stretch = plan_.schedule.forward[s];
    const StretchViews views(memory_, stretch, plan_.forward[s]);
    const Tiles tiles(stretch, memory_);
    for (std::int64_t tile = 0; tile < tiles.count(); ++tile) {
      const Images images = tiles[tile];
      views.show(images);
      const StepContext own = context_of(context, images);
      int step = first;
      for (const Action& action : stretch.actions) {
        begin_action(step, images);
        run(action, Direction::kForward, own);
        end_action(step++, images);
      }
    }
    first += static_cast<int>(stretch.actions.size());
  }
  round_trips_.before(first);  // that of the losses
}

void Passes::run(const Action& action, Direction pass, const StepContext& context) {
  const auto index = static_cast<std::size_t>(action.layer);
  if (action.kind == ActionKind::kBackward && !plan_.runs_backward[index]) return;
  Layer& layer = *network_.layers[index];
  const ProfiledRange range(layer.name().c_str());
  if (observer_ != nullptr) observer_->begin(index, pass);
  switch (action.kind) {
    case ActionKind::kForward:
      layer.forward(backend_, context);
      break;
    case ActionKind::kForwardAgain:
      layer.forward_again(backend_, context);
      break;
    case ActionKind::kBackward:
      run_backward(index, context);
      if (observer_ != nullptr) finish_gradients();  // the layer's own work, too
      break;
  }
  leave_if_failed(context);
  if (observer_ != nullptr) observer_->end(index, pass);
}

void Passes::backward(const StepContext& context, const Network::AfterLayer& after_layer) {
  deferred_weights_.reset();  // of a pass that failed
  auto left_behind = static_cast<int>(network_.layers.size());
  const auto leave = [&](int layer) {
    if (!after_layer || deferred_weights_) return;
    while (left_behind > layer) after_layer(static_cast<std::size_t>(--left_behind));
  };
  int first = plan_.loss_step + 1;
  for (std::size_t s = 0; s < plan_.backward.size(); ++s) {
    const Stretch& stretch = plan_.schedule.backward[s];
    const StretchViews views(memory_, stretch, plan_.backward[s]);
    const Tiles tiles(stretch, memory_);
    gradients_.begin_stretch(s, context.gradient_parts, memory_.batch());
    for (std::int64_t tile = 0; tile < tiles.count(); ++tile) {
      const Images images = tiles[tile];
      views.show(images);
      StepContext own = context_of(context, images);
      own.meanwhile = [this, &context] { compute_deferred_weights(context); };
      gradients_.begin_tile(images.first, images.count);
      int step = first;
      for (const Action& action : stretch.actions) {
        begin_action(step, images);
        own.gradient_parts = gradients_.parts_of(*network_.layers[action.layer]);
        run(action, Direction::kBackward, own);
        if (!stretch.by_tile) leave(action.layer);
        end_action(step++, images);
      }
      if (stretch.by_tile) finish_gradients();
      gradients_.end_tile();
    }
    if (stretch.by_tile) leave(stretch.first_layer);
    first += static_cast<int>(stretch.actions.size());
  }
  finish_gradients();
}

void Passes::finish_gradients() { backend_.convolutions().finish_conv2d_gradients(); }

// Only where others are waited for is there time to fill. An observer hears a layer's work as that
// layer's.
bool Passes::defers_weights(std::size_t layer, const StepContext& context) const {
  return plan_.weights_until[layer] != static_cast<int>(layer) && observer_ == nullptr &&
         context.communicator.get().size() > 1;
}

void Passes::compute_deferred_weights(const StepContext& context) {
  if (!deferred_weights_) return;
  network_.layers[*deferred_weights_]->backward_weights(backend_, context);
  deferred_weights_.reset();
}

void Passes::run_backward(std::size_t i, const StepContext& context) {
  Layer& layer = *network_.layers[i];
  const std::span<const GradTarget> targets = memory_.targets(i);
  const bool defers = defers_weights(i, context);
  if (!defers && !plan_.frozen[i]) layer.backward_weights(backend_, context);
  layer.backward(backend_, context, targets);
  for (std::size_t k = 0; k < targets.size(); ++k) {
    if (plan_.routes[i][k].temporary < 0) continue;
    backend_.copy(targets[k].tensor, layer.inputs()[k]->grad, true);
  }
  if (deferred_weights_ && plan_.weights_until[*deferred_weights_] == static_cast<int>(i)) {
    compute_deferred_weights(context);  // nobody was waited for
  }
  if (defers) deferred_weights_ = i;
}

}  // namespace lockstep
