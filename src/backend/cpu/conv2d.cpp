// Convolution: checks, the choice of the implementation and the gradient of the bias.

#include <omp.h>

#include <algorithm>

#include "backend/cpu/convolution.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/parallel_for.h"
#include "backend/cpu/winograd_conv.h"
#include "lockstep/backend/operand_checks.h"

namespace lockstep {
namespace {

void check_operands(const ConvGeometry& geometry, const Tensor& x, const Tensor& y) {
  check_conv2d(geometry, x.shape, y.shape);
  check_fp32("conv2d", {&x, &y});
}

constexpr std::int64_t kRowsPerSum = 1024;  // fixed: the sums do not depend on the thread count

/// sums [C] = column sums of rows [begin, end).
void sum_rows(const Tensor& tensor, std::int64_t begin, std::int64_t end, double* sums) {
  const std::int64_t channels = tensor.shape.channels();
  std::fill_n(sums, channels, 0.0);
  for (std::int64_t r = begin; r < end; ++r) {
    const float* source = tensor.floats() + r * tensor.row_stride;
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) sums[c] += static_cast<double>(source[c]);
  }
}

std::int64_t partial_sums(const Shape& shape) {
  return (shape.rows() + kRowsPerSum - 1) / kRowsPerSum;
}

std::size_t column_sums_bytes(const Shape& shape) {
  return static_cast<std::size_t>(partial_sums(shape) * shape.channels()) * sizeof(double);
}

/// grad_bias += column sums of grad_y, by parts whose sums lie in `sums` [parts, C].
void add_column_sums(const Tensor& grad_y, float* grad_bias, double* sums, int threads) {
  const std::int64_t rows = grad_y.shape.rows();
  const std::int64_t channels = grad_y.shape.channels();
  const std::int64_t parts = partial_sums(grad_y.shape);
  parallel_for(parts, kRowsPerSum * channels, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      sum_rows(grad_y, part * kRowsPerSum, std::min(rows, (part + 1) * kRowsPerSum),
               sums + part * channels);
    }
  });
  for (std::int64_t c = 0; c < channels; ++c) {
    double total = 0;
    for (std::int64_t part = 0; part < parts; ++part) total += sums[part * channels + c];
    grad_bias[c] += static_cast<float>(total);
  }
}

/// Winograd needs 2.25 times fewer products and so takes half the time of oneDNN's AVX2 kernels,
/// which already run near the processor's peak. With AVX-512 oneDNN computes twice as much per
/// instruction as the vectors of our Winograd kernels.
bool use_winograd(const ConvGeometry& geometry) {
  return winograd_pays(geometry) && !dnnl_uses_avx512();
}

}  // namespace

Convolution& ConvCache::get(const ConvGeometry& geometry, const Shape& input, int threads) {
  // oneDNN asks OpenMP how many threads the calling thread may use, when it creates a primitive and
  // when it runs one; another backend of this thread may have asked for another number.
  omp_set_num_threads(threads);
  const bool winograd = use_winograd(geometry);  // takes smaller batches, too
  for (const Entry& entry : entries_) {
    const bool fits = winograd ? input.batch() <= entry.input.batch() &&
                                     input == entry.input.with_batch(input.batch())
                               : input == entry.input;
    if (fits && entry.geometry == geometry) return *entry.convolution;
  }
  geometry.check();
  entries_.push_back({geometry, input,
                      winograd ? make_winograd_convolution(geometry, input, threads)
                               : make_dnnl_convolution(geometry, input, threads)});
  return *entries_.back().convolution;
}

void CpuBackend::prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType dtype,
                                bool backward, bool grad_input) {
  LOCKSTEP_CHECK(dtype == DType::kFloat32, "conv2d: the CPU expects activations in fp32, got ",
                 to_string(dtype), "; only GPUs compute on bf16 and fp16");
  if (input.batch() == 0) return;
  Convolution& convolution = conv_cache_->get(geometry, input, threads_);
  if (backward) convolution.prepare_backward(grad_input);
  scratch(convolution.scratch_bytes(false));
  if (backward) scratch(column_sums_bytes(geometry.output_shape(input)));
}

void CpuBackend::conv2d_forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                                const float* bias, const Tensor& y) {
  if (x.shape.batch() == 0) return;
  check_operands(geometry, x, y);
  Convolution& convolution = conv_cache_->get(geometry, x.shape, threads_);
  const bool strided = !x.dense() || !y.dense();
  convolution.forward(x, weight, bias, y, scratch(convolution.scratch_bytes(strided)));
}

void CpuBackend::conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y,
                                      const float* weight, const Tensor& grad_x) {
  if (grad_x.shape.batch() == 0) return;
  check_operands(geometry, grad_x, grad_y);
  Convolution& convolution = conv_cache_->get(geometry, grad_x.shape, threads_);
  convolution.prepare_backward(true);
  const bool strided = !grad_y.dense() || !grad_x.dense();
  convolution.backward_data(grad_y, weight, grad_x, scratch(convolution.scratch_bytes(strided)));
}

void CpuBackend::conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x,
                                         const Tensor& grad_y, float* grad_weight,
                                         float* grad_bias) {
  if (x.shape.batch() == 0) return;
  check_operands(geometry, x, grad_y);
  Convolution& convolution = conv_cache_->get(geometry, x.shape, threads_);
  convolution.prepare_backward(false);
  const bool strided = !x.dense() || !grad_y.dense();
  convolution.backward_weights(x, grad_y, grad_weight, scratch(convolution.scratch_bytes(strided)));
  if (grad_bias == nullptr) return;
  auto* sums = static_cast<double*>(scratch(column_sums_bytes(grad_y.shape)));
  add_column_sums(grad_y, grad_bias, sums, threads_);
}

}  // namespace lockstep
