#pragma once
// GroupNorm, and with it InstanceNorm and a norm of all channels: every image and group of channels
// by itself. Evaluation is as training, and nothing is exchanged.

#include <string>
#include <vector>

#include "nn/norms/batch_norm_parts.h"

namespace lockstep {

class GroupNormLayer : public Layer {
 public:
  struct Config {
    std::int64_t groups = 1;  // which divide the channels
    float eps = 1e-5F;
    EpsMode eps_mode = EpsMode::kAdd;
    bool relu = false;
  };

  /// inputs: x, or x and the residual. `weight`, `bias` null when not affine. Throws Error naming
  /// the layer where a group has one value.
  GroupNormLayer(std::string name, std::vector<Value*> inputs, Value* output, const Config& config,
                 Parameter* weight, Parameter* bias);

  std::vector<const Parameter*> parameters() const override { return affine_.parameters(); }
  LayerTraits traits() const override;
  LayerWork backward_work(std::span<const GradTarget> grads) const override;
  void set_saved(void* memory) override { saved_ = static_cast<float*>(memory); }
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::optional<Positions> reads(Positions, int) const override { return std::nullopt; }
  std::string export_onnx(OnnxGraph& graph) const override;

  const Config& config() const { return config_; }

 private:
  std::int64_t channels() const { return output()->shape.channels(); }
  std::int64_t images() const { return output()->data.shape.batch(); }
  bool masks_by_output() const { return config_.relu && inputs().size() == 2; }
  /// Behind what is saved of as many images as were planned.
  float* work() const { return saved_ + output()->shape.batch() * 3 * channels(); }
  void backward_part(NormOperations& norms, const GradientPart& part,
                     std::span<const GradTarget> grads) const;
  std::string normalized_onnx(OnnxGraph& graph) const;

  Config config_;
  NormAffine affine_;
  float* saved_ = nullptr;
};

}  // namespace lockstep
