#include "backend/batch_norm_group.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::test {
namespace {

Shape per_channel(const BatchNormProblem& p, std::int64_t count) {
  return {count, p.shape.channels()};
}

// The values of the samples of `shape` that begin with sample `begin`.
Values part(const Values& whole, const Shape& shape, std::int64_t begin) {
  Values values(static_cast<std::size_t>(shape.elements()));
  const std::int64_t first = begin * shape.rows_per_sample() * shape.channels();
  std::copy_n(whole.begin() + first, values.size(), values.begin());
  return values;
}

}  // namespace

BatchNormProblem::BatchNormProblem(const Shape& whole, std::vector<std::int64_t> samples)
    : shape(whole), batches(std::move(samples)) {}

void BatchNormProblem::draw(std::uint32_t seed, float offset) {
  const auto channels = static_cast<std::size_t>(shape.channels());
  const Shape one{shape.channels()};
  const Values means = random_values(one, seed + 1, offset);
  x = random_values(shape, seed);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = i % channels;
    x[i] = x[i] * (0.5F + 0.25F * static_cast<float>(c % 5)) + means[c];
  }
  residual_values = random_values(shape, seed + 2);
  grad_y = random_values(shape, seed + 3);
  weight = random_values(one, seed + 4);
  bias = random_values(one, seed + 5, 0.5F);
  running_mean = random_values(one, seed + 6);
  running_var = Values(channels, 2.5F);
  refresh();
}

void BatchNormProblem::refresh() {
  reference = {static_cast<std::size_t>(shape.channels()),
               widen(x),
               residual ? widen(residual_values) : Doubles{},
               affine ? widen(weight) : Doubles{},
               affine ? widen(bias) : Doubles{},
               eps,
               eps_mode == EpsMode::kClamp,
               relu};
  expected = reference.forward();
  for (std::size_t i = 0; i < grad_y.size(); ++i) {
    if (relu && std::abs(expected.linear[i]) < 1e-4) grad_y[i] = 0;
  }
  expected_gradients = reference.backward(expected, widen(grad_y));
}

BatchNormProblem BatchNormProblem::stored_as(DType type) const {
  BatchNormProblem p = *this;
  p.dtype = type;
  for (Values* activations : {&p.x, &p.residual_values, &p.grad_y}) {
    for (float& value : *activations) value = stored(type, value);
  }
  p.refresh();
  return p;
}

BatchNormReplica::BatchNormReplica(Backend& backend, const BatchNormProblem& p, std::int64_t begin,
                                   std::int64_t batch)
    : shape(p.shape.with_batch(batch)),
      x({backend, p.dtype}, shape, part(p.x, shape, begin), p.margins),
      residual({backend, p.dtype}, shape, part(p.residual_values, shape, begin), p.margins),
      grad_y({backend, p.dtype}, shape, part(p.grad_y, shape, begin), p.margins),
      y({backend, p.dtype}, shape, p.margins),
      grad_x({backend, p.dtype}, shape, p.margins),
      grad_residual({backend, p.dtype}, shape, p.margins),
      weight(backend, per_channel(p, 1), p.weight),
      bias(backend, per_channel(p, 1), p.bias),
      running_mean(backend, per_channel(p, 1), p.running_mean),
      running_var(backend, per_channel(p, 1), p.running_var),
      grad_weight(backend, per_channel(p, 1), Values(p.weight.size())),
      grad_bias(backend, per_channel(p, 1), Values(p.bias.size())),
      moments(backend, per_channel(p, 2)),
      sums(backend, per_channel(p, 2)),
      saved(backend, per_channel(p, 3)) {}

BatchNormGroup::BatchNormGroup(Backend& backend, const BatchNormProblem& problem)
    : backend_(backend), problem_(problem) {
  std::int64_t begin = 0;
  for (const std::int64_t batch : problem.batches) {
    replicas_.emplace_back(backend, problem, begin, batch);
    begin += batch;
  }
}

AffineParameters BatchNormGroup::affine(const BatchNormReplica& r) const {
  if (!problem_.affine) return {};
  return {r.weight.floats(), r.bias.floats()};
}

