#pragma once
// Convolutions: their geometry and their operations. Weights are fp32, in PyTorch's order.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/backend/norms.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// A 2-D convolution. Weights are [out_channels, in_channels / groups, kernel_h, kernel_w], as in
/// PyTorch.
struct ConvGeometry {
  std::int64_t in_channels = 0;
  std::int64_t out_channels = 0;
  std::int64_t kernel_h = 1, kernel_w = 1;
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t padding_h = 0, padding_w = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;

  friend bool operator==(const ConvGeometry&, const ConvGeometry&) = default;

  /// Throws Error when an extent is not positive, padding is negative or groups do not divide the
  /// channels.
  void check() const;
  /// Shape of the weights (not channels-last: the order is PyTorch's).
  Shape weight_shape() const;
  /// The product of its extents. Throws Error as check() does.
  std::int64_t weight_elements() const { return weight_shape().elements(); }
  /// [N, H', W', out_channels] for an input [N, H, W, in_channels]. Throws Error when the window
  /// does not fit.
  Shape output_shape(const Shape& input) const;
};

/// "3x3 convolution of 16 to 32 channels, stride 1x1, padding 1x1, dilation 1x1, groups 1".
std::string to_string(const ConvGeometry& geometry);

/// The three things that are computed of a convolution, each by an implementation of its own.
enum class ConvPass : std::uint8_t { kForward, kBackwardData, kBackwardWeights };

/// "forward", "backward data" or "backward weights".
const char* to_string(ConvPass pass);

/// The weights of a convolution, and for which passes they are wanted.
struct ConvWeights {
  ConvGeometry geometry;
  const float* weight = nullptr;  // [out, in/groups, kh, kw]
  Shape input;                    // of the convolution
  DType dtype = DType::kFloat32;  // of its input
  bool grad_input = false;        // whether conv2d_backward_data is called, too
  bool grad_weight = false;       // whether conv2d_backward_weights is called, too
};

/// The convolutions of a replica's device. Backend says what all operations have in common.
class ConvolutionOperations {
 public:
  virtual ~ConvolutionOperations() = default;

  /// Chooses and caches the implementation for inputs of this shape and type; `backward` and
  /// `grad_input` say whether conv2d_backward_weights and conv2d_backward_data will be called; a
  /// device may take longer to choose for training, `backward`. Set-up only; calling it again with
  /// the same arguments costs nothing. Throws Error for a type that the device does not compute in.
  virtual void prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType dtype,
                              bool backward, bool grad_input) = 0;
  /// Says which weights the passes until the next call use, and that they stay as they are: a
  /// device that computes with them in another order or type converts all of them here, at once.
  /// The passes of other weights give the same bits, and convert their own. Forgets gradients that
  /// were left and not finished: those of a pass that failed. REQUIRES: prepared convolutions.
  virtual void prepack_conv2d_weights(std::span<const ConvWeights> weights) {
    static_cast<void>(weights);
  }
  /// y = x * weight + bias; bias null for none. weight [out, in/groups, kh, kw], bias [out]. x and
  /// y have one type; where it is narrower than fp32, GPUs round the weights to it.
  virtual void conv2d_forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                              const float* bias, const Tensor& y) = 0;
  /// grad_x = the gradient of x, which is written and not added to; grad_y has y's shape.
  virtual void conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y,
                                    const float* weight, const Tensor& grad_x) = 0;
  /// grad_weight += ..., grad_bias += ... (null: none); with Backend::sums_by_image() in its tree.
  /// Once prepack_conv2d_weights() has heard of it, it may be left to finish_conv2d_gradients().
  virtual void conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x,
                                       const Tensor& grad_y, float* grad_weight,
                                       float* grad_bias) = 0;
  /// After it all that conv2d_backward_weights was called for is in its grad_weight. A device that
  /// computes gradients in another order or type converts all of them here, at once.
  virtual void finish_conv2d_gradients() {}
  /// Whether conv2d_inference saves a pass over memory for this convolution of an input of this
  /// shape and type. A BatchNorm's y behind it may then be its x, too.
  virtual bool normalizes_in_convolution(const ConvGeometry& geometry, const Shape& input,
                                         DType dtype) const {
    static_cast<void>(geometry), static_cast<void>(input), static_cast<void>(dtype);
    return false;
  }
  /// conv2d_forward to `normalization.y`, which is then normalised where it lies, with the bits of
  /// both operations one after the other. normalization.x is not read. Throws Error where no
  /// convolution is normalised.
  virtual void conv2d_inference(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                                const float* bias, const BatchNormInference& normalization) = 0;
  /// A line per prepared pass: what computes it, and its time when that was chosen; for reports.
  /// Empty where a device has no choice.
  virtual std::vector<std::string> conv2d_algorithms() const { return {}; }
};

}  // namespace lockstep
