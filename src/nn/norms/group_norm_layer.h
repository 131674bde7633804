#pragma once
// GroupNorm, and with it InstanceNorm and a norm of all channels: every image and group of channels
// by itself. It is BatchNorm of slices of one image each whose channels put their statistics
// together; evaluation is as training, and nothing is exchanged.

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
  void set_saved(void* memory) override { memory_.bind(memory); }
  void prepare(Backend& backend, bool training) override;
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
  NormSlice image(int index) const;
  void forward_image(NormOperations& norms, const NormSlice& image) const;
  void backward_image(Backend& backend, const StepContext& context, int index,
                      std::span<const GradTarget> grads) const;
  std::string normalized_onnx(OnnxGraph& graph) const;

  Config config_;
  NormAffine affine_;
  NormMemory memory_;      // of slices of an image each
  bool by_image_ = false;  // Backend::sums_by_image
};

}  // namespace lockstep
