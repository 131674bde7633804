#include "nn/layers/layers.h"

namespace lockstep {

AllReduceLayer::AllReduceLayer(std::string name, Value* input, Value* output, int call_index)
    : Layer(std::move(name), {input}, output), exchange_(this->name(), call_index) {}

std::int64_t AllReduceLayer::elements() const {
  return output()->shape.rows_per_sample() * output()->shape.channels();
}

// Two slots, which peers read, with a part for each sample where sums are kept per sample.
LayerTraits AllReduceLayer::traits() const {
  return {.saved_bytes = 2 * static_cast<std::size_t>(slot_floats()) * sizeof(float),
          .saved_persists = true,
          .meets_in_backward = true};
}

std::int64_t AllReduceLayer::slot_floats() const {
  return output()->shape.batch() * 2 * elements();
}

void AllReduceLayer::prepare(Backend& backend, bool) { by_image_ = backend.sums_by_image(); }

// Samples that are added up by nobody before all are there come to the same bits on any devices.
StatSlot AllReduceLayer::sum_samples(Backend& backend, const Tensor& from, float* slot) const {
  const std::int64_t samples = from.shape.batch();
  if (!by_image_ || samples <= 1) {
    backend.sums().sum_over_batch(from, slot);
    return {samples, slot};
  }
  for (std::int64_t n = 0; n < samples; ++n) {
    backend.sums().sum_over_batch(from.sample_range(n, 1), slot + n * 2 * elements());
  }
  return {samples, slot, samples};
}

void AllReduceLayer::reduce(Backend& backend, const StepContext& context, Direction direction,
                            const Tensor& from, const GradTarget& to) {
  const StatSlot local = sum_samples(backend, from, exchange_.next_slot());
  Communicator& ranks = context.training ? context.communicator.get() : lone_rank();
  backend.sums().broadcast_sum(
      exchange_.show(ranks, {local, elements(), direction}, context.meanwhile), to.tensor,
      to.accumulate);
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
