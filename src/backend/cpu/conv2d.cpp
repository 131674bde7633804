// Convolution: checks, and the gradient of the bias.

#include <algorithm>
#include <vector>

#include "backend/cpu/convolution.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/parallel_for.h"
#include "backend/operand_checks.h"

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

}  // namespace

void CpuBackend::prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType dtype,
                                bool backward, bool grad_input) {
  LOCKSTEP_CHECK(dtype == DType::kFloat32, "conv2d: the CPU expects activations in fp32, got ",
                 to_string(dtype), "; only GPUs compute on bf16 and fp16");
  if (input.batch() == 0) return;
  std::vector<ConvPass> passes{ConvPass::kForward};
  if (backward) passes.push_back(ConvPass::kBackwardWeights);
  if (backward && grad_input) passes.push_back(ConvPass::kBackwardData);
  for (const ConvPass pass : passes) {
    scratch(conv_cache_->get(geometry, input, pass, threads_).scratch_bytes(pass, false));
  }
  if (backward) scratch(column_sums_bytes(geometry.output_shape(input)));
}

void CpuBackend::conv2d_forward(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                                const float* bias, const Tensor& y) {
  if (x.shape.batch() == 0) return;
  check_operands(geometry, x, y);
  constexpr auto kPass = ConvPass::kForward;
  Convolution& convolution = conv_cache_->get(geometry, x.shape, kPass, threads_);
  const bool strided = !x.dense() || !y.dense();
  convolution.forward(x, weight, bias, y, scratch(convolution.scratch_bytes(kPass, strided)));
}

void CpuBackend::conv2d_backward_data(const ConvGeometry& geometry, const Tensor& grad_y,
                                      const float* weight, const Tensor& grad_x) {
  if (grad_x.shape.batch() == 0) return;
  check_operands(geometry, grad_x, grad_y);
  constexpr auto kPass = ConvPass::kBackwardData;
  Convolution& convolution = conv_cache_->get(geometry, grad_x.shape, kPass, threads_);
  const bool strided = !grad_y.dense() || !grad_x.dense();
  convolution.backward_data(grad_y, weight, grad_x,
                            scratch(convolution.scratch_bytes(kPass, strided)));
}

void CpuBackend::conv2d_backward_weights(const ConvGeometry& geometry, const Tensor& x,
                                         const Tensor& grad_y, float* grad_weight,
                                         float* grad_bias) {
  if (x.shape.batch() == 0) return;
  check_operands(geometry, x, grad_y);
  constexpr auto kPass = ConvPass::kBackwardWeights;
  Convolution& convolution = conv_cache_->get(geometry, x.shape, kPass, threads_);
  const bool strided = !x.dense() || !grad_y.dense();
  convolution.backward_weights(x, grad_y, grad_weight,
                               scratch(convolution.scratch_bytes(kPass, strided)));
  if (grad_bias == nullptr) return;
  auto* sums = static_cast<double*>(scratch(column_sums_bytes(grad_y.shape)));
  add_column_sums(grad_y, grad_bias, sums, threads_);
}

}  // namespace lockstep
