// Softmax over the channels: a warp takes a row, its lanes take every 32nd channel. What the lanes
// find is exchanged pairwise, so that all know it.

#include <cmath>

#include "backend/element_functions.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/primitives/element.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/views.h"

namespace lockstep::gpu {
namespace {

constexpr unsigned kThreads = 256;

/// What the lanes of a warp have, put together: the same in all.
template <typename Value, typename Join>
__device__ Value of_warp(Value mine, const Join& join) {
  for (int bits = kWarpSize / 2; bits > 0; bits /= 2) {
    mine = join(mine, __shfl_xor_sync(kWholeWarp, mine, bits));
  }
  return mine;
}

/// body(row) for the rows of the calling warp.
template <typename Body>
__device__ void for_each_row(std::int64_t rows, const Body& body) {
  const std::int64_t warps = item_stride() / kWarpSize;
  for (std::int64_t row = first_item() / kWarpSize; row < rows; row += warps) body(row);
}

/// body(c) for the channels of the calling lane.
template <typename Body>
__device__ void for_each_channel(std::int32_t channels, const Body& body) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % kWarpSize);
  for (std::int32_t c = lane; c < channels; c += kWarpSize) body(c);
}

template <typename T>
__global__ void softmax_forward_kernel(std::int64_t rows, std::int32_t channels, Rows<const T> x,
                                       Rows<T> y) {
  for_each_row(rows, [&](std::int64_t row) {
    const T* from = x.row(row);
    float largest = to_float(from[0]);
    for_each_channel(channels, [&](std::int32_t c) {
      const float value = to_float(from[c]);
      largest = largest < value ? value : largest;
    });
    largest = of_warp(largest, [](float a, float b) { return a < b ? b : a; });
    const ExponentialFrom exponential_of{largest};
    double sum = 0;
    for_each_channel(channels, [&](std::int32_t c) {
      sum += static_cast<double>(exponential_of(to_float(from[c])));
    });
    sum = of_warp(sum, [](double a, double b) { return a + b; });
    const auto share = static_cast<float>(1 / sum);
    T* to = y.row(row);
    for_each_channel(channels, [&](std::int32_t c) {
      to[c] = from_float<T>(exponential_of(to_float(from[c])) * share);
    });
  });
}

template <typename T>
__global__ void softmax_backward_kernel(std::int64_t rows, std::int32_t channels, Rows<const T> y,
                                        Rows<const T> grad_y, Rows<T> grad_x, bool accumulate) {
  for_each_row(rows, [&](std::int64_t row) {
    const T* output = y.row(row);
    const T* gradient = grad_y.row(row);
    double mean = 0;
    for_each_channel(channels, [&](std::int32_t c) {
      mean += static_cast<double>(to_float(output[c])) * static_cast<double>(to_float(gradient[c]));
    });
    mean = of_warp(mean, [](double a, double b) { return a + b; });
    const SoftmaxGradient f{static_cast<float>(mean)};
    T* target = grad_x.row(row);
    for_each_channel(channels, [&](std::int32_t c) {
      const float from = to_float(output[c]), grad = to_float(gradient[c]);
      target[c] =
          from_float<T>(accumulate ? f.added(to_float(target[c]), from, grad) : f(from, grad));
    });
  });
}

template <typename T, typename... Parameters, typename... Arguments>
void launch_by_row(const Context& context, const Tensor& like, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  const unsigned blocks = blocks_for(like.shape.rows(), kThreads / kWarpSize,
                                     std::int64_t{8} * context.multiprocessors);
  launch(kernel, blocks, kThreads, context.stream, like.shape.rows(),
         static_cast<std::int32_t>(like.shape.channels()), arguments...);
}

}  // namespace

void GpuActivations::softmax_forward(const Tensor& x, const Tensor& y) {
  check_softmax_forward(x, y);
  const Context& context = context_.entered();
  if (x.shape.elements() == 0) return;
  with_element_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    launch_by_row<T>(context, x, softmax_forward_kernel<T>, Rows<const T>(x), Rows<T>(y));
  });
}

void GpuActivations::softmax_backward(const Tensor& y, const Tensor& grad_y, const Tensor& grad_x,
                                      bool accumulate) {
  check_softmax_backward(y, grad_y, grad_x);
  const Context& context = context_.entered();
  if (y.shape.elements() == 0) return;
  with_element_type(y.dtype, [&](auto element) {
    using T = decltype(element);
    launch_by_row<T>(context, y, softmax_backward_kernel<T>, Rows<const T>(y),
                     Rows<const T>(grad_y), Rows<T>(grad_x), accumulate);
  });
}

}  // namespace lockstep::gpu
