#include "kernels/operations/gpu_operations.h"

#include "kernels/operations/batch_norm.h"
#include "kernels/operations/batch_sum.h"
#include "kernels/operations/image_sums.h"
#include "kernels/operations/loss.h"
#include "kernels/operations/loss_scale.h"
#include "kernels/operations/optimizer.h"
#include "kernels/operations/pointwise.h"
#include "kernels/operations/pooling.h"
#include "kernels/operations/upsample.h"

namespace lockstep::gpu {
namespace {

/// One image of a tensor; null of a null one.
Tensor sample(const Tensor& tensor, std::int64_t image) {
  return tensor ? tensor.sample_range(image, 1) : tensor;
}

}  // namespace

void GpuOperations::check_parts(const char* operation, bool whole) const {
  LOCKSTEP_CHECK(whole || by_image_, operation, ": this GPU does not keep sums image by image; ",
                 "make its backend with BackendOptions::sums_by_image = true");
}

void GpuOperations::fill(const Tensor& tensor, float value) { gpu::fill(entered(), tensor, value); }

void GpuOperations::copy(const Tensor& source, const Tensor& destination, bool accumulate) {
  gpu::copy(entered(), source, destination, accumulate);
}

void GpuOperations::batch_norm_moments(const Tensor& x, float* slots, std::int64_t parts) {
  check_parts("batch_norm_moments", parts == 1);
  gpu::batch_norm_moments(entered(), x, slots, parts);
}

void GpuOperations::batch_norm_forward(const BatchNormForward& arguments) {
  check_parts("batch_norm_forward", are_whole(arguments.slots));
  gpu::batch_norm_forward(entered(), arguments);
}

void GpuOperations::batch_norm_inference(const BatchNormInference& arguments) {
  gpu::batch_norm_inference(entered(), arguments);
}

void GpuOperations::batch_norm_backward_reduce(const BatchNormBackwardReduce& arguments) {
  check_parts("batch_norm_backward_reduce", arguments.parts == 1);
  gpu::batch_norm_backward_reduce(entered(), arguments);
}

void GpuOperations::batch_norm_backward_apply(const BatchNormBackwardApply& arguments) {
  check_parts("batch_norm_backward_apply", are_whole(arguments.slots));
  gpu::batch_norm_backward_apply(entered(), arguments);
}

void GpuOperations::relu_forward(const Tensor& x, const Tensor& y) {
  gpu::relu_forward(entered(), x, y);
}

void GpuOperations::relu_backward(const Tensor& y, const Tensor& grad_y, const Tensor& grad_x,
                                  bool accumulate) {
  gpu::relu_backward(entered(), y, grad_y, grad_x, accumulate);
}

void GpuOperations::add(const Tensor& a, const Tensor& b, const Tensor& y) {
  gpu::add(entered(), a, b, y);
}

void GpuOperations::dropout(const Tensor& x, const Tensor& y, float p,
                            DeviceScalar<std::uint64_t> seed, std::int64_t sample_offset,
                            bool accumulate) {
  gpu::dropout(entered(), x, y, p, seed, sample_offset, accumulate);
}

void GpuOperations::max_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y,
                                     const Tensor& winners) {
  gpu::max_pool_forward(entered(), geometry, x, y, winners);
}

void GpuOperations::max_pool_backward(const PoolGeometry& geometry, const Tensor& winners,
                                      const Tensor& grad_y, const Tensor& grad_x, bool accumulate) {
  gpu::max_pool_backward(entered(), geometry, winners, grad_y, grad_x, accumulate);
}

void GpuOperations::avg_pool_forward(const PoolGeometry& geometry, const Tensor& x,
                                     const Tensor& y) {
  gpu::avg_pool_forward(entered(), geometry, x, y);
}

void GpuOperations::avg_pool_backward(const PoolGeometry& geometry, const Tensor& grad_y,
                                      const Tensor& grad_x, bool accumulate) {
  gpu::avg_pool_backward(entered(), geometry, grad_y, grad_x, accumulate);
}

void GpuOperations::adaptive_avg_pool_forward(const Tensor& x, const Tensor& y) {
  gpu::adaptive_avg_pool_forward(entered(), x, y);
}

void GpuOperations::adaptive_avg_pool_backward(const Tensor& grad_y, const Tensor& grad_x,
                                               bool accumulate) {
  gpu::adaptive_avg_pool_backward(entered(), grad_y, grad_x, accumulate);
}

void GpuOperations::upsample_bilinear_forward(const Tensor& x, const Tensor& y,
                                              bool align_corners) {
  gpu::upsample_bilinear_forward(entered(), x, y, align_corners);
}

void GpuOperations::upsample_bilinear_backward(const Tensor& grad_y, const Tensor& grad_x,
                                               bool align_corners, bool accumulate) {
  gpu::upsample_bilinear_backward(entered(), grad_y, grad_x, align_corners, accumulate);
}

void GpuOperations::sum_over_batch(const Tensor& x, float* slot) {
  gpu::sum_over_batch(entered(), x, slot);
}

void GpuOperations::broadcast_sum(std::span<const StatSlot> slots, const Tensor& y,
                                  bool accumulate) {
  check_parts("broadcast_sum", are_whole(slots));
  gpu::broadcast_sum(entered(), slots, y, accumulate);
}

void GpuOperations::cross_entropy(const CrossEntropy& arguments) {
  check_parts("cross_entropy", arguments.image_losses == nullptr);
  if (!by_image_) return gpu::cross_entropy(entered(), arguments);
  const Context& on = entered();
  add_losses_by_image(on, arguments.logits.shape.batch(), arguments.image_losses, arguments.loss,
                      [&](std::int64_t image, double* loss) {
                        CrossEntropy one = arguments;
                        one.logits = sample(arguments.logits, image);
                        one.labels = sample(arguments.labels, image);
                        one.grad_logits = sample(arguments.grad_logits, image);
                        one.loss = loss;
                        gpu::cross_entropy(on, one);
                      });
}

void GpuOperations::mean_squared_error(const MeanSquaredError& arguments) {
  check_parts("mean_squared_error", arguments.image_losses == nullptr);
  if (!by_image_) return gpu::mean_squared_error(entered(), arguments);
  const Context& on = entered();
  add_losses_by_image(on, arguments.output.shape.batch(), arguments.image_losses, arguments.loss,
                      [&](std::int64_t image, double* loss) {
                        MeanSquaredError one = arguments;
                        one.output = sample(arguments.output, image);
                        one.target = sample(arguments.target, image);
                        one.grad_output = sample(arguments.grad_output, image);
                        one.loss = loss;
                        gpu::mean_squared_error(on, one);
                      });
}

void GpuOperations::reset_sums(double* sums, int count) { gpu::reset_sums(entered(), sums, count); }

void GpuOperations::confusion_matrix(const Tensor& logits, const Tensor& labels,
                                     std::int64_t* matrix) {
  gpu::confusion_matrix(entered(), logits, labels, matrix);
}

void GpuOperations::check_gradients(const GradientCheck& check) {
  gpu::check_gradients(entered(), check);
}

void GpuOperations::update_loss_scale(const LossScaleUpdate& update) {
  gpu::update_loss_scale(entered(), update);
}

void GpuOperations::optimizer_update(const OptimizerShard& shard) {
  check_parts("optimizer_update", shard.joins.empty() && shard.block_squares == nullptr);
  gpu::optimizer_update(entered(), shard);
}

}  // namespace lockstep::gpu
