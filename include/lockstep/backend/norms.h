#pragma once
// BatchNorm (Ioffe and Szegedy 2015; merge: Chan, Golub, LeVeque 1979) and what is made of it:
// GroupNorm (Wu and He 2018) and Batch Renormalization (Ioffe 2017).

#include <cstdint>
#include <span>

#include "lockstep/backend/sums.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// How eps enters the inverse standard deviation.
enum class EpsMode : std::uint8_t {
  kAdd,    // 1 / sqrt(var + eps)
  kClamp,  // 1 / sqrt(max(var, eps))
};

/// Learnable scale and shift; both null when the layer is not affine.
struct AffineParameters {
  const float* weight = nullptr;  // gamma [C]
  const float* bias = nullptr;    // beta [C]
};

/// What a training forward pass keeps for the backward pass of the same call: [3, C] =
/// (mean, invstd, invstd^2 or 0 where `clamp` cut the variance off and so stops its gradient).
struct BatchNormSaved {
  float* data = nullptr;  // [3, C]
};

/// Running statistics to update; null pointers when they are not tracked or this call must not
/// touch them.
struct RunningStatistics {
  float* mean = nullptr;  // [C]
  float* var = nullptr;   // [C]
  double momentum = 0.1;  // weight of the new value (PyTorch's convention)
};

/// The merge, normalise, add and ReLU step of a training forward pass.
struct BatchNormForward {
  Tensor x;         // rows x C
  Tensor residual;  // added before the ReLU; null for none
  Tensor y;         // may not alias x, but see ConvolutionOperations::normalizes_in_convolution
  AffineParameters affine;
  /// (mean, M2), merged in this order by Chan's formula. None: x is normalised by what `saved`
  /// holds of a call before, to the same bits.
  std::span<const StatSlot> slots;
  float eps = 1e-5F;
  EpsMode eps_mode = EpsMode::kAdd;
  bool relu = false;
  BatchNormSaved saved;
  RunningStatistics running;  // takes the unbiased variance of the merged count
};

/// Normalisation by given statistics: evaluation, or a frozen layer.
struct BatchNormInference {
  Tensor x, residual, y;
  AffineParameters affine;
  const float* mean = nullptr;  // [C]
  const float* var = nullptr;   // [C]
  float eps = 1e-5F;
  EpsMode eps_mode = EpsMode::kAdd;
  bool relu = false;
};

/// The local sums of a backward pass.
struct BatchNormBackwardReduce {
  Tensor x, grad_y;
  Tensor y;  // needed for the ReLU mask when a residual was added; else null: the mask is
             // recomputed from x
  AffineParameters affine;
  BatchNormSaved saved;
  bool relu = false;
  float* sums = nullptr;  // [parts, 2, C]: sum dy', sum dy'*(x-mu), dy' = dy masked by the ReLU
  /// [C], += sum dy'*(x-mu)*invstd over the rows, and += sum dy'; the parts' in the tree of
  /// Backend::sums_by_image. Null when not affine.
  float* grad_weight = nullptr;
  float* grad_bias = nullptr;
  std::int64_t parts =
      1;  // equal ones, of consecutive rows; not 1 only with Backend::sums_by_image()
};

/// dx (and the residual's gradient) from the merged sums. grad_x may alias grad_y.
struct BatchNormBackwardApply {
  Tensor x, grad_y;
  Tensor y;  // as in BatchNormBackwardReduce
  AffineParameters affine;
  BatchNormSaved saved;
  bool relu = false;
  std::span<const StatSlot> slots;  // (sum dy', sum dy'*(x-mu)), added in this order in double
  Tensor grad_x;
  Tensor grad_residual;  // null when there was none, or its gradient is not needed
  bool accumulate_residual = false;
};

/// A pass over images whose channels are normalised in groups, every image by itself, in training
/// as in evaluation (Wu and He 2018).
struct GroupNormForward {
  Tensor x, residual, y;  // as in BatchNormForward
  AffineParameters affine;
  std::int64_t groups = 1;  // equal runs of channels
  float eps = 1e-5F;
  EpsMode eps_mode = EpsMode::kAdd;
  bool relu = false;
  float* saved =
      nullptr;            // [images, 3, C] as BatchNormSaved, every channel with its group's values
  float* work = nullptr;  // [images, 2, C], of no use afterwards
};

