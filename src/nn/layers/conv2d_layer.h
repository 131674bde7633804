#pragma once
// A 2-D convolution with an optional bias, or a linear layer: a 1x1 convolution over rows of any
// shape. The gradient of the input is left out where nobody needs it.

#include "lockstep/nn/layer.h"

namespace lockstep {

class BatchNormLayer;

class Conv2dLayer : public Layer {
 public:
  /// `bias` null for none.
  Conv2dLayer(std::string name, Value* input, Value* output, const ConvGeometry& geometry,
              Parameter* weight, Parameter* bias);

  std::vector<const Parameter*> parameters() const override;
  LayerTraits traits() const override {
    return {.reads_input = true,
            .accumulates_from = 1,
            .prefers_dense = true,
            .splits_backward = true,
            .by_image = true};
  }
  LayerWork forward_work() const override;
  LayerWork backward_work(std::span<const GradTarget> grads) const override;
  void prepare(Backend& backend, bool training) override;
  void list_weights(std::vector<ConvWeights>& weights) const override;
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  void backward_weights(Backend& backend, const StepContext& context) override;
  std::optional<Positions> reads(Positions output, int axis) const override;
  std::string export_onnx(OnnxGraph& graph) const override;

  /// Whether a BatchNorm behind it is better done here, in an evaluation of the planned batch.
  bool can_normalize(const ConvolutionOperations& convolutions, DType dtype) const;
  /// Does the work of the BatchNorm behind it, the only reader of this output, wherever that uses
  /// running statistics. Set-up only. REQUIRES: can_normalize, no backward pass.
  void take_over(BatchNormLayer& batch_norm);

  const ConvGeometry& geometry() const { return geometry_; }

 private:
  ConvGeometry geometry_;
  Parameter* weight_;
  Parameter* bias_;
  const BatchNormLayer* batch_norm_ = nullptr;  // taken over
};

}  // namespace lockstep
