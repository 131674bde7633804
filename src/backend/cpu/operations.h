#pragma once
// The operations of CPU devices, a class for each family. The files beside this one define them,
// those in conv/ the convolutions.
// All operations are done when they return. Parallel loops use the context's OpenMP threads and cut
// rows into ranges that depend on the thread count and the shape only, so results are reproducible.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/allocation_count.h"
#include "backend/operand_checks.h"
#include "lockstep/backend/backend.h"

namespace lockstep {

class ConvCache;  // the convolutions of a backend (conv/cache.h)

/// What the operations of one backend share: host threads, and memory of the device. Used by the
/// replica's thread.
class CpuContext {
 public:
  CpuContext(const Device& device, int threads);

  const Device& device() const { return device_; }
  int threads() const { return threads_; }
  const AllocationCount& allocated() const { return *allocated_; }

  /// Backend::allocate.
  Storage allocate(std::size_t bytes);
  /// Scratch memory of at least `bytes`, shared by all operations (none nests). It grows while
  /// shapes are new and then stays.
  void* scratch(std::size_t bytes);

 private:
  const Device device_;
  const int threads_;
  std::shared_ptr<AllocationCount> allocated_;  // shared with the release functions of Storage
  Storage scratch_;
};

class CpuConvolutions final : public ConvolutionOperations {
 public:
  /// `exact`: fp32 tensors by those alone that round no more than direct convolutions.
  CpuConvolutions(CpuContext& cpu, bool exact);
  ~CpuConvolutions() override;

  /// What choices between implementations hold for: the processor, and the libraries that compute.
  static std::string machine();
  /// What bf16 numbers are multiplied by on this processor: "AMX", "AVX512-BF16", or "" where fp32
  /// is as fast.
  static std::string bf16_products();

  void prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType dtype, bool backward,
                      bool grad_input) override;
  void conv2d_forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                      const float* bias, const Tensor& y) override;
  void conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y, const float* weight,
                            const Tensor& grad_x) override;
  void conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x, const Tensor& grad_y,
                               float* grad_weight, float* grad_bias) override;
  bool normalizes_in_convolution(const ConvGeometry& geometry, const Shape& input,
                                 DType dtype) const override;
  void conv2d_inference(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                        const float* bias, const BatchNormInference& normalization) override;

 private:
  class Parts;

  CpuContext& cpu_;
  std::unique_ptr<ConvCache> cache_;
};

struct GroupShape;

class CpuNorms final : public NormOperations {
 public:
  explicit CpuNorms(CpuContext& cpu) : cpu_(cpu) {}

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
  void group_norm_backward_image(const GroupNormBackward& a, const GroupShape& of,
                                 std::int64_t image, float* grads);

  CpuContext& cpu_;
};

class CpuActivations final : public ActivationOperations {
 public:
  explicit CpuActivations(CpuContext& cpu) : cpu_(cpu) {}

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
  CpuContext& cpu_;
};

class CpuPooling final : public PoolingOperations {
 public:
  explicit CpuPooling(CpuContext& cpu) : cpu_(cpu) {}

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
  CpuContext& cpu_;
};

class CpuSums final : public SumOperations {
 public:
  explicit CpuSums(CpuContext& cpu) : cpu_(cpu) {}

  void sum_over_batch(const Tensor& x, float* slot) override;
  void broadcast_sum(std::span<const StatSlot> slots, const Tensor& y, bool accumulate) override;
  void sum_over_images(const Tensor& x, float* sum) override;
  void reset_sums(double* sums, int count) override;

 private:
  CpuContext& cpu_;
};

class CpuLosses final : public LossOperations {
 public:
  explicit CpuLosses(CpuContext& cpu) : cpu_(cpu) {}

  void cross_entropy(const CrossEntropy& arguments) override;
  bool computes(const ElementFormula&) const override { return true; }
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
  CpuContext& cpu_;
};

class CpuOptimizer final : public OptimizerOperations {
 public:
  explicit CpuOptimizer(CpuContext& cpu) : cpu_(cpu) {}

  void check_gradients(const GradientCheck& check) override;
  void optimizer_update(const OptimizerShard& shard) override;
  void gradient_squares(const OptimizerShard& shard, double* squares) override;
  void clip_factor(const ClipFactor& clip) override;
  void average_weights(const WeightAverage& average) override;
  void update_loss_scale(const LossScaleUpdate& update) override;

 private:
  template <typename Element>
  void update_range(const OptimizerShard& shard, const Element& element,
                    const ParameterRange& range);

  CpuContext& cpu_;
};

}  // namespace lockstep