/// The gradients of such a pass. grad_x may alias grad_y.
struct GroupNormBackward {
  Tensor x, grad_y;
  Tensor y;  // as in BatchNormBackwardReduce
  AffineParameters affine;
  std::int64_t groups = 1;
  bool relu = false;
  float* saved = nullptr;  // [images, 3, C], which is only read
  float* work = nullptr;   // [images, 4, C], of no use afterwards
  /// [C], +=; the images' in the tree of Backend::sums_by_image, wherever that is kept. Null when
  /// not affine.
  float* grad_weight = nullptr;
  float* grad_bias = nullptr;
  Tensor grad_x;         // null: only gamma's and beta's are wanted
  Tensor grad_residual;  // null when there was none, or its gradient is not needed
  bool accumulate_residual = false;
};

/// Batch Renormalization's correction of a batch's statistics (Ioffe 2017, algorithm 1), with
/// sigma = 1 / invstd of EpsMode, and of the running variance for the running sigma:
///   r = clip(sigma_batch / sigma_running, 1 / max_r, max_r),
///   d = clip((mu_batch - mu_running) / sigma_running, -max_d, max_d).
/// y = gamma * (x^ * r + d) + beta is BatchNorm's with another gamma and beta.
struct BatchRenormCorrection {
  std::span<const StatSlot> slots;  // (mean, M2) of the batch, as in BatchNormForward
  std::int64_t channels = 0;
  AffineParameters affine;
  const float* running_mean = nullptr;  // [C], before this batch
  const float* running_var = nullptr;   // [C]
  float eps = 1e-5F;
  EpsMode eps_mode = EpsMode::kAdd;
  double max_r = 1;  // at least 1
  double max_d = 0;
  float* correction = nullptr;  // [2, C] = (r, d)
  float* corrected = nullptr;   // [2, C] = (gamma * r, gamma * d + beta)
};

/// From the gradients of the corrected gamma and beta to those of gamma and beta; r and d are
/// constants.
struct BatchRenormGradient {
  const float* corrected = nullptr;   // [2, C]: of gamma * r, of gamma * d + beta
  const float* correction = nullptr;  // [2, C] = (r, d)
  std::int64_t channels = 0;
  float* grad_weight = nullptr;  // [C] += r * corrected[0] + d * corrected[1]
  float* grad_bias = nullptr;    // [C] += corrected[1]
};

/// The normalisations of a replica's device. Backend says what all operations have in common.
class NormOperations {
 public:
  virtual ~NormOperations() = default;

  /// slots [parts, 2, C] = (mean, M2) of equal parts of the rows of x; zeros when there are none.
  /// More than one part only with Backend::sums_by_image().
  virtual void batch_norm_moments(const Tensor& x, float* slots, std::int64_t parts) = 0;
  /// Merges the slots, normalises x, adds the residual, applies the ReLU, keeps what the backward
  /// pass needs and updates the running statistics.
  /// REQUIRES: the slots' counts sum to at least 2 (the layer checks and names itself).
  virtual void batch_norm_forward(const BatchNormForward& arguments) = 0;
  /// Normalises x by the given statistics, adds the residual, applies the ReLU.
  virtual void batch_norm_inference(const BatchNormInference& arguments) = 0;
  /// This device's sums for the backward pass, to be shown to the others, and the gradients of
  /// gamma and beta, which are added to.
  virtual void batch_norm_backward_reduce(const BatchNormBackwardReduce& arguments) = 0;
  /// The gradient of x from the sums of all devices.
  virtual void batch_norm_backward_apply(const BatchNormBackwardApply& arguments) = 0;

  // What stands in for BatchNorm, beside its own operations.

  /// REQUIRES: a group has two values or more (the layer checks and names itself).
  virtual void group_norm_forward(const GroupNormForward& arguments) = 0;
  virtual void group_norm_backward(const GroupNormBackward& arguments) = 0;
  /// REQUIRES: the slots count rows.
  virtual void batch_renorm_correction(const BatchRenormCorrection& arguments) = 0;
  virtual void batch_renorm_gradient(const BatchRenormGradient& arguments) = 0;
};

}  // namespace lockstep
