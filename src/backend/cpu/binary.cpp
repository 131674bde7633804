// Functions of two elements, of which the second may be met by many of the first.

#include <algorithm>

#include "backend/cpu/map.h"
#include "backend/cpu/operations.h"
#include "backend/operands.h"

namespace lockstep {
namespace {

/// function(T{}, M{}) with the types of activations and of what they meet: theirs, or fp32, which
/// parameters are whatever activations are.
template <typename Function>
void with_either(const Tensor& activations, const Tensor& met, const Function& function) {
  with_element_type(activations.dtype, [&]<typename T>(T element) {
    met.dtype == DType::kFloat32 ? function(element, float{}) : function(element, element);
  });
}

/// y[r, c] = f(a[r, c], b met there, more[r, c]...), or += with `accumulate`. b of any shape that
/// find_repetition() takes.
template <typename Function, typename... Tensors>
void map_repeated(const Function& f, const Tensor& y, bool accumulate, int threads, const Tensor& a,
                  const Tensor& b, const Tensors&... more) {
  if (y.shape.elements() == 0) return;
  const Repetition repetition = *find_repetition(y.shape, b.shape);
  if (b.shape == y.shape && b.dtype == y.dtype) {
    return map(f, y, accumulate, threads, a, b, more...);
  }
  const std::int64_t channels = y.shape.channels();
  const auto rows_of = [&]<typename T, typename Met>(T, Met, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const Met* met = row_of<const Met>(b, row / repetition.rows_each);
      const auto map_row = [&](const auto& function, const auto*... others) {
        map_stretch(function, channels, accumulate, row_of<T>(y, row), row_of<const T>(a, row),
                    others..., row_of<const T>(more, row)...);
      };
      if (!repetition.one_channel) {
        map_row(f, met);
      } else {
        map_row(WithSecond<Function>{f, *met});
      }
    }
  };
  with_either(y, b, [&](auto element, auto met) {
    parallel_for(y.shape.rows(), channels, threads,
                 [&](std::int64_t begin, std::int64_t end) { rows_of(element, met, begin, end); });
  });
}

constexpr std::int64_t kBlock = 64;  // channels whose sums stay in a first-level cache

/// Of the rows [begin, end) of f.wide(a, grad_y): sums [count] of channels from `first` on.
template <typename T, typename F>
void sum_rows(const F& f, const Tensor& a, const Tensor& grad_y, std::int64_t begin,
              std::int64_t end, std::int64_t first, std::int64_t count, double* sums) {
  std::fill_n(sums, count, 0.0);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* left = row_of<const T>(a, row) + first;
    const T* gradient = row_of<const T>(grad_y, row) + first;
#pragma omp simd
    for (std::int64_t c = 0; c < count; ++c) sums[c] += f.wide(left[c], gradient[c]);
  }
}

template <typename T>
void put(double sum, bool accumulate, T* target) {
  *target = accumulate ? *target + static_cast<float>(sum) : static_cast<float>(sum);
}

/// One row of grad_b, the sums over `rows` rows of a.
template <typename T, typename Met, typename F>
void sum_to_row(const F& f, const Tensor& a, const Tensor& grad_y, std::int64_t row,
                std::int64_t rows, const Tensor& grad_b, bool accumulate) {
  const std::int64_t channels = a.shape.channels();
  Met* target = row_of<Met>(grad_b, row);
  const bool one_channel = grad_b.shape.channels() != channels;
  double total = 0;
  for (std::int64_t first = 0; first < channels; first += kBlock) {
    const std::int64_t count = std::min(kBlock, channels - first);
    double sums[kBlock];
    sum_rows<T>(f, a, grad_y, row * rows, (row + 1) * rows, first, count, sums);
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
  with_binary(kind, [&](const auto& f) { map_repeated(f, y, false, cpu_.threads(), a, b); });
}

void CpuActivations::binary_backward_left(BinaryKind kind, const Tensor& a, const Tensor& b,
                                          const Tensor& grad_y, const Tensor& grad_a,
                                          bool accumulate) {
  check_binary_backward_left(a, b, grad_y, grad_a);
  with_binary(kind, [&](const auto& f) {
    map_repeated(LeftGradient{f}, grad_a, accumulate, cpu_.threads(), a, b, grad_y);
  });
}

void CpuActivations::binary_backward_right(BinaryKind kind, const Tensor& a, const Tensor& grad_y,
                                           const Tensor& grad_b, bool accumulate) {
  check_binary_backward_right(a, grad_y, grad_b);
  if (a.shape.elements() == 0) return;
  const std::int64_t each = find_repetition(a.shape, grad_b.shape)->rows_each;
  with_binary(kind, [&](const auto& function) {
    const RightGradient f{function};
    if (grad_b.shape == a.shape && grad_b.dtype == a.dtype) {
      return map(f, grad_b, accumulate, cpu_.threads(), a, grad_y);
    }
    with_either(a, grad_b, [&]<typename T, typename Met>(T, Met) {
      parallel_for(grad_b.shape.rows(), each * a.shape.channels(), cpu_.threads(),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t row = begin; row < end; ++row) {
                       sum_to_row<T, Met>(f, a, grad_y, row, each, grad_b, accumulate);
                     }
                   });
    });
  });
}

}  // namespace lockstep
