#pragma once
// BatchNorm in training: partial moments of the local rows, an exchange if the mode asks for one,
// then normalise (+ add, + ReLU). local, sync and ghost differ only in which slots are merged.

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/nn/network.h"
#include "lockstep/sync/exchange.h"
#include "nn/norms/batch_norm_parts.h"

namespace lockstep {

class BatchNormLayer : public Layer {
 public:
  struct Config {
    NormLayer norm;
    bool relu = false;
    int call_index = 0;  // of this BatchNorm call in the network's forward order
  };

  /// inputs: x, or x and the residual. `weight`, `bias` null when not affine. `states`: running
  /// statistics of the first slices of a device, which evaluation uses the first of; none where
  /// they are not tracked.
  BatchNormLayer(std::string name, std::vector<Value*> inputs, Value* output, const Config& config,
                 Parameter* weight, Parameter* bias, std::vector<BatchNormState*> states);

  std::vector<const Parameter*> parameters() const override { return affine_.parameters(); }
  LayerTraits traits() const override;
  LayerWork forward_work() const override;
  LayerWork backward_work(std::span<const GradTarget> grads) const override;
  void set_saved(void* memory) override { memory_.bind(memory); }
  void prepare(Backend& backend, bool training) override;
  /// Throws Error naming the layer when the merged count is 1 ("needs more than one value per
  /// channel").
  void forward(Backend& backend, const StepContext& context) override;
  void forward_again(Backend& backend, const StepContext& context) override;
  void backward(Backend& backend, const StepContext& context,
                std::span<const GradTarget> grads) override;
  std::string export_onnx(OnnxGraph& graph) const override;

  /// The convolution before writes its output normalised where the running statistics are used.
  /// Set-up only.
  void leave_to_convolution() { left_to_convolution_ = true; }
  /// From the next pass on a frozen layer. Without running statistics it stays what it is.
  void freeze();
  /// What an evaluation asks of the backend; none where it normalises by the batch.
  std::optional<BatchNormInference> inference(const StepContext& context) const;

  const Config& config() const { return config_; }
  /// The device's; null where running statistics are not tracked.
  BatchNormState* state() const { return states_.state_of(0); }

  /// Partial statistics of this replica in the last training forward pass, for reports: one slot
  /// per slice (BatchNormOptions::slices), in device memory. Valid until the next forward.
  std::span<const StatSlot> local_moments() const { return local_; }
  /// Makes `local_moments` refer to the present batch, after a forward pass that was replayed from
  /// a recording.
  void set_local_moments(const StepContext& context);

 private:
  const BatchNormOptions& options() const { return config_.norm.options; }
  std::int64_t channels() const { return output()->shape.channels(); }
  /// The output is read only where a residual was added before the ReLU; else its mask comes from
  /// x.
  bool masks_by_output() const { return config_.relu && inputs().size() == 2; }
  bool uses_running_statistics(const StepContext& context) const;
  bool synchronizes() const { return options().statistics() == StatisticsOf::kDevices; }
  /// Whose statistics a call normalises by, with this device's.
  Communicator& communicator(const StepContext& context) const;
  const BatchSlices& slices(const StepContext& context) const;
  NormSlice slice(int index, const StepContext& context) const;
  /// Sets the slice's pointers to its memory.
  void place(int index, const StepContext& context, NormSlice& slice) const;
  /// What the backend is asked for to normalise a slice by these statistics.
  BatchNormForward forward_of(const NormSlice& slice, std::span<const StatSlot> slots) const;

  void forward_by_batch(NormOperations& norms, const StepContext& context);
  void normalize_slice(NormOperations& norms, const StepContext& context, int index);
  void forward_by_running_statistics(Backend& backend, const StepContext& context);
  void backward_slice(Backend& backend, const StepContext& context, int index,
                      std::span<const GradTarget> grads);

  Config config_;
  NormAffine affine_;
  NormStates states_;
  NormMemory memory_;            // of slices in training
  Exchange exchange_;            // of the first slice: those that synchronize have no other
  std::vector<StatSlot> local_;  // [slice]
  std::int64_t images_ = 0;      // of the last forward pass
  bool keeps_for_backward_ = false;
  bool by_image_ = false;  // Backend::sums_by_image
  bool left_to_convolution_ = false;
};

/// Every BatchNorm call of a network, in forward order.
std::span<BatchNormLayer* const> batch_norms_of(const Network& network);

}  // namespace lockstep
