#pragma once
// Bilinear interpolation to the height and width of the output.

#include "lockstep/nn/layer.h"

namespace lockstep {

class UpsampleLayer : public Layer {
 public:
  UpsampleLayer(std::string name, Value* input, Value* output, bool align_corners);

  BackwardReads backward_reads() const override { return {}; }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;

 private:
  bool align_corners_;
};

}  // namespace lockstep
