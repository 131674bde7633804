#pragma once
// BatchNorm in training: partial moments of the local rows, an exchange if the mode asks for one, then
// normalise (+ add, + ReLU). local, sync and virtual differ only in which slots are merged.

#include <cstdint>
#include <vector>

#include "lockstep/nn/batch_norm_options.h"
#include "lockstep/nn/layer.h"

namespace lockstep {

class BatchNormLayer : public Layer {
 public:
  struct Config {
    BatchNormOptions options;
    bool relu = false;
    bool frozen = false;  // running statistics also in training; never exchanges
    int call_index = 0;   // of this BatchNorm call in the network's forward order
  };

  /// inputs: x, or x and the residual. `weight`, `bias` null when not affine; `state` null when running
  /// statistics are not tracked.
  BatchNormLayer(std::string name, std::vector<Value*> inputs, Value* output, const Config& config,
                 Parameter* weight, Parameter* bias, BatchNormState* state);

  void prepare(Backend& backend, bool training) override;
  std::size_t saved_bytes() const override;
  void set_saved(void* memory) override;
  BackwardReads backward_reads() const override;
  bool grad_in_place() const override;
  /// Throws Error naming the layer when the merged count is 1 in training ("needs more than one value").
  void forward(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;

  const Config& config() const { return config_; }
  BatchNormState* state() const { return state_; }

  /// Partial statistics of this replica in the last training forward pass, for reports: one slot per slice
  /// (one unless the mode is virtual), each [2, C] device memory of (mean, M2). Valid until the next forward.
  std::span<const StatSlot> local_moments() const { return local_; }

 private:
  std::int64_t channels() const { return output()->shape.channels(); }

  Config config_;
  Parameter* weight_;
  Parameter* bias_;
  BatchNormState* state_;
  std::vector<StatSlot> local_;  // [slice]
  float* saved_ = nullptr;
};

}  // namespace lockstep
