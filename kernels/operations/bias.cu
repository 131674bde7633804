// A bias is added by one thread per element. Its gradient takes two kernels: a block sums a part of
// the rows for 32 channels, lanes across channels and warps across rows, so that a warp reads one
// row at a time; then one thread per channel adds the parts. How rows fall into parts depends on
// their number only, and every sum has a fixed order.

#include "kernels/operations/bias.h"
#include "kernels/primitives/launch.h"

namespace lockstep::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr std::int64_t kRowsPerPart = 512;
constexpr std::int64_t kMostBlocks = 1 << 16;

/// A tensor as kernels see it.
struct Rows {
  float* data;
  std::int64_t rows, channels, stride;
};

Rows rows_of(const Tensor& tensor) {
  return {tensor.floats(), tensor.shape.rows(), tensor.shape.channels(), tensor.row_stride};
}

std::int64_t parts_of(std::int64_t rows) { return (rows + kRowsPerPart - 1) / kRowsPerPart; }

__global__ void add_bias_kernel(const float* __restrict__ bias, Rows y) {
  const std::int64_t elements = y.rows * y.channels;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < elements; i += step) {
    const std::int64_t row = i / y.channels;
    const std::int64_t channel = i - row * y.channels;
    y.data[row * y.stride + channel] += bias[channel];
  }
}

struct WarpSums {
  double sums[kWarps][kWarpSize];
};

// partial [parts, C]; grid: parts x groups of 32 channels.
__global__ void column_sums_kernel(Rows x, double* __restrict__ partial) {
  WarpSums& shared = block_shared<WarpSums>();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.y) * kWarpSize + lane;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kRowsPerPart;
  const std::int64_t end = begin + kRowsPerPart < x.rows ? begin + kRowsPerPart : x.rows;
  double sum = 0;
  if (channel < x.channels) {
    for (std::int64_t row = begin + warp; row < end; row += kWarps) {
      sum += static_cast<double>(x.data[row * x.stride + channel]);
    }
  }
  shared.sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || channel >= x.channels) return;
  double total = 0;
  for (int w = 0; w < kWarps; ++w) total += shared.sums[w][lane];
  partial[blockIdx.x * x.channels + channel] = total;
}

__global__ void add_parts_kernel(const double* __restrict__ partial, std::int64_t parts,
                                 std::int64_t channels, float* __restrict__ result) {
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  double total = 0;
  for (std::int64_t part = 0; part < parts; ++part) total += partial[part * channels + channel];
  result[channel] += static_cast<float>(total);
}

}  // namespace

void add_bias(const Context& context, const float* bias, const Tensor& y) {
  const Rows rows = rows_of(y);
  launch(add_bias_kernel, blocks_for(rows.rows * rows.channels, kThreads, kMostBlocks), kThreads,
         context.stream, bias, rows);
}

void bias_gradient(const Context& context, const Tensor& grad_y, float* grad_bias) {
  const Rows rows = rows_of(grad_y);
  const std::int64_t parts = parts_of(rows.rows);
  if (parts == 0 || rows.channels == 0) return;
  LOCKSTEP_CHECK(parts <= 0x7fffffff && rows.channels <= 65535 * kWarpSize,
                 "expected a tensor of less rows or channels, got ", to_string(grad_y.shape));
  const auto bytes = static_cast<std::size_t>(parts * rows.channels) * sizeof(double);
  auto* partial = static_cast<double*>(context.scratch(bytes));
  const dim3 grid(static_cast<unsigned>(parts),
                  static_cast<unsigned>((rows.channels + kWarpSize - 1) / kWarpSize));
  launch(column_sums_kernel, grid, kThreads, context.stream, rows, partial);
  launch(add_parts_kernel, blocks_for(rows.channels, kThreads, kMostBlocks), kThreads,
         context.stream, partial, parts, rows.channels, grad_bias);
}

}  // namespace lockstep::gpu
