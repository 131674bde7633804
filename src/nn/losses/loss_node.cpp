#include "nn/losses/loss_node.h"

#include <type_traits>
#include <variant>

namespace lockstep {
namespace {

void compute(Backend& backend, const CrossEntropy& arguments) { backend.cross_entropy(arguments); }
void compute(Backend& backend, const MeanSquaredError& arguments) {
  backend.mean_squared_error(arguments);
}

Tensor& gradient(CrossEntropy& arguments) { return arguments.grad_logits; }
Tensor& gradient(MeanSquaredError& arguments) { return arguments.grad_output; }

}  // namespace

LossNode::LossNode(const NamedLoss& loss, const Network& network, Backend& backend)
    : loss_(loss),
      index_(network.output_index(loss.output)),
      classes_(network.output(index_).shape.channels()) {
  if (cross_entropy() == nullptr || cross_entropy()->class_weight.empty()) return;
  const std::vector<float>& weights = cross_entropy()->class_weight;
  if (weights.size() != static_cast<std::size_t>(classes_)) {
    throw ConfigError(concat("CrossEntropyLoss::class_weight has ", weights.size(), " values for ",
                             classes_, " classes; give one per class, or none"));
  }
  class_weight_ = backend.allocate(weights.size() * sizeof(float));
  backend.upload(Tensor(class_weight_.data(), Shape{1, classes_}), weights.data());
  backend.synchronize();
}

Tensor LossNode::target(const Network& network, void* memory) const {
  const Shape& output = network.output(index_).shape;
  if (cross_entropy() == nullptr) return {memory, output};
  return {memory, output.with_channels(1), DType::kUInt16};
}

CrossEntropy LossNode::arguments(const CrossEntropyLoss& loss, const Network& network,
                                 const Tensor& labels) const {
  CrossEntropy arguments;
  arguments.logits = network.output(index_);
  arguments.labels = labels;
  arguments.ignore_index = loss.ignore_index;
  return arguments;
}

MeanSquaredError LossNode::arguments(const MeanSquaredErrorLoss&, const Network& network,
                                     const Tensor& target) const {
  MeanSquaredError arguments;
  arguments.output = network.output(index_);
  arguments.target = target;
  return arguments;
}

void LossNode::forward_backward(const Network& network, const Tensor& target,
                                DeviceScalar<double> normalizer, DeviceScalar<float> grad_scale,
                                double* loss, double* image_losses) const {
  std::visit(
      [&](const auto& kind) {
        auto operation = arguments(kind, network, target);
        operation.normalizer = normalizer;
        operation.grad_scale = grad_scale;
        operation.loss = loss;
        operation.image_losses = image_losses;
        gradient(operation) = network.output_grad(index_);
        if constexpr (std::is_same_v<decltype(operation), CrossEntropy>) {
          operation.class_weight = static_cast<const float*>(class_weight_.data());
        }
        compute(network.backend(), operation);
      },
      loss_.loss);
}

void LossNode::evaluate(const Network& network, const Tensor& target, double* loss) const {
  std::visit(
      [&](const auto& kind) {
        auto operation = arguments(kind, network, target);
        operation.loss = loss;
        compute(network.backend(), operation);
      },
      loss_.loss);
}

double loss_normalizer(const CrossEntropyLoss& loss, std::span<const std::int64_t> label_counts) {
  const std::vector<float>& weights = loss.class_weight;
  double sum = 0;
  for (std::size_t c = 0; c < label_counts.size(); ++c) {
    const double weight = weights.empty() ? 1.0 : static_cast<double>(weights[c]);
    sum += static_cast<double>(label_counts[c]) * weight;
  }
  return sum / static_cast<double>(loss.weight);
}

double loss_normalizer(const MeanSquaredErrorLoss& loss, std::int64_t elements) {
  return static_cast<double>(elements) / static_cast<double>(loss.weight);
}

}  // namespace lockstep
