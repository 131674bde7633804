#pragma once
// Max- and average-pooling.

#include "lockstep/nn/layer.h"

namespace lockstep {

/// Keeps one byte per output element, the position of the maximum in its window.
class MaxPoolLayer : public Layer {
 public:
  MaxPoolLayer(std::string name, Value* input, Value* output, const PoolGeometry& geometry);

  LayerTraits traits() const override;
  LayerWork forward_work() const override;
  LayerWork backward_work(std::span<const GradTarget> grads) const override;
  void set_saved(void* memory) override { argmax_ = memory; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  Tensor argmax() const;

  PoolGeometry geometry_;
  void* argmax_ = nullptr;
};

class AvgPoolLayer : public Layer {
 public:
  AvgPoolLayer(std::string name, Value* input, Value* output, const PoolGeometry& geometry);

  LayerTraits traits() const override { return {}; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  PoolGeometry geometry_;
};

class AdaptiveAvgPoolLayer : public Layer {
 public:
  AdaptiveAvgPoolLayer(std::string name, Value* input, Value* output);

  LayerTraits traits() const override { return {}; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;
};

}  // namespace lockstep
