#pragma once
// One convolution at one input shape, and the cache that holds them. Weights are PyTorch's
// [out, in/groups, kh, kw] on both sides; what an implementation prefers stays inside it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/backend/conv_geometry.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// An implementation of one convolution for one input shape. Tensors may have any row stride and
/// are never empty. `scratch` is at least `scratch_bytes` long, aligned to 64 bytes, and free again
/// on return.
class Convolution {
 public:
  virtual ~Convolution() = default;

  /// Sets up the backward pass; `grad_input`: also that of the input. Repeating it costs nothing.
  virtual void prepare_backward(bool grad_input) = 0;
  /// Scratch memory for any of the passes prepared so far; `strided`: when a tensor is not dense.
  virtual std::size_t scratch_bytes(bool strided) const = 0;

  /// y = x * weight + bias; bias null for none.
  virtual void forward(const Tensor& x, const float* weight, const float* bias, const Tensor& y,
                       void* scratch) = 0;
  /// grad_x = the gradient of the input (written, not added).
  virtual void backward_data(const Tensor& grad_y, const float* weight, const Tensor& grad_x,
                             void* scratch) = 0;
  /// grad_weight += the gradient of the weights.
  virtual void backward_weights(const Tensor& x, const Tensor& grad_y, float* grad_weight,
                                void* scratch) = 0;
};

/// oneDNN's implementation: any geometry. Created on the thread that will use it, because oneDNN
/// remembers the number of OpenMP threads.
std::unique_ptr<Convolution> make_dnnl_convolution(const ConvGeometry& geometry, const Shape& input,
                                                   int threads);

/// Whether oneDNN has AVX-512 kernels for this processor.
bool dnnl_uses_avx512();

/// The convolutions of one backend; a few dozen at most, so a linear search is enough.
class ConvCache {
 public:
  /// The convolution for this geometry and input shape, created at the first call. oneDNN's are for
  /// one batch size, others also serve smaller batches. REQUIRES: the batch is not empty.
  Convolution& get(const ConvGeometry& geometry, const Shape& input, int threads);

 private:
  struct Entry {
    ConvGeometry geometry;
    Shape input;
    std::unique_ptr<Convolution> convolution;
  };
  std::vector<Entry> entries_;
};

}  // namespace lockstep
