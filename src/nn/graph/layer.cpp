#include "lockstep/nn/layer.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <typeinfo>

#include "lockstep/core/check.h"
#include "nn/layer_support.h"

namespace lockstep {

double element_bytes(const Tensor& tensor) {
  return tensor ? static_cast<double>(tensor.shape.elements()) *
                      static_cast<double>(size_of(tensor.dtype))
                : 0.0;
}

double element_bytes(const GradTarget& target) {
  return (target.accumulate ? 2 : 1) * element_bytes(target.tensor);
}

LayerWork Layer::forward_work() const {
  LayerWork work{.bytes = element_bytes(output()->data)};
  for (const Value* input : inputs()) work.bytes += element_bytes(input->data);
  return work;
}

LayerWork Layer::backward_work(std::span<const GradTarget> grads) const {
  LayerWork work{.bytes = element_bytes(output()->grad)};
  const LayerTraits known = traits();
  if (known.reads_input) work.bytes += element_bytes(inputs()[0]->data);
  if (known.reads_other_inputs) {
    for (const Value* input : inputs().subspan(1)) work.bytes += element_bytes(input->data);
  }
  if (known.reads_output) work.bytes += element_bytes(output()->data);
  for (const GradTarget& target : grads) work.bytes += element_bytes(target);
  return work;
}

std::string Layer::export_onnx(OnnxGraph&) const {
  throw Error(lockstep::concat(name(), " (", class_name(*this),
                               "): this layer does not say what it is in ONNX; one of your own "
                               "overrides Layer::export_onnx (lockstep/nn/onnx.h)"));
}

void add_parameter_gradient(Backend& backend, const StepContext& context, const Tensor& by_sample,
                            const Parameter& parameter) {
  const std::int64_t batch = by_sample.shape.batch();
  LOCKSTEP_CHECK(by_sample.shape.elements() == batch * parameter.elements, parameter.name,
                 ": expected a gradient of ", parameter.elements, " elements of each sample, got ",
                 to_string(by_sample.shape));
  for_each_gradient_part(context, batch, [&](const GradientPart& part) {
    backend.sums().sum_over_images(by_sample.sample_range(part.first, part.count),
                                   gradient(&parameter, part));
  });
}

LayerWork forward_work_with_weights(const Layer& layer, std::int64_t weights, std::int64_t rows) {
  LayerWork work = layer.Layer::forward_work();
  work.bytes += static_cast<double>(weights) * sizeof(float);
  work.flops = 2 * static_cast<double>(rows) * static_cast<double>(weights);
  return work;
}

// The weights' gradient reads x and dy and adds to dw; the input's reads dy and w and writes dx.
LayerWork backward_work_with_weights(const Layer& layer, std::int64_t weights, std::int64_t rows,
                                     std::span<const GradTarget> grads) {
  const double flops = 2 * static_cast<double>(rows) * static_cast<double>(weights);
  const double weight_bytes = static_cast<double>(weights) * sizeof(float);
  const double grad_y = element_bytes(layer.output()->grad);
  LayerWork work{.bytes = element_bytes(layer.inputs()[0]->data) + grad_y + 2 * weight_bytes,
                 .flops = flops};
  if (grads[0].tensor) {
    work.bytes += grad_y + weight_bytes + element_bytes(grads[0]);
    work.flops += flops;
  }
  return work;
}

std::string class_name(const Layer& layer) {
  const char* mangled = typeid(layer).name();
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  return name == nullptr ? mangled : name.get();
}

}  // namespace lockstep
