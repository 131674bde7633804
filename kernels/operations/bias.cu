// A bias is added to one pack of channels at a time. Its gradient takes two kernels: a block sums a
// part of the rows for 32 channels, lanes across channels and warps across rows, so that a warp
// reads one row at a time; then one thread per channel adds the parts. How rows fall into parts
// depends on their number only, and every sum has a fixed order.

#include "kernels/operations/bias.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/pack.h"
#include "kernels/primitives/views.h"

namespace lockstep::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr std::int64_t kRowsPerPart = 512;

std::int64_t parts_of(std::int64_t rows) { return (rows + kRowsPerPart - 1) / kRowsPerPart; }

template <typename T, int kWidth>
__global__ void add_bias_kernel(const float* __restrict__ bias, Rows<T> y, std::int64_t rows,
                                std::int64_t channels) {
  const std::int64_t packs = channels / kWidth;
  for (std::int64_t i = first_item(); i < rows * packs; i += item_stride()) {
    const std::int64_t row = i / packs;
    const std::int64_t c = (i - row * packs) * kWidth;
    float values[kWidth];
    load_values(y.row(row) + c, values);
    for (int k = 0; k < kWidth; ++k) values[k] += bias[c + k];
    store_rounded(y.row(row) + c, values);
  }
}

struct WarpSums {
  double sums[kWarps][kWarpSize];
};

// partial [parts, C]; grid: parts x groups of 32 channels.
template <typename T>
__global__ void column_sums_kernel(Rows<const T> x, std::int64_t rows, std::int64_t channels,
                                   double* __restrict__ partial) {
  WarpSums& shared = block_shared<WarpSums>();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.y) * kWarpSize + lane;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kRowsPerPart;
  const std::int64_t end = begin + kRowsPerPart < rows ? begin + kRowsPerPart : rows;
  double sum = 0;
  if (channel < channels) {
    for (std::int64_t row = begin + warp; row < end; row += kWarps) {
      sum += static_cast<double>(to_float(x.row(row)[channel]));
    }
  }
  shared.sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || channel >= channels) return;
  double total = 0;
  for (int w = 0; w < kWarps; ++w) total += shared.sums[w][lane];
  partial[blockIdx.x * channels + channel] = total;
}

__global__ void add_parts_kernel(const double* __restrict__ partial, std::int64_t parts,
                                 std::int64_t channels, float* __restrict__ result) {
  for (std::int64_t channel = first_item(); channel < channels; channel += item_stride()) {
    double total = 0;
    for (std::int64_t part = 0; part < parts; ++part) total += partial[part * channels + channel];
    result[channel] += static_cast<float>(total);
  }
}

}  // namespace

void add_bias(const Context& context, const float* bias, const Tensor& y) {
  const std::int64_t rows = y.shape.rows(), channels = y.shape.channels();
  with_packs({&y}, [&](auto element, auto width) {
    using T = decltype(element);
    launch_loop(context, rows * channels / width, add_bias_kernel<T, width()>, bias, Rows<T>(y),
                rows, channels);
  });
}

void bias_gradient(const Context& context, const Tensor& grad_y, float* grad_bias) {
  const std::int64_t rows = grad_y.shape.rows(), channels = grad_y.shape.channels();
  const std::int64_t parts = parts_of(rows);
  if (parts == 0 || channels == 0) return;
  LOCKSTEP_CHECK(parts <= 0x7fffffff && channels <= 65535 * kWarpSize,
                 "expected a tensor of less rows or channels, got ", to_string(grad_y.shape));
  const auto bytes = static_cast<std::size_t>(parts * channels) * sizeof(double);
  auto* partial = static_cast<double*>(context.scratch(bytes));
  const dim3 grid(static_cast<unsigned>(parts),
                  static_cast<unsigned>((channels + kWarpSize - 1) / kWarpSize));
  with_element_type(grad_y.dtype, [&](auto element) {
    using T = decltype(element);
    launch(column_sums_kernel<T>, grid, kThreads, context.stream, Rows<const T>(grad_y), rows,
           channels, partial);
  });
  launch_loop(context, channels, add_parts_kernel, partial, parts, channels, grad_bias);
}

}  // namespace lockstep::gpu
