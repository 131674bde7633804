#pragma once
// Bilinear interpolation to the height and width of the output.

#include "lockstep/nn/layer.h"

namespace lockstep {

class UpsampleLayer : public Layer {
 public:
  /// `like`: whose height and width the output always has; null: those of the output are fixed.
  UpsampleLayer(std::string name, Value* input, Value* output, bool align_corners,
                const Value* like);

  LayerTraits traits() const override { return {}; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;

 private:
  bool align_corners_;
  const Value* like_;
};

}  // namespace lockstep
