#pragma once
// Functions of an element, of two, and of a pixel's channels: activations, arithmetic, softmax and
// dropout.

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Functions of one element, as PyTorch's modules of the same names.
enum class ActivationKind : std::uint8_t {
  kRelu,
  kRelu6,
  kLeakyRelu,
  kSigmoid,
  kHardsigmoid,
  kTanh,
  kSilu,
  kHardswish,
  kGelu,      // by the normal distribution
  kGeluTanh,  // approximate="tanh"
};

const char* to_string(ActivationKind kind);  // "leaky_relu"

/// A function of one element.
struct Activation {
  // Implicit: operations take a plain kind, too.
  Activation(ActivationKind function, float negative_slope = 0.01F)  // NOLINT
      : kind(function), slope(negative_slope) {}

  ActivationKind kind;
  float slope;  // of kLeakyRelu, not negative

  /// Whether the backward pass reads y, and not x.
  bool from_output() const;
};

/// Functions y = f(a, b) of two elements. Where b has one channel, or one row for a whole sample or
/// for all of them, every element of a meets the one that is there.
enum class BinaryKind : std::uint8_t {
  kAdd,
  kSubtract,  // a - b
  kMultiply,
  kPRelu,  // a, times b where a is not positive
};

const char* to_string(BinaryKind kind);  // "prelu"

/// What a replica's device computes element by element and over channels. `accumulate`: the
/// gradient is added to, not written. Results may lie where an operand of the same shape does.
/// Backend says what all operations have in common.
class ActivationOperations {
 public:
  virtual ~ActivationOperations() = default;

  virtual void activation_forward(const Activation& activation, const Tensor& x,
                                  const Tensor& y) = 0;
  /// `saved`: y where Activation::from_output() says so, else x.
  virtual void activation_backward(const Activation& activation, const Tensor& saved,
                                   const Tensor& grad_y, const Tensor& grad_x, bool accumulate) = 0;
  /// y = f(a, b); a has y's shape. b has it, too, or one channel, or one row for each sample
  /// ([N, 1, ..., 1, C]) or for all of them ([1, ..., 1, C]), or both. Where the others are
  /// narrower, b and its gradient may be fp32 all the same.
  virtual void binary_forward(BinaryKind kind, const Tensor& a, const Tensor& b,
                              const Tensor& y) = 0;
  /// The gradient of a.
  virtual void binary_backward_left(BinaryKind kind, const Tensor& a, const Tensor& b,
                                    const Tensor& grad_y, const Tensor& grad_a,
                                    bool accumulate) = 0;
  /// The gradient of b, summed in double over the elements of a that one of b meets. grad_b has b's
  /// shape; where b has one row for all samples, a row for each of them, which sum_over_images adds
  /// up: so the result of a sample does not depend on the others.
  virtual void binary_backward_right(BinaryKind kind, const Tensor& a, const Tensor& grad_y,
                                     const Tensor& grad_b, bool accumulate) = 0;
  /// y = e^x / the sum of e^x over the channels.
  virtual void softmax_forward(const Tensor& x, const Tensor& y) = 0;
  virtual void softmax_backward(const Tensor& y, const Tensor& grad_y, const Tensor& grad_x,
                                bool accumulate) = 0;
  /// y = x * keep / (1 - p); keep is a function of (seed, sample_offset + n, position) only, so
  /// that it does not depend on how samples are spread over devices. The backward pass is the same
  /// call on the gradient.
  virtual void dropout(const Tensor& x, const Tensor& y, float p, DeviceScalar<std::uint64_t> seed,
                       std::int64_t sample_offset, bool accumulate) = 0;
};

}  // namespace lockstep
