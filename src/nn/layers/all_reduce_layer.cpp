#include "nn/layers/all_reduce_layer.h"

namespace lockstep {

AllReduceLayer::AllReduceLayer(std::string name, Value* input, Value* output, int call_index)
    : Layer(std::move(name), {input}, output), call_index_(call_index) {}

std::int64_t AllReduceLayer::elements() const {
  return output()->shape.rows_per_sample() * output()->shape.channels();
}

// Each is [2, elements].
std::size_t AllReduceLayer::saved_bytes() const {
  return 2 * 2 * static_cast<std::size_t>(elements()) * sizeof(float);
}

// In turn: when a slot is written again all ranks have met in the call between, and before that
// they were done with the slot.
float* AllReduceLayer::next_slot() {
  turn_ = !turn_;
  return saved_ + (turn_ ? 2 * elements() : 0);
}

void AllReduceLayer::reduce(Backend& backend, const StepContext& context, Direction direction,
                            const Tensor& from, const GradTarget& to) {
  float* const slot = next_slot();
  backend.sum_over_batch(from, slot);
  const StatSlot local{from.shape.batch(), slot};
  std::span<const StatSlot> slots(&local, 1);
  if (context.training && context.communicator != nullptr && context.communicator->size() > 1) {
    slots =
        context.communicator->exchange({name().c_str(), direction, call_index_, elements()}, local);
  }
  backend.broadcast_sum(slots, to.tensor, to.accumulate);
}

void AllReduceLayer::forward(Backend& backend, const StepContext& context) {
  reduce(backend, context, Direction::kForward, inputs()[0]->data, {output()->data, false});
}

// Every rank has the same plan, so that all or none of them come here, and need the gradient.
void AllReduceLayer::backward(Backend& backend, const StepContext& context,
                              std::span<const GradTarget> grads) {
  if (!grads[0].tensor) return;
  reduce(backend, context, Direction::kBackward, output()->grad, grads[0]);
}

}  // namespace lockstep
