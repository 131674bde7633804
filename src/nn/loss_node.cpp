#include "nn/loss_node.h"

namespace lockstep {

LossNode::LossNode(const NamedLoss& loss, const Network& network, Backend& backend)
    : loss_(loss),
      index_(network.output_index(loss.output)),
      classes_(network.output(index_).shape.channels()) {
  const std::vector<float>& weights = cross_entropy().class_weight;
  if (weights.empty()) return;
  if (weights.size() != static_cast<std::size_t>(classes_)) {
    throw ConfigError(concat("loss.class_weight has ", weights.size(), " values for ", classes_,
                             " classes; give one per class, or none"));
  }
  class_weight_ = backend.allocate(weights.size() * sizeof(float));
  backend.upload(Tensor(class_weight_.data(), Shape{1, classes_}), weights.data());
  backend.synchronize();
}

Tensor LossNode::labels(const Network& network, void* memory) const {
  const Shape& logits = network.output(index_).shape;
  return {memory, logits.with_channels(1), DType::kUInt8};
}

CrossEntropy LossNode::arguments(const Network& network, const Tensor& labels, double* loss) const {
  CrossEntropy arguments;
  arguments.logits = network.output(index_);
  arguments.labels = labels;
  arguments.ignore_index = cross_entropy().ignore_index;
  arguments.loss = loss;
  return arguments;
}

void LossNode::forward_backward(const Network& network, const Tensor& labels,
                                DeviceScalar<double> normalizer, DeviceScalar<float> grad_scale,
                                double* loss, double* image_losses) const {
  CrossEntropy cross_entropy = arguments(network, labels, loss);
  cross_entropy.image_losses = image_losses;
  cross_entropy.class_weight = static_cast<const float*>(class_weight_.data());
  cross_entropy.normalizer = normalizer;
  cross_entropy.grad_logits = network.output_grad(index_);
  cross_entropy.grad_scale = grad_scale;
  network.backend().cross_entropy(cross_entropy);
}

void LossNode::evaluate(const Network& network, const Tensor& labels, double* loss) const {
  network.backend().cross_entropy(arguments(network, labels, loss));
}

double loss_normalizer(const Loss& loss, std::span<const std::int64_t> label_counts) {
  const auto& cross_entropy = std::get<CrossEntropyLoss>(loss);
  const std::vector<float>& weights = cross_entropy.class_weight;
  double sum = 0;
  for (std::size_t c = 0; c < label_counts.size(); ++c) {
    const double weight = weights.empty() ? 1.0 : static_cast<double>(weights[c]);
    sum += static_cast<double>(label_counts[c]) * weight;
  }
  return sum / static_cast<double>(cross_entropy.weight);
}

}  // namespace lockstep
