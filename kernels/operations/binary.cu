// Functions of two elements, of which the second may be met by many of the first. A sum of two
// tensors of one shape, which most networks have, is a kernel of its own; all other functions are
// one that is told which.
//
// The gradient of what is met many times is a sum. A block takes 32 channels of one row of the
// result, its warps take the rows below in turn, in double, and the first warp adds up what they
// found, in their order. Several blocks share many rows, and the last of them adds up what all have
// found. The order depends on the rows below and the channels alone, not on the result's rows.

#include <algorithm>
#include <cmath>

#include "backend/operands.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/map.h"
#include "kernels/primitives/divisor.h"
#include "kernels/primitives/launch.h"
#include "kernels/primitives/ordered_sum.h"

namespace lockstep::gpu {
namespace {

/// Rows of T, or of fp32, which parameters are whatever activations are.
template <typename T>
struct EitherRows {
  void* data;
  std::int64_t stride;
  bool wide;

  explicit EitherRows(const Tensor& tensor)
      : data(tensor.data), stride(tensor.row_stride), wide(tensor.dtype == DType::kFloat32) {}

  __device__ float load(std::int64_t row, std::int32_t channel) const {
    const std::int64_t at = row * stride + channel;
    return wide ? static_cast<const float*>(data)[at] : to_float(static_cast<const T*>(data)[at]);
  }
  __device__ void store(std::int64_t row, std::int32_t channel, float value) const {
    const std::int64_t at = row * stride + channel;
    if (wide) {
      static_cast<float*>(data)[at] = value;
    } else {
      static_cast<T*>(data)[at] = from_float<T>(value);
    }
  }
};

/// The rows of an operand that is met again and again.
template <typename T>
struct RepeatedRows {
  EitherRows<T> rows;
  Divisor by_rows_each;
  bool one_channel;

  RepeatedRows(const Tensor& tensor, const Repetition& repetition)
      : rows(tensor), by_rows_each(repetition.rows_each), one_channel(repetition.one_channel) {}

  __device__ float at(std::int32_t row, std::int32_t channel) const {
    return rows.load(row / by_rows_each, one_channel ? 0 : channel);
  }
};

/// One pack of y = f(a, b), or of the gradient of a where there is one of y; += with `accumulate`.
template <typename T, int kWidth>
struct BinaryPack {
  BinaryKind kind;
  PackRows rows;
  Rows<const T> a;
  RepeatedRows<T> b;
  Rows<const T> grad_y;  // null: forward
  Rows<T> result;
  bool accumulate;

  __device__ float value(float left, float right, float gradient, float before) const {
    return with_binary(kind, [=, this](const auto& f) {
      if (grad_y.data == nullptr) return f(left, right);
      const LeftGradient of_left{f};
      return accumulate ? of_left.added(before, left, right, gradient)
                        : of_left(left, right, gradient);
    });
  }
  __device__ void operator()(std::int32_t i) const {
    const auto [row, pack] = rows.place(i);
    const std::int32_t c = pack * kWidth;
    const auto left = load_pack<kWidth>(a.row(row) + c);
    Pack<T, kWidth> gradient = {}, before = {};
    if (grad_y.data != nullptr) gradient = load_pack<kWidth>(grad_y.row(row) + c);
    T* target = result.row(row) + c;
    if (accumulate) before = load_pack<kWidth>(target);
    float values[kWidth];
    LOCKSTEP_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      values[k] = value(left[k], b.at(row, c + k), gradient[k], before[k]);
    }
    store_rounded(target, values);
  }
};

constexpr int kLanes = kWarpSize;
constexpr int kWarps = 8;
constexpr std::int64_t kMostChunks = 128;
constexpr std::int64_t kChunkRows = 16 * kWarps;  // at least, where blocks share rows

/// Sums over `rows_each` rows of a, and over the channels where the result has one.
template <typename T>
struct RightSums {
  BinaryKind kind;
  std::int64_t rows_each;
  std::int32_t channels, slabs;  // of 32 channels; one block takes all where there is one channel
  bool one_channel;
  int chunks;        // of rows, a block each
  double* partials;  // [sums of 32 channels, chunks, 32], where there are several
  unsigned* counters;
  std::int64_t first_row;  // of the result, in this launch
  Rows<const T> a, grad_y;
  EitherRows<T> grad_b;
  bool accumulate;

