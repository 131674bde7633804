#pragma once
// What layers of every kind share: the parts of a batch whose gradients are summed separately, and
// what a message calls a layer.

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/nn/layer.h"
#include "lockstep/nn/parameter_store.h"

namespace lockstep {

/// body(part) for the parts of a batch of `batch` images whose gradients are added up on their own;
/// they cover it. One part where the context has none, or where the layer's batch is not that of
/// the images.
template <typename Body>
void for_each_gradient_part(const StepContext& context, std::int64_t batch, const Body& body) {
  const std::span<const GradientPart> parts = context.gradient_parts;
  if (parts.empty() || parts.back().first + parts.back().count != batch) {
    return body(GradientPart{0, batch, nullptr});
  }
  for (const GradientPart& part : parts) body(part);
}

/// The memory of the parameter's gradient in this part; null for no parameter.
inline float* gradient(const Parameter* parameter, const GradientPart& part) {
  if (parameter == nullptr) return nullptr;
  if (part.grads == nullptr) return parameter->grad;
  return part.grads + (parameter->offset - part.first_element);
}

/// The work of a layer that multiplies each of `rows` rows by all of its weights: a convolution,
/// either way.
LayerWork forward_work_with_weights(const Layer& layer, std::int64_t weights, std::int64_t rows);
LayerWork backward_work_with_weights(const Layer& layer, std::int64_t weights, std::int64_t rows,
                                     std::span<const GradTarget> grads);

/// The class of a layer, for messages: "lockstep::AllReduceLayer".
std::string class_name(const Layer& layer);

}  // namespace lockstep
