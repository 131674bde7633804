#pragma once
// The operations of a GPU that are kernels of this folder, a class for each family, each operation
// defined in the .cu of its kernels. They are issued to the context's stream. The public header of
// a family says what each does. Activations may be fp32, bf16 or fp16, one type within a call but
// for `copy`; statistics, parameters and losses are fp32 or wider. Bits are the CPU's where
// formulas.h says so.

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "backend/operand_checks.h"
#include "kernels/device/device.h"
#include "kernels/device/host_waits.h"
#include "kernels/primitives/context.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"

namespace lockstep::gpu {

/// Slots with rows that one call may merge. Throws Error for more: those must be merged beforehand.
inline constexpr int kMaxStatSlots = 64;
/// At most this many ranks share an optimizer step.
inline constexpr int kMaxRanks = 64;

/// Whether no slot has several parts.
inline bool are_whole(std::span<const StatSlot> slots) {
  return std::ranges::all_of(slots, [](const StatSlot& slot) { return slot.parts == 1; });
}

/// Throws Error where sums of several images or parts are asked for that this GPU does not keep.
inline void check_parts(const Context& context, const char* operation, bool whole) {
  LOCKSTEP_CHECK(whole || context.sums_by_image, operation,
                 ": this GPU does not keep sums image by image; ",
                 "make its backend with BackendOptions::sums_by_image = true");
}

/// Several parts or images are one launch, and slots of several parts are merged by one of their
/// own.
class GpuNorms final : public NormOperations {
 public:
  explicit GpuNorms(const Context& context) : context_(context) {}

  void batch_norm_moments(const Tensor& x, float* slots, std::int64_t parts) override;
  void batch_norm_forward(const BatchNormForward& arguments) override;
  void batch_norm_inference(const BatchNormInference& arguments) override;
  void batch_norm_backward_reduce(const BatchNormBackwardReduce& arguments) override;
  void batch_norm_backward_apply(const BatchNormBackwardApply& arguments) override;
  void group_norm_forward(const GroupNormForward& arguments) override;
  void group_norm_backward(const GroupNormBackward& arguments) override;
  void batch_renorm_correction(const BatchRenormCorrection& arguments) override;
  void batch_renorm_gradient(const BatchRenormGradient& arguments) override;

 private:
  const Context& context_;
};

class GpuActivations final : public ActivationOperations {
 public:
  explicit GpuActivations(const Context& context) : context_(context) {}

  void activation_forward(const Activation& activation, const Tensor& x, const Tensor& y) override;
  void activation_backward(const Activation& activation, const Tensor& saved, const Tensor& grad_y,
                           const Tensor& grad_x, bool accumulate) override;
  void binary_forward(BinaryKind kind, const Tensor& a, const Tensor& b, const Tensor& y) override;
  void binary_backward_left(BinaryKind kind, const Tensor& a, const Tensor& b, const Tensor& grad_y,
                            const Tensor& grad_a, bool accumulate) override;
  void binary_backward_right(BinaryKind kind, const Tensor& a, const Tensor& grad_y,
                             const Tensor& grad_b, bool accumulate) override;
  void softmax_forward(const Tensor& x, const Tensor& y) override;
  void softmax_backward(const Tensor& y, const Tensor& grad_y, const Tensor& grad_x,
                        bool accumulate) override;
  void dropout(const Tensor& x, const Tensor& y, float p, DeviceScalar<std::uint64_t> seed,
               std::int64_t sample_offset, bool accumulate) override;

 private:
  const Context& context_;
};

class GpuPooling final : public PoolingOperations {
 public:
  explicit GpuPooling(const Context& context) : context_(context) {}

  void max_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y,
                        const Tensor& winners) override;
  void max_pool_backward(const PoolGeometry& geometry, const Tensor& winners, const Tensor& grad_y,
                         const Tensor& grad_x, bool accumulate) override;
  void avg_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y) override;
  void avg_pool_backward(const PoolGeometry& geometry, const Tensor& grad_y, const Tensor& grad_x,
                         bool accumulate) override;
  void adaptive_avg_pool_forward(const Tensor& x, const Tensor& y) override;
  void adaptive_avg_pool_backward(const Tensor& grad_y, const Tensor& grad_x,
                                  bool accumulate) override;
  void upsample_bilinear_forward(const Tensor& x, const Tensor& y, bool align_corners) override;
  void upsample_bilinear_backward(const Tensor& grad_y, const Tensor& grad_x, bool align_corners,
                                  bool accumulate) override;

 private:
  const Context& context_;
};