  __device__ void put(double sum, std::int64_t row, std::int32_t channel) const {
    const auto rounded = static_cast<float>(sum);
    grad_b.store(row, channel, accumulate ? grad_b.load(row, channel) + rounded : rounded);
  }
};

struct WarpTotals {
  double sums[kWarps][kLanes];
};

/// The sums over the warps, of use in the first one.
__device__ inline double sum_warps(WarpTotals& shared, int warp, int lane, double mine) {
  shared.sums[warp][lane] = mine;
  __syncthreads();
  double total = 0;
  if (warp != 0) return total;
  for (int w = 0; w < kWarps; ++w) total += shared.sums[w][lane];
  return total;
}

/// Of the thread's rows of one channel.
template <typename T>
__device__ double sum_rows(const RightSums<T>& task, std::int64_t first, int warp,
                           std::int32_t channel) {
  return with_binary(task.kind, [&](const auto& f) {
    const RightGradient gradient{f};
    double sum = 0;
    const std::int64_t step = std::int64_t{kWarps} * task.chunks;
    for (std::int64_t row = blockIdx.y * kWarps + warp; row < task.rows_each; row += step) {
      sum += gradient.wide(to_float(task.a.row(first + row)[channel]),
                           to_float(task.grad_y.row(first + row)[channel]));
    }
    return sum;
  });
}

template <typename T>
__global__ void right_sums_kernel(RightSums<T> task) {
  WarpTotals& shared = block_shared<WarpTotals>();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int32_t slabs = task.one_channel ? 1 : task.slabs;
  const std::int64_t row = task.first_row + static_cast<std::int64_t>(blockIdx.x) / slabs;
  const auto slab = static_cast<std::int32_t>(static_cast<std::int64_t>(blockIdx.x) % slabs);
  double sum = 0;
  for (std::int32_t s = slab; s < (task.one_channel ? task.slabs : slab + 1); ++s) {
    const std::int32_t channel = s * kLanes + lane;
    if (channel < task.channels) sum += sum_rows(task, row * task.rows_each, warp, channel);
  }
  double total = sum_warps(shared, warp, lane, sum);
  if (task.chunks > 1) {
    double* partials = task.partials + std::int64_t{blockIdx.x} * task.chunks * kLanes + lane;
    if (warp == 0) partials[blockIdx.y * kLanes] = total;
    if (!arrives_last(task.counters + blockIdx.x, static_cast<unsigned>(task.chunks))) return;
    sum = 0;
    for (int chunk = warp; chunk < task.chunks; chunk += kWarps) sum += partials[chunk * kLanes];
    total = sum_warps(shared, warp, lane, sum);
  }
  if (warp != 0) return;
  const std::int32_t channel = slab * kLanes + lane;
  if (!task.one_channel) {
    if (channel < task.channels) task.put(total, row, channel);
    return;
  }
  total = warp_sum(total);
  if (lane == 0) task.put(total, row, 0);
}

/// grad_y: null for the function itself.
void map_repeated(const Context& context, const char* operation, BinaryKind kind, const Tensor& a,
                  const Tensor& b, const Tensor& grad_y, const Tensor& result, bool accumulate) {
  if (result.shape.elements() == 0) return;
  const Repetition repetition = *find_repetition(result.shape, b.shape);
  with_packs({&result, &a, &grad_y}, [&](auto element, auto width) {
    using T = decltype(element);
    const std::int64_t packs = result.shape.channels() / width;
    // Runs that begin where a row of b does.
    const Shape& shape = result.shape;
    for_image_runs(operation, width, {&result}, [&](std::int64_t n, std::int64_t count) {
      const std::int64_t first = n * shape.rows_per_sample();
      const std::int64_t rows = count * shape.rows_per_sample();
      Tensor met = b;
      if (b.shape.batch() == shape.batch()) met = b.sample_range(n, count);
      const BinaryPack<T, width()> pack{
          kind,
          PackRows(packs),
          Rows<const T>(a).from(first),
          RepeatedRows<T>(met, repetition),
          grad_y ? Rows<const T>(grad_y).from(first) : Rows<const T>(),
          Rows<T>(result).from(first),
          accumulate};
      for_each(context, static_cast<std::int32_t>(rows * packs), pack);
    });
  });
}

}  // namespace

