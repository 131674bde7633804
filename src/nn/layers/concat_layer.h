#pragma once
// Concatenation along channels. An input that the memory plan has placed inside the output is not
// copied, and neither is its gradient.

#include "lockstep/nn/layer.h"

namespace lockstep {

class ConcatLayer : public Layer {
 public:
  ConcatLayer(std::string name, std::vector<Value*> inputs, Value* output);

  LayerTraits traits() const override { return {.concatenates = true}; }
  LayerWork forward_work() const override;
  LayerWork backward_work(std::span<const GradTarget> grads) const override;
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;
};

}  // namespace lockstep
