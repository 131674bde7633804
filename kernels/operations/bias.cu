// A bias is added to one pack of channels at a time. Its gradient is a reduction like BatchNorm's
// (reduce.h): a thread sums its rows, a block folds its threads' sums, and the block that finishes
// last adds up those of all blocks. Every sum is a CompensatedSum, and has an order that depends on
// the shape and the element's size only.

#include "backend/formulas.h"
#include "kernels/operations/launchers.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/index_runs.h"
#include "kernels/primitives/pack.h"
#include "kernels/primitives/reduce.h"
#include "kernels/primitives/views.h"

namespace lockstep::gpu {
namespace {

constexpr int kThreads = ChannelSlabs::kThreads;
constexpr int kRowsAtOnce = 4;  // of a thread

template <typename T, int kWidth>
struct AddBiasToPack {
  PackRows rows;
  const float* bias;
  Rows<T> y;

  __device__ void operator()(std::int32_t i) const {
    const auto [row, pack] = rows.place(i);
    const std::int32_t c = pack * kWidth;
    float values[kWidth];
    load_values(y.row(row) + c, values);
    LOCKSTEP_UNROLL
    for (int k = 0; k < kWidth; ++k) values[k] = Add()(values[k], bias[c + k]);
    store_rounded(y.row(row) + c, values);
  }
};

template <typename T>
struct ColumnSums {
  ChannelSlabs slabs;
  Rows<const T> x;
  float* partials;  // [chunks, 2, C] a sum in fp32, and what that leaves of it
  unsigned* counters;
  float* result;  // [C]
};

template <int kPack>
struct SumsShared {
  CompensatedSum sums[kPack][kThreads];
};

template <int kRows, bool kWhole, bool kPartial, typename T, int kPack>
__device__ void add_rows(const RowWalk<const T>& x, int rows, int valid,
                         CompensatedSum (&sums)[kPack]) {
  Pack<T> packs[kRows] = {};
  load_rows<kRows, kWhole, kPartial>(x, rows, valid, packs);
  LOCKSTEP_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (kPartial && i >= rows) break;
    LOCKSTEP_UNROLL
    for (int v = 0; v < kPack; ++v) sums[v].add(packs[i][v]);
  }
}

template <typename T, bool kWhole>
__global__ void __launch_bounds__(kThreads) column_sums_kernel(ColumnSums<T> a) {
  constexpr int kPack = kPackWidth<T>;
  SumsShared<kPack>& shared = block_shared<SumsShared<kPack>>();
  const SlabThread thread(a.slabs);
  CompensatedSum sums[kPack];
  RowWalk<const T> x(a.x, a.slabs, thread, false);
  take_rows<kRowsAtOnce>(thread.count, [&](int rows, auto partial) {
    add_rows<kRowsAtOnce, kWhole, decltype(partial)::value>(x, rows, thread.valid, sums);
    x.advance(rows);
  });
  LOCKSTEP_UNROLL
  for (int v = 0; v < kPack; ++v) shared.sums[v][threadIdx.x] = sums[v];
  fold_row_lanes(a.slabs, thread, [&](int mine, int other) {
    LOCKSTEP_UNROLL
    for (int v = 0; v < kPack; ++v) shared.sums[v][mine].add(shared.sums[v][other]);
  });
  if (thread.row_lane == 0) {
    float* partial = a.slabs.partial(a.partials, thread.image, thread.chunk) + thread.channel;
    for (int v = 0; v < thread.valid; ++v) {
      const CompensatedSum sum = shared.sums[v][threadIdx.x].normalized();
      partial[v] = sum.sum;
      partial[a.slabs.channels + v] = sum.rest;
    }
  }
  unsigned* counter = slab_counter(a.counters, a.slabs, thread);
  if (!arrives_last(counter, static_cast<unsigned>(a.slabs.chunks))) return;
  const ChannelSums total =
      sum_chunks(a.slabs, thread.slab, a.partials, [](ChannelSums& s, int, float sum, float rest) {
        s.first.add(CompensatedSum{sum, rest});
      });
  const int column = static_cast<int>(threadIdx.x);
  if (column >= a.slabs.width(thread.slab)) return;
  a.result[a.slabs.first_channel(thread.slab) + column] += static_cast<float>(total.first.value());
}

}  // namespace

void add_bias(const Context& context, const float* bias, const Tensor& y) {
  with_packs({&y}, [&](auto element, auto width) {
    using T = decltype(element);
    const std::int64_t packs = y.shape.channels() / width;
    for_row_runs("add_bias", y.shape.rows(), packs, [&](std::int64_t first, std::int64_t count) {
      const AddBiasToPack<T, width()> add{PackRows(packs), bias, Rows<T>(y).from(first)};
      for_each(context, static_cast<std::int32_t>(count * packs), add);
    });
  });
}

void bias_gradient(const Context& context, const Tensor& grad_y, float* grad_bias) {
  if (grad_y.shape.elements() == 0) return;
  const ChannelSlabs slabs(grad_y, kRowsAtOnce, ChannelSlabs::kReductionBlocks);
  auto* partials = static_cast<float*>(context.scratch(slabs.partial_bytes()));
  with_element_type(grad_y.dtype, [&](auto element) {
    using T = decltype(element);
    const ColumnSums<T> arguments{slabs, Rows<const T>(grad_y), partials, context.counters,
                                  grad_bias};
    const bool whole = rows_are_packs(kPackWidth<T>, {&grad_y});
    launch(whole ? column_sums_kernel<T, true> : column_sums_kernel<T, false>, slabs.grid(),
           kThreads, context.stream, arguments);
  });
}

}  // namespace lockstep::gpu
