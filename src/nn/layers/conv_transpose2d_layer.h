#pragma once
// A transposed 2-D convolution with an optional bias: the gradient of a convolution, forward. Its
// output is that convolution's input.

#include "lockstep/nn/layer.h"

namespace lockstep {

class ConvTranspose2dLayer : public Layer {
 public:
  /// `geometry`: of the convolution from the output's shape to the input's. `bias` null for none.
  ConvTranspose2dLayer(std::string name, Value* input, Value* output, const ConvGeometry& geometry,
                       Parameter* weight, Parameter* bias);

  std::vector<const Parameter*> parameters() const override;
  LayerTraits traits() const override;
  LayerWork forward_work() const override;
  LayerWork backward_work(std::span<const GradTarget> grads) const override;
  void set_saved(void* memory) override { bias_by_sample_ = memory; }
  void prepare(Backend& backend, bool training) override;
  void list_weights(std::vector<ConvWeights>& weights) const override;
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  void backward_weights(Backend& backend, const StepContext& context) override;
  std::optional<Positions> reads(Positions output, int axis) const override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  void backward_bias(Backend& backend, const StepContext& context) const;

  ConvGeometry geometry_;
  Parameter* weight_;
  Parameter* bias_;
  void* bias_by_sample_ = nullptr;  // [batch, out_channels], what each adds to the bias's gradient
};

}  // namespace lockstep
