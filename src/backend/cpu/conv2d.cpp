// Convolution: checks, the choice of the implementation and the gradient of the bias.

#include <omp.h>

#include "backend/cpu/convolution.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/winograd_conv.h"

namespace lockstep {
namespace {

void check_shapes(const ConvGeometry& geometry, const Tensor& x, const Tensor& y) {
  const Shape expected = geometry.output_shape(x.shape);
  LOCKSTEP_CHECK(y.shape == expected, "conv2d of an input ", to_string(x.shape), " gives ",
                 to_string(expected), ", got ", to_string(y.shape));
}

/// grad_bias += column sums of grad_y; in double, so that the order of a long sum costs no
/// accuracy.
void add_column_sums(const Tensor& grad_y, float* grad_bias, int threads) {
  const std::int64_t rows = grad_y.shape.rows();
  const std::int64_t channels = grad_y.shape.channels();
  const float* source = grad_y.floats();
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t c = 0; c < channels; ++c) {
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      sum += static_cast<double>(source[r * grad_y.row_stride + c]);
    }
    grad_bias[c] += static_cast<float>(sum);
  }
}

/// oneDNN's AVX-512 kernels run channels-last convolutions near the processor's peak. Without
/// AVX-512 they reach a third of it, and 3x3 convolutions by Winograd take less than half their
/// time.
std::unique_ptr<Convolution> make_convolution(const ConvGeometry& geometry, const Shape& input,
                                              int threads) {
  if (winograd_pays(geometry) && !dnnl_uses_avx512()) {
    return make_winograd_convolution(geometry, input, threads);
  }
  return make_dnnl_convolution(geometry, input, threads);
}

}  // namespace

Convolution& ConvCache::get(const ConvGeometry& geometry, const Shape& input, int threads) {
  for (const Entry& entry : entries_) {
    if (entry.geometry == geometry && entry.input == input) return *entry.convolution;
  }
  geometry.check();
  entries_.push_back({geometry, input, make_convolution(geometry, input, threads)});
  return *entries_.back().convolution;
}

void CpuBackend::prepare_conv2d(const ConvGeometry& geometry, const Shape& input, bool backward,
                                bool grad_input) {
  if (input.batch() == 0) return;
  Convolution& convolution = conv_cache_->get(geometry, input, threads_);
  if (backward) convolution.prepare_backward(grad_input);
  scratch(convolution.scratch_bytes(false));
}

void CpuBackend::conv2d_forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                                const float* bias, const Tensor& y) {
  if (x.shape.batch() == 0) return;
  check_shapes(geometry, x, y);
  Convolution& convolution = conv_cache_->get(geometry, x.shape, threads_);
  const bool strided = !x.dense() || !y.dense();
  convolution.forward(x, weight, bias, y, scratch(convolution.scratch_bytes(strided)));
}

void CpuBackend::conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y,
                                      const float* weight, const Tensor& grad_x) {
  if (grad_x.shape.batch() == 0) return;
  check_shapes(geometry, grad_x, grad_y);
  Convolution& convolution = conv_cache_->get(geometry, grad_x.shape, threads_);
  convolution.prepare_backward(true);
  const bool strided = !grad_y.dense() || !grad_x.dense();
  convolution.backward_data(grad_y, weight, grad_x, scratch(convolution.scratch_bytes(strided)));
}

void CpuBackend::conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x,
                                         const Tensor& grad_y, float* grad_weight,
                                         float* grad_bias) {
  if (x.shape.batch() == 0) return;
  check_shapes(geometry, x, grad_y);
  Convolution& convolution = conv_cache_->get(geometry, x.shape, threads_);
  convolution.prepare_backward(false);
  const bool strided = !x.dense() || !grad_y.dense();
  convolution.backward_weights(x, grad_y, grad_weight, scratch(convolution.scratch_bytes(strided)));
  if (grad_bias != nullptr) add_column_sums(grad_y, grad_bias, threads_);
}

}  // namespace lockstep