BatchNormForward BatchNormGroup::forward_arguments(BatchNormReplica& r,
                                                   std::span<const StatSlot> slots) const {
  BatchNormForward a;
  a.x = r.x.tensor();
  if (problem_.residual) a.residual = r.residual.tensor();
  a.y = r.y.tensor();
  a.affine = affine(r);
  a.slots = slots;
  a.eps = problem_.eps;
  a.eps_mode = problem_.eps_mode;
  a.relu = problem_.relu;
  a.saved = {r.saved.floats()};
  a.running = {r.running_mean.floats(), r.running_var.floats(), problem_.momentum};
  return a;
}

BatchNormBackwardReduce BatchNormGroup::reduce_arguments(BatchNormReplica& r) const {
  BatchNormBackwardReduce a;
  a.x = r.x.tensor();
  a.grad_y = r.grad_y.tensor();
  if (problem_.residual) a.y = r.y.tensor();
  a.affine = affine(r);
  a.saved = {r.saved.floats()};
  a.relu = problem_.relu;
  a.sums = r.sums.floats();
  if (problem_.affine) {
    a.grad_weight = r.grad_weight.floats();
    a.grad_bias = r.grad_bias.floats();
  }
  return a;
}

BatchNormBackwardApply BatchNormGroup::apply_arguments(BatchNormReplica& r,
                                                       std::span<const StatSlot> slots) const {
  const BatchNormBackwardReduce reduce = reduce_arguments(r);
  BatchNormBackwardApply a;
  a.x = reduce.x;
  a.grad_y = reduce.grad_y;
  a.y = reduce.y;
  a.affine = reduce.affine;
  a.saved = reduce.saved;
  a.relu = reduce.relu;
  a.slots = slots;
  a.grad_x = r.grad_x.tensor();
  if (problem_.residual) a.grad_residual = r.grad_residual.tensor();
  return a;
}

std::vector<StatSlot> BatchNormGroup::moment_slots() {
  std::vector<StatSlot> slots;
  for (BatchNormReplica& r : replicas_) {
    backend_.norms().batch_norm_moments(r.x.tensor(), r.moments.floats(), 1);
    slots.push_back({r.shape.rows(), r.moments.floats()});
  }
  return slots;
}

std::vector<StatSlot> BatchNormGroup::sum_slots() {
  std::vector<StatSlot> slots;
  for (BatchNormReplica& r : replicas_) {
    backend_.norms().batch_norm_backward_reduce(reduce_arguments(r));
    slots.push_back({r.shape.rows(), r.sums.floats()});
  }
  return slots;
}

void BatchNormGroup::forward() {
  const std::vector<StatSlot> slots = moment_slots();
  for (BatchNormReplica& r : replicas_)
    backend_.norms().batch_norm_forward(forward_arguments(r, slots));
}

void BatchNormGroup::backward() {
  const std::vector<StatSlot> slots = sum_slots();
  for (BatchNormReplica& r : replicas_) {
    backend_.norms().batch_norm_backward_apply(apply_arguments(r, slots));
  }
}

BatchNormResult BatchNormGroup::result() const {
  BatchNormResult all;
  const auto channels = static_cast<std::size_t>(problem_.shape.channels());
  all.grad_weight.resize(channels);
  all.grad_bias.resize(channels);
  for (const BatchNormReplica& r : replicas_) {
    append(all.y, r.y.get());
    append(all.grad_x, r.grad_x.get());
    append(all.grad_residual, r.grad_residual.get());
    const Values grad_weight = r.grad_weight.get();
    const Values grad_bias = r.grad_bias.get();
    for (std::size_t c = 0; c < channels; ++c) {
      all.grad_weight[c] += grad_weight[c];
      all.grad_bias[c] += grad_bias[c];
    }
    all.moments.push_back(r.moments.get());
    all.sums.push_back(r.sums.get());
    all.saved.push_back(r.saved.get());
    all.running_mean.push_back(r.running_mean.get());
    all.running_var.push_back(r.running_var.get());
  }
  return all;
}

bool BatchNormGroup::margins_untouched() const {
  for (const BatchNormReplica& r : replicas_) {
    if (!r.x.margins_untouched() || !r.y.margins_untouched() || !r.grad_x.margins_untouched() ||
        !r.grad_residual.margins_untouched()) {
      return false;
    }
  }
  return true;
}

BatchNormResult run_batch_norm(Backend& backend, const BatchNormProblem& problem) {
  BatchNormGroup group(backend, problem);
  group.forward();
  group.backward();
  return group.result();
}

}  // namespace lockstep::test
