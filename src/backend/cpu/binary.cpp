// Functions of two elements, of which the second may be met by many of the first.

#include <algorithm>

#include "backend/cpu/map.h"
#include "backend/cpu/operations.h"
#include "backend/operand_checks.h"
#include "backend/required_operands.h"

namespace lockstep {
namespace {

/// y[r, c] = f(a[r, c], b met there, more[r, c]...), or += with `accumulate`. b of any shape that
/// repetition_of() takes.
template <typename Function, typename... Tensors>
void map_repeated(const char* operation, const Function& f, const Tensor& y, bool accumulate,
                  int threads, const Tensor& a, const Tensor& b, const Tensors&... more) {
  const Repetition repetition = repetition_of(operation, y.shape, b.shape);
  if (y.shape.elements() == 0) return;
  if (b.shape == y.shape) return map(f, y, accumulate, threads, a, b, more...);
  const std::int64_t channels = y.shape.channels();
  parallel_for(y.shape.rows(), channels, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* met = b.floats() + row / repetition.rows_each * b.row_stride;
      const auto map_row = [&](const auto& function, const auto*... others) {
        map_stretch(function, channels, accumulate, y.floats() + row * y.row_stride,
                    a.floats() + row * a.row_stride, others...,
                    (more.floats() + row * more.row_stride)...);
      };
      if (!repetition.one_channel) {
        map_row(f, met);
      } else {
        map_row(WithSecond<Function>{f, *met});
      }
    }
  });
}

constexpr std::int64_t kBlock = 64;  // channels whose sums stay in a first-level cache

/// Of the rows [begin, end) of f.wide(a, grad_y): sums [count] of channels from `first` on.
template <typename F>
void sum_rows(const F& f, const Tensor& a, const Tensor& grad_y, std::int64_t begin,
              std::int64_t end, std::int64_t first, std::int64_t count, double* sums) {
  std::fill_n(sums, count, 0.0);
  for (std::int64_t row = begin; row < end; ++row) {
    const float* left = a.floats() + row * a.row_stride + first;
    const float* gradient = grad_y.floats() + row * grad_y.row_stride + first;
#pragma omp simd
    for (std::int64_t c = 0; c < count; ++c) sums[c] += f.wide(left[c], gradient[c]);
  }
}

void put(double sum, bool accumulate, float* target) {
  *target = accumulate ? *target + static_cast<float>(sum) : static_cast<float>(sum);
}

/// One row of grad_b, the sums over `rows` rows of a.
template <typename F>
void sum_to_row(const F& f, const Tensor& a, const Tensor& grad_y, std::int64_t row,
                std::int64_t rows, const Tensor& grad_b, bool accumulate) {
  const std::int64_t channels = a.shape.channels();
  float* target = grad_b.floats() + row * grad_b.row_stride;
  const bool one_channel = grad_b.shape.channels() != channels;
  double total = 0;
  for (std::int64_t first = 0; first < channels; first += kBlock) {
    const std::int64_t count = std::min(kBlock, channels - first);
    double sums[kBlock];
    sum_rows(f, a, grad_y, row * rows, (row + 1) * rows, first, count, sums);
    for (std::int64_t c = 0; c < count; ++c) {
      if (one_channel) {
        total += sums[c];
      } else {
        put(sums[c], accumulate, target + first + c);
      }
    }
  }
  if (one_channel) put(total, accumulate, target);
}

}  // namespace

void CpuActivations::binary_forward(BinaryKind kind, const Tensor& a, const Tensor& b,
                                    const Tensor& y) {
  check_binary_forward(a, b, y);
  check_same_shape("binary_forward", {&a, &y});
  check_fp32("binary_forward", {&a, &b, &y});
  with_binary(kind, [&](const auto& f) {
    map_repeated("binary_forward", f, y, false, cpu_.threads(), a, b);
  });
}

void CpuActivations::binary_backward_left(BinaryKind kind, const Tensor& a, const Tensor& b,
                                          const Tensor& grad_y, const Tensor& grad_a,
                                          bool accumulate) {
  check_binary_backward_left(a, b, grad_y, grad_a);
  check_same_shape("binary_backward_left", {&a, &grad_y, &grad_a});
  check_fp32("binary_backward_left", {&a, &b, &grad_y, &grad_a});
  with_binary(kind, [&](const auto& f) {
    map_repeated("binary_backward_left", LeftGradient{f}, grad_a, accumulate, cpu_.threads(), a, b,
                 grad_y);
  });
}

void CpuActivations::binary_backward_right(BinaryKind kind, const Tensor& a, const Tensor& grad_y,
                                           const Tensor& grad_b, bool accumulate) {
  check_binary_backward_right(a, grad_y, grad_b);
  check_same_shape("binary_backward_right", {&a, &grad_y});
  check_fp32("binary_backward_right", {&a, &grad_y, &grad_b});
  const std::int64_t each = rows_of_gradient("binary_backward_right", a.shape, grad_b.shape);
  if (a.shape.elements() == 0) return;
  with_binary(kind, [&](const auto& function) {
    const RightGradient f{function};
    if (grad_b.shape == a.shape) return map(f, grad_b, accumulate, cpu_.threads(), a, grad_y);
    parallel_for(grad_b.shape.rows(), each * a.shape.channels(), cpu_.threads(),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     sum_to_row(f, a, grad_y, row, each, grad_b, accumulate);
                   }
                 });
  });
}

}  // namespace lockstep
