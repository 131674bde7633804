#pragma once
// The operations of a GPU that are kernels of this folder; what remains for a subclass is memory
// and convolution. CudaBackend adds those of a real GPU, and the tests add host memory, so that the
// same launchers run under the emulation.

#include "kernels/primitives/context.h"
#include "lockstep/backend/backend.h"

namespace lockstep::gpu {

/// Used by one replica's thread, as every Backend. All operations are issued to the context's
/// stream.
class GpuOperations : public Backend {
 public:
  /// BackendOptions::sums_by_image.
  explicit GpuOperations(bool sums_by_image = false) : by_image_(sums_by_image) {}

  bool sums_by_image() const override { return by_image_; }
  Stream stream() const { return context_.stream; }

  void fill(const Tensor& tensor, float value) override;
  void copy(const Tensor& source, const Tensor& destination, bool accumulate) override;

  void batch_norm_moments(const Tensor& x, float* slots, std::int64_t parts) override;
  void batch_norm_forward(const BatchNormForward& arguments) override;
  void batch_norm_inference(const BatchNormInference& arguments) override;
  void batch_norm_backward_reduce(const BatchNormBackwardReduce& arguments) override;
  void batch_norm_backward_apply(const BatchNormBackwardApply& arguments) override;

  void relu_forward(const Tensor& x, const Tensor& y) override;
  void relu_backward(const Tensor& y, const Tensor& grad_y, const Tensor& grad_x,
                     bool accumulate) override;
  void add(const Tensor& a, const Tensor& b, const Tensor& y) override;
  void dropout(const Tensor& x, const Tensor& y, float p, DeviceScalar<std::uint64_t> seed,
               std::int64_t sample_offset, bool accumulate) override;
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

  void sum_over_batch(const Tensor& x, float* slot) override;
  void broadcast_sum(std::span<const StatSlot> slots, const Tensor& y, bool accumulate) override;

  void cross_entropy(const CrossEntropy& arguments) override;
  void mean_squared_error(const MeanSquaredError& arguments) override;
  void reset_sums(double* sums, int count) override;
  void confusion_matrix(const Tensor& logits, const Tensor& labels, std::int64_t* matrix) override;
  void check_gradients(const GradientCheck& check) override;
  void optimizer_update(const OptimizerShard& shard) override;
  void update_loss_scale(const LossScaleUpdate& update) override;

 protected:
  /// Filled by the subclass's constructor.
  Context& context() { return context_; }

  /// Called before each operation; a subclass makes its device the thread's current one here.
  virtual void enter() {}

 private:
  const Context& entered() {
    enter();
    return context_;
  }
  void check_parts(const char* operation, bool whole) const;

  const bool by_image_;
  Context context_;
};

}  // namespace lockstep::gpu