class GpuSums final : public SumOperations {
 public:
  explicit GpuSums(const Context& context) : context_(context) {}

  void sum_over_batch(const Tensor& x, float* slot) override;
  void broadcast_sum(std::span<const StatSlot> slots, const Tensor& y, bool accumulate) override;
  void sum_over_images(const Tensor& x, float* sum) override;
  void reset_sums(double* sums, int count) override;

 private:
  const Context& context_;
};

/// At most 4096 classes. A label that is neither a class nor ignored cannot be reported without
/// waiting for the GPU: it makes the loss, and its pixel's gradient, NaN. Dice takes such a pixel
/// as one of no class.
class GpuLosses final : public LossOperations {
 public:
  explicit GpuLosses(const Context& context) : context_(context) {}

  void cross_entropy(const CrossEntropy& arguments) override;
  bool computes(const ElementFormula& formula) const override;
  void element_losses(const ElementLosses& arguments) override;
  void label_probabilities(const LabelProbabilities& arguments) override;
  void ohem_count(const OhemCount& count) override;
  void ohem_narrow(const OhemNarrow& narrow) override;
  void ohem_choose(const OhemChoice& choice) override;
  void ohem_share(const OhemShare& share) override;
  void dice_sums(const DiceSums& arguments) override;
  void dice_losses(const DiceLosses& arguments) override;
  void confusion_matrix(const Tensor& logits, const Tensor& labels, std::int64_t* matrix) override;

 private:
  const Context& context_;
};

/// Reads and writes all ranks' memory in place.
class GpuOptimizer : public OptimizerOperations {
 public:
  explicit GpuOptimizer(const Context& context) : context_(context) {}

  void check_gradients(const GradientCheck& check) override;
  void optimizer_update(const OptimizerShard& shard) override;
  void gradient_squares(const OptimizerShard& shard, double* squares) override;
  void clip_factor(const ClipFactor& clip) override;
  void average_weights(const WeightAverage& average) override;
  void update_loss_scale(const LossScaleUpdate& update) override;

 protected:
  const Context& context() const { return context_; }

 private:
  const Context& context_;
};

/// A backend with these operations. What remains for a subclass is memory, convolutions, and whose
/// memory the optimizer reaches: CudaBackend adds those of a real GPU, and the tests add host
/// memory, so that the same operations run under the emulation. Used by one replica's thread.
class GpuOperations : public Backend {
 public:
  bool sums_by_image() const override { return context_.sums_by_image; }
  Stream stream() const { return context_.stream; }
  /// What the replica's thread waits for its device by.
  const std::shared_ptr<HostWaits>& waits() const { return waits_; }
  /// What the stream is given from now on waits for the event.
  void wait_for(const Event& event) {
    event.make_wait(stream());
    follow_no_kernel();
  }
  /// Says that the stream was given something that is no kernel.
  void follow_no_kernel() { context_.behind_no_kernel = true; }
  /// Where the kernels that write statistics write them as well; null: nowhere.
  void write_slots_to(std::shared_ptr<HostSlots> host) { context_.host_slots = std::move(host); }

  void fill(const Tensor& tensor, float value) override;
  void copy(const Tensor& source, const Tensor& destination, bool accumulate) override;

  NormOperations& norms() override { return norms_; }
  ActivationOperations& activations() override { return activations_; }
  PoolingOperations& pooling() override { return pooling_; }
  SumOperations& sums() override { return sums_; }
  LossOperations& losses() override { return losses_; }

 protected:
  /// Filled by the subclass's constructor.
  Context& context() { return context_; }

 private:
  Context context_;
  const std::shared_ptr<HostWaits> waits_ = std::make_shared<HostWaits>();
  GpuNorms norms_{context_};
  GpuActivations activations_{context_};
  GpuPooling pooling_{context_};
  GpuSums sums_{context_};
  GpuLosses losses_{context_};
};

}  // namespace lockstep::gpu