void GpuActivations::binary_forward(BinaryKind kind, const Tensor& a, const Tensor& b,
                                    const Tensor& y) {
  check_binary_forward(a, b, y);
  const Context& context = context_.entered();
  if (kind == BinaryKind::kAdd && b.shape == y.shape && b.dtype == y.dtype) {
    return map_activations(context, Add(), a, b, y, false);
  }
  map_repeated(context, "binary_forward", kind, a, b, {}, y, false);
}

void GpuActivations::binary_backward_left(BinaryKind kind, const Tensor& a, const Tensor& b,
                                          const Tensor& grad_y, const Tensor& grad_a,
                                          bool accumulate) {
  check_binary_backward_left(a, b, grad_y, grad_a);
  const Context& context = context_.entered();
  map_repeated(context, "binary_backward_left", kind, a, b, grad_y, grad_a, accumulate);
}

void GpuActivations::binary_backward_right(BinaryKind kind, const Tensor& a, const Tensor& grad_y,
                                           const Tensor& grad_b, bool accumulate) {
  check_binary_backward_right(a, grad_y, grad_b);
  const Context& context = context_.entered();
  if (a.shape.elements() == 0) return;
  const std::int64_t each = find_repetition(a.shape, grad_b.shape)->rows_each;
  if (grad_b.shape == a.shape && grad_b.dtype == a.dtype) {
    return map_activations(context, AnyRightGradient{kind}, a, grad_y, grad_b, accumulate);
  }
  const bool one_channel = grad_b.shape.channels() != a.shape.channels();
  const auto channels = static_cast<std::int32_t>(a.shape.channels());
  const std::int32_t slabs = (channels + kLanes - 1) / kLanes;
  const std::int64_t blocks = one_channel ? 1 : slabs;  // of a row
  const std::int64_t chunks =
      blocks > Context::kCounters ? 1 : std::clamp<std::int64_t>(each / kChunkRows, 1, kMostChunks);
  // So many rows as there are counters for.
  const std::int64_t most = std::max<std::int64_t>(1, Context::kCounters / blocks);
  const std::int64_t rows = std::min(most, grad_b.shape.rows());
  auto* memory = static_cast<double*>(
      context.scratch(static_cast<std::size_t>(rows * blocks * chunks * kLanes) * sizeof(double)));
  with_element_type(a.dtype, [&](auto element) {
    using T = decltype(element);
    RightSums<T> task{kind,
                      each,
                      channels,
                      slabs,
                      one_channel,
                      static_cast<int>(chunks),
                      memory,
                      context.counters,
                      0,
                      Rows<const T>(a),
                      Rows<const T>(grad_y),
                      EitherRows<T>(grad_b),
                      accumulate};
    for (; task.first_row < grad_b.shape.rows(); task.first_row += most) {
      const std::int64_t count = std::min(most, grad_b.shape.rows() - task.first_row);
      launch(right_sums_kernel<T>,
             {static_cast<unsigned>(count * blocks), static_cast<unsigned>(chunks)},
             kWarps * kWarpSize, context.stream, task);
    }
  });
}

}  // namespace lockstep::gpu
