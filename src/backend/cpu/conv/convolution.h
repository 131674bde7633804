#pragma once
// One convolution at one input shape by one implementation. Weights are PyTorch's [out, in/groups,
// kh, kw] on both sides; what an implementation prefers stays inside it.

#include <cstddef>
#include <cstdint>
#include <functional>

#include "backend/cpu/map.h"
#include "lockstep/backend/convolutions.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Called with rows (pixels of all images, in order) [begin, end) of a convolution's output that
/// are complete, in which order ever, while they are in a cache near the calling thread, one of
/// many.
using RowsDone = std::function<void(std::int64_t begin, std::int64_t end)>;

/// An implementation of one convolution for one input shape. A pass is prepared before it is run.
/// Tensors may have any row stride, are of one type, which the implementation reads (engines.h),
/// and are never empty. `scratch` is at least scratch_bytes(pass, strided) long, aligned to 64
/// bytes, and free again on return. The result of an image depends neither on the other images nor
/// on the number of threads, and the gradient of the weights is the sum of the images' in the order
/// of image_tree.h.
class Convolution {
 public:
  virtual ~Convolution() = default;

  /// Repeating it costs nothing.
  virtual void prepare(ConvPass pass) = 0;
  /// `strided`: when a tensor is not dense.
  virtual std::size_t scratch_bytes(ConvPass pass, bool strided) const = 0;

  /// y = x * weight + bias; bias null for none. `done`: told of every row of y; or null.
  virtual void forward(const Tensor& x, const float* weight, const float* bias, const Tensor& y,
                       void* scratch, const RowsDone& done = nullptr) = 0;
  /// grad_x = the gradient of the input (written, not added).
  virtual void backward_data(const Tensor& grad_y, const float* weight, const Tensor& grad_x,
                             void* scratch) = 0;
  /// grad_weight += the gradient of the weights.
  virtual void backward_weights(const Tensor& x, const Tensor& grad_y, float* grad_weight,
                                void* scratch) = 0;
};

/// Memory of a dense copy, of whole cache lines.
inline std::size_t copy_bytes(const Shape& shape, DType dtype = DType::kFloat32) {
  return (static_cast<std::size_t>(shape.elements()) * size_of(dtype) + 63) / 64 * 64;
}

/// compute(x_copy, y_copy), by an implementation that takes fp32: what the pass reads is converted
/// before it, what it writes after it. A copy may be the tensor itself.
template <typename Compute>
void with_copies(ConvPass pass, const Tensor& x, const Tensor& x_copy, const Tensor& y,
                 const Tensor& y_copy, int threads, const Compute& compute) {
  if (pass != ConvPass::kBackwardData) convert(x, x_copy, false, threads);
  if (pass != ConvPass::kForward) convert(y, y_copy, false, threads);
  compute(x_copy, y_copy);
  if (pass == ConvPass::kForward) convert(y_copy, y, false, threads);
  if (pass == ConvPass::kBackwardData) convert(x_copy, x, false, threads);
}

}  // namespace lockstep
