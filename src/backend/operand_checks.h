#pragma once
// What every operation must be given, whatever the device: memory behind the operands that are not
// optional, rows that do not overlap, sizes that count something, and shapes and element types that
// fit each other. Each operation begins with its check, on every device, which then checks what it
// alone cannot do. All throw Error that names the operation and the operand.

#include <cstdint>
#include <span>

#include "lockstep/backend/backend.h"

namespace lockstep {

// --- memory

void check_fill(const Tensor& tensor);
void check_copy(const Tensor& source, const Tensor& destination, bool accumulate);
/// Of what is uploaded or downloaded, and of the memory on the host's side.
void check_transfer(const Tensor& tensor);
void check_transfer(const Tensor& tensor, const void* host);

// --- convolutions

void check_prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType dtype);
void check_prepack_conv2d_weights(std::span<const ConvWeights> weights);
/// Where the pass computes or reads their gradients, these stand for x, weight and y.
void check_conv2d(ConvPass pass, const ConvGeometry& geometry, const Tensor& x, const float* weight,
                  const Tensor& y);
void check_conv2d_inference(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                            const BatchNormInference& normalization);

// --- norms

void check_batch_norm_moments(const Tensor& x, const float* slots, std::int64_t parts);
void check_operands(const BatchNormForward& a);
void check_operands(const BatchNormInference& a);
void check_operands(const BatchNormBackwardReduce& a);
void check_operands(const BatchNormBackwardApply& a);
void check_operands(const GroupNormForward& a);
void check_operands(const GroupNormBackward& a);
void check_operands(const BatchRenormCorrection& a);
void check_operands(const BatchRenormGradient& a);

// --- activations

void check_activation_forward(const Tensor& x, const Tensor& y);
void check_activation_backward(const Tensor& saved, const Tensor& grad_y, const Tensor& grad_x);
void check_binary_forward(const Tensor& a, const Tensor& b, const Tensor& y);
void check_binary_backward_left(const Tensor& a, const Tensor& b, const Tensor& grad_y,
                                const Tensor& grad_a);
void check_binary_backward_right(const Tensor& a, const Tensor& grad_y, const Tensor& grad_b);
void check_softmax_forward(const Tensor& x, const Tensor& y);
void check_softmax_backward(const Tensor& y, const Tensor& grad_y, const Tensor& grad_x);
void check_dropout(const Tensor& x, const Tensor& y, float p);

// --- pooling and interpolation

void check_max_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y,
                            const Tensor& winners);
void check_max_pool_backward(const PoolGeometry& geometry, const Tensor& winners,
                             const Tensor& grad_y, const Tensor& grad_x);
void check_avg_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y);
void check_avg_pool_backward(const PoolGeometry& geometry, const Tensor& grad_y,
                             const Tensor& grad_x);
/// Of adaptive pooling and interpolation, by name: they make an image of another size.
void check_resize_forward(const char* operation, const Tensor& x, const Tensor& y);
void check_resize_backward(const char* operation, const Tensor& grad_y, const Tensor& grad_x);

// --- sums

void check_sum_over_batch(const Tensor& x, const float* slot);
void check_broadcast_sum(std::span<const StatSlot> slots, const Tensor& y);
void check_sum_over_images(const Tensor& x, const float* sum);
void check_reset_sums(const double* sums, int count);

// --- losses

void check_operands(const CrossEntropy& a);
void check_operands(const ElementLosses& a);
void check_operands(const LabelProbabilities& a);
void check_operands(const OhemCount& a);
void check_operands(const OhemNarrow& a);
void check_operands(const OhemChoice& a);
void check_operands(const OhemShare& a);
void check_operands(const DiceSums& a);
void check_operands(const DiceLosses& a);
void check_confusion_matrix(const Tensor& logits, const Tensor& labels, const std::int64_t* matrix);

// --- the optimizer

void check_operands(const GradientCheck& a);
void check_optimizer_update(const OptimizerShard& a);
void check_gradient_squares(const OptimizerShard& a, const double* squares);
void check_operands(const ClipFactor& a);
void check_operands(const WeightAverage& a);
void check_operands(const LossScaleUpdate& a);

}  // namespace lockstep
