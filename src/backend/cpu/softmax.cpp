// Softmax over the channels of every row.

#include <algorithm>

#include "backend/cpu/map.h"
#include "backend/cpu/operations.h"
#include "backend/operand_checks.h"
#include "backend/required_operands.h"

namespace lockstep {
namespace {

void softmax_row(const float* x, std::int64_t channels, float* y) {
  float largest = x[0];
  for (std::int64_t c = 1; c < channels; ++c) largest = std::max(largest, x[c]);
  map_stretch(ExponentialFrom{largest}, channels, false, y, x);
  double sum = 0;
  for (std::int64_t c = 0; c < channels; ++c) sum += static_cast<double>(y[c]);
  const auto share = static_cast<float>(1 / sum);
#pragma omp simd
  for (std::int64_t c = 0; c < channels; ++c) y[c] *= share;
}

void softmax_grad_row(const float* y, const float* grad_y, std::int64_t channels, bool accumulate,
                      float* grad_x) {
  double mean = 0;
  for (std::int64_t c = 0; c < channels; ++c) {
    mean += static_cast<double>(y[c]) * static_cast<double>(grad_y[c]);
  }
  const SoftmaxGradient f{static_cast<float>(mean)};
  map_stretch(f, channels, accumulate, grad_x, y, grad_y);
}

}  // namespace

void CpuActivations::softmax_forward(const Tensor& x, const Tensor& y) {
  check_softmax_forward(x, y);
  check_same_shape("softmax_forward", {&x, &y});
  check_fp32("softmax_forward", {&x, &y});
  const std::int64_t channels = x.shape.channels();
  parallel_for(x.shape.rows(), channels, cpu_.threads(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      softmax_row(x.floats() + row * x.row_stride, channels, y.floats() + row * y.row_stride);
    }
  });
}

void CpuActivations::softmax_backward(const Tensor& y, const Tensor& grad_y, const Tensor& grad_x,
                                      bool accumulate) {
  check_softmax_backward(y, grad_y, grad_x);
  check_same_shape("softmax_backward", {&y, &grad_y, &grad_x});
  check_fp32("softmax_backward", {&y, &grad_y, &grad_x});
  const std::int64_t channels = y.shape.channels();
  parallel_for(y.shape.rows(), channels, cpu_.threads(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      softmax_grad_row(y.floats() + row * y.row_stride, grad_y.floats() + row * grad_y.row_stride,
                       channels, accumulate, grad_x.floats() + row * grad_x.row_stride);
    }
  });
}

}  // namespace lockstep
