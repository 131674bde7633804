#pragma once
// Max- and average-pooling.

#include "lockstep/nn/layer.h"

namespace lockstep {

/// Keeps one byte per output element, the position of the maximum in its window.
class MaxPoolLayer : public Layer {
 public:
  MaxPoolLayer(std::string name, Value* input, Value* output, const PoolGeometry& geometry);

  BackwardReads backward_reads() const override { return {}; }
  std::size_t saved_bytes() const override;
  LayerWork forward_work() const override;
  LayerWork backward_work(std::span<const GradTarget> grads) const override;
  void set_saved(void* memory) override { winners_ = memory; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  Tensor winners() const;

  PoolGeometry geometry_;
  void* winners_ = nullptr;
};

class AvgPoolLayer : public Layer {
 public:
  AvgPoolLayer(std::string name, Value* input, Value* output, const PoolGeometry& geometry);

  BackwardReads backward_reads() const override { return {}; }
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

  BackwardReads backward_reads() const override { return {}; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;
};

}  // namespace lockstep
