// Softmax over the channels of every row.

#include <omp.h>

#include <algorithm>

#include "backend/cpu/map.h"
#include "backend/cpu/operations.h"

namespace lockstep {
namespace {

/// `exponentials` [channels]: work space.
template <typename T>
void softmax_row(const T* x, std::int64_t channels, float* exponentials, T* y) {
  float largest = x[0];
  for (std::int64_t c = 1; c < channels; ++c) largest = std::max<float>(largest, x[c]);
  map_stretch(ExponentialFrom{largest}, channels, false, exponentials, x);
  double sum = 0;
  for (std::int64_t c = 0; c < channels; ++c) sum += static_cast<double>(exponentials[c]);
  const auto share = static_cast<float>(1 / sum);
#pragma omp simd
  for (std::int64_t c = 0; c < channels; ++c) y[c] = exponentials[c] * share;
}

template <typename T>
void softmax_grad_row(const T* y, const T* grad_y, std::int64_t channels, bool accumulate,
                      T* grad_x) {
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
  const std::int64_t channels = x.shape.channels();
  const auto rows = static_cast<std::size_t>(channels * cpu_.threads());
  auto* memory = static_cast<float*>(cpu_.scratch(rows * sizeof(float)));
  with_element_type(x.dtype, [&]<typename T>(T) {
    parallel_for(
        x.shape.rows(), channels, cpu_.threads(), [&](std::int64_t begin, std::int64_t end) {
          float* exponentials = memory + omp_get_thread_num() * channels;
          for (std::int64_t row = begin; row < end; ++row) {
            softmax_row(row_of<const T>(x, row), channels, exponentials, row_of<T>(y, row));
          }
        });
  });
}

void CpuActivations::softmax_backward(const Tensor& y, const Tensor& grad_y, const Tensor& grad_x,
                                      bool accumulate) {
  check_softmax_backward(y, grad_y, grad_x);
  const std::int64_t channels = y.shape.channels();
  with_element_type(y.dtype, [&]<typename T>(T) {
    parallel_for(y.shape.rows(), channels, cpu_.threads(),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     softmax_grad_row(row_of<const T>(y, row), row_of<const T>(grad_y, row),
                                      channels, accumulate, row_of<T>(grad_x, row));
                   }
                 });
  });
}

}  // namespace lockstep
