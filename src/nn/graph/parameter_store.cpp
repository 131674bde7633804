#include "lockstep/nn/parameter_store.h"

#include <algorithm>
#include <string>

namespace lockstep {
namespace {

// Every parameter and statistic starts at a cache line.
constexpr std::int64_t kLineElements = 16;

std::int64_t whole_lines(std::int64_t elements) {
  return (elements + kLineElements - 1) / kLineElements * kLineElements;
}

// Of PyTorch's extents, all of which count (Shape::elements is that of channels-last tensors, too).
std::int64_t product(const Shape& shape) {
  std::int64_t elements = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) elements *= shape[axis];
  return elements;
}

template <typename T>
T* find_named(std::span<const std::unique_ptr<T>> items, std::string_view name) {
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&](const auto& item) { return item->name == name; });
  return found == items.end() ? nullptr : found->get();
}

void check_extents(const std::string& name, const Shape& shape) {
  LOCKSTEP_CHECK(!name.empty(), "a parameter of shape ", to_string(shape),
                 " has no name; checkpoints tell parameters by theirs");
  bool positive = shape.rank() > 0;
  for (int axis = 0; axis < shape.rank(); ++axis) positive = positive && shape[axis] > 0;
  LOCKSTEP_CHECK(positive, "parameter ", name, ": expected positive extents, got ",
                 to_string(shape));
}

Initial initial_of(const std::string& name, const Shape& shape, ParameterKind kind,
                   std::int64_t fan_in) {
  LOCKSTEP_CHECK(fan_in >= 0, "parameter ", name, ": the fan-in must not be negative, is ", fan_in);
  if (kind == ParameterKind::kNorm) return Initial::constant(name.ends_with(".weight") ? 1 : 0);
  if (kind == ParameterKind::kBias) return Initial::constant(0);
  if (fan_in == 0 && shape.rank() < 2) return Initial::constant(0);
  return Initial::kaiming_normal(fan_in > 0 ? fan_in : product(shape) / shape[0]);
}

}  // namespace

Parameter& ParameterStore::parameter(const std::string& name, const Shape& shape,
                                     ParameterKind kind, std::int64_t fan_in) {
  check_extents(name, shape);
  return parameter(name, shape, kind, initial_of(name, shape, kind, fan_in));
}

Parameter& ParameterStore::parameter(const std::string& name, const Shape& shape,
                                     ParameterKind kind, const Initial& initial) {
  check_extents(name, shape);
  if (Parameter* existing = find(name)) {
    LOCKSTEP_CHECK(existing->shape == shape && existing->kind == kind, "parameter ", name,
                   " exists with shape ", to_string(existing->shape), ", asked for ",
                   to_string(shape), "; calls that share a name must agree");
    return *existing;
  }
  LOCKSTEP_CHECK(!allocated_, "no parameter ", name,
                 ": a network that shares parameters must be built from the same configuration");
  auto created = std::make_unique<Parameter>();
  created->name = name;
  created->shape = shape;
  created->kind = kind;
  created->initial = initial;
  created->offset = elements_;
  created->elements = product(shape);
  elements_ += whole_lines(created->elements);
  parameters_.push_back(std::move(created));
  return *parameters_.back();
}

BatchNormState& ParameterStore::batch_norm(const std::string& name, std::int64_t channels) {
  if (BatchNormState* existing = find_named<BatchNormState>(batch_norms_, name)) {
    LOCKSTEP_CHECK(existing->channels == channels, "running statistics of ", name, " have ",
                   existing->channels, " channels, asked for ", channels);
    return *existing;
  }
  LOCKSTEP_CHECK(!allocated_, "no running statistics ", name,
                 ": a network that shares them must be built from the same configuration");
  LOCKSTEP_CHECK(channels > 0 && !name.empty(), "running statistics '", name,
                 "': expected a name and at least 1 channel, got ", channels);
  batch_norms_.push_back(std::make_unique<BatchNormState>());
  batch_norms_.back()->name = name;
  batch_norms_.back()->channels = channels;
  statistics_elements_ += 2 * whole_lines(channels);
  return *batch_norms_.back();
}

std::vector<BatchNormState*> ParameterStore::batch_norm_slices(const std::string& name,
                                                               std::int64_t channels, int slices) {
  std::vector<BatchNormState*> states{&batch_norm(name, channels)};
  for (int slice = 1; slice < slices; ++slice) {
    states.push_back(&batch_norm(name + ".slice" + std::to_string(slice), channels));
    states.back()->slice_of = states.front();
  }
  return states;
}

void ParameterStore::allocate(Backend& backend) {
  LOCKSTEP_CHECK(!allocated_, "the parameters are allocated already");
  storage_ = backend.allocate(static_cast<std::size_t>(2 * elements_ + statistics_elements_) *
                              sizeof(float));
  values_ = static_cast<float*>(storage_.data());
  grads_ = values_ + elements_;
  statistics_ = grads_ + elements_;
  for (const auto& parameter : parameters_) {
    parameter->value = values_ + parameter->offset;
    parameter->grad = grads_ + parameter->offset;
    if (parameter->kind == ParameterKind::kNorm && parameter->name.ends_with(".weight")) {
      backend.fill(Tensor(parameter->value, Shape{1, parameter->elements}), 1.0F);
    }
  }
  float* next = statistics_;
  for (const auto& state : batch_norms_) {
    state->running_mean = next;
    state->running_var = next + whole_lines(state->channels);
    next += 2 * whole_lines(state->channels);
    backend.fill(Tensor(state->running_var, Shape{1, state->channels}), 1.0F);
  }
  allocated_ = true;
}

float* ParameterStore::grads_of_part(std::size_t part) const {
  if (part == 0) return grads_;
  return part > other_grads_.size() ? nullptr : static_cast<float*>(other_grads_[part - 1].data());
}

void ParameterStore::reserve_gradient_parts(Backend& backend, std::size_t parts) {
  LOCKSTEP_CHECK(allocated_, "gradient parts of a store without memory: allocate it first");
  while (other_grads_.size() + 1 < parts) {
    other_grads_.push_back(backend.allocate(static_cast<std::size_t>(elements_) * sizeof(float)));
  }
}

Parameter* ParameterStore::find(std::string_view name) const {
  return find_named<Parameter>(parameters_, name);
}

}  // namespace lockstep
