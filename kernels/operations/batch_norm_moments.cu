// BatchNorm's moments: one kernel reads x once and writes [2, C]. channel_slabs.h says how threads
// lie over a tensor. The convolution before has written the tail of x last, so the kernel sweeps
// from the end to the start: it begins with what is in the L2 cache, and leaves the start there for
// the kernel that normalises.
//
// Moments are (count, mean, M2) at every level, never sums of squares about zero:
// - A run is kRunRows rows of a thread: sums of d and d*d, d = x - pivot, where the pivot is the
//   mean of a few of the thread's rows. Chan's formula merges it into the thread's moments, whose
//   mean counts from the pivot, so that fp32 does not round away what is small beside it.
// - A block merges its threads' moments pairwise by Chan's formula, about a base that all blocks
//   agree on: the mean of a few rows of the tensor.
// - The tensor's are those of the chunks by Chan's formula for all of them at once:
//   mean = base + S / N, M2 = sum(M2_i + n_i m_i^2) - S^2 / N, S = sum(n_i m_i), the sums
//   compensated (compensated_sum.h) and the rest in double.

#include "backend/formulas.h"
#include "kernels/operations/batch_norm_channels.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/host_slot.h"
#include "kernels/operations/image_sums.h"
#include "kernels/primitives/channel_slabs.h"
#include "kernels/primitives/reduce.h"

namespace lockstep::gpu {
namespace {

constexpr int kThreads = ChannelSlabs::kThreads;
constexpr int kMomentRows = 8;  // in flight
constexpr int kPivotRows = 4;
constexpr int kBaseRows = 8;
constexpr int kRunRows = 32;

template <typename T>
struct MomentsArguments {
  ChannelSlabs slabs;
  Rows<const T> x;
  float* partials;  // [images, chunks, 2, C] mean less the base, M2
  unsigned* counters;
  float* slots;        // [images, 2, C]
  float* host_slots;   // the same, for peers out of reach; null: none
  std::int64_t width;  // of groups of channels that put their moments together; 1: none do
};

template <int kPack>
struct MomentsShared {
  float base[ChannelSlabs::kMaxWidth];
  float mean[kPack][kThreads];  // less the base
  float m2[kPack][kThreads];
  float count[kThreads];
};

// About the mean of `count` rows: that of the first kRows. Of equal rows their very value.
template <int kRows, bool kWhole, typename T>
__device__ void mean_of_few(const T* first, std::int64_t step, std::int64_t count, int valid,
                            float (&mean)[kPackWidth<T>]) {
  Pack<T> packs[kRows];
  LOCKSTEP_UNROLL
  for (int i = 0; i < kRows; ++i) {
    packs[i] = load_elements<kWhole>(first + (i < count ? i : count - 1) * step, valid);
  }
  LOCKSTEP_UNROLL
  for (int v = 0; v < kPackWidth<T>; ++v) {
    float sum = 0;
    LOCKSTEP_UNROLL
    for (int i = 1; i < kRows; ++i) sum += packs[i][v] - packs[0][v];
    mean[v] = packs[0][v] + sum * (1.0F / kRows);
  }
}

// What a thread knows of its rows; the means count from the pivots.
template <int kPack>
struct ThreadMoments {
  float count = 0;
  float pivot[kPack] = {}, mean[kPack] = {}, m2[kPack] = {};

  // Chan's formula; sums and squares of the deviations of `rows` rows from the pivots.
  __device__ void add_run(int rows, const float (&sums)[kPack], const float (&squares)[kPack]) {
    const auto n = static_cast<float>(rows);
    const float inverse = 1.0F / n;
    const float share = n / (count + n);
    LOCKSTEP_UNROLL
    for (int v = 0; v < kPack; ++v) {
      const float run_mean = sums[v] * inverse;
      const float run_m2 = squares[v] - sums[v] * run_mean;
      const float delta = run_mean - mean[v];
      mean[v] += delta * share;
      m2[v] += (run_m2 < 0.0F ? 0.0F : run_m2) + delta * delta * (count * share);  // NaN stays
    }
    count += n;
  }
};

// Sums of the deviations of kRows rows, or of the first `rows` of them.
template <int kRows, bool kWhole, bool kPartial, typename T, int kPack>
__device__ void add_deviations(const RowWalk<const T>& x, int rows, int valid,
                               const float (&pivot)[kPack], float (&sums)[kPack],
                               float (&squares)[kPack]) {
  Pack<T> packs[kRows] = {};
  load_rows<kRows, kWhole, kPartial>(x, rows, valid, packs);
  LOCKSTEP_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (kPartial && i >= rows) break;
    LOCKSTEP_UNROLL
    for (int v = 0; v < kPack; ++v) {
      const float d = packs[i][v] - pivot[v];
      sums[v] += d;
      squares[v] += d * d;
    }
  }
}

template <bool kWhole, typename T, int kPack>
__device__ void reduce_thread(const MomentsArguments<T>& a, const SlabThread& thread,
                              ThreadMoments<kPack>& moments) {
  constexpr int kRows = kWhole ? kMomentRows : 1;
  RowWalk<const T> x(a.x, a.slabs, thread, true);
  if (thread.count == 0) return;
  mean_of_few<kPivotRows, kWhole>(x.address, x.step, thread.count, thread.valid, moments.pivot);
  for (std::int64_t left = thread.count; left > 0; left -= kRunRows) {
    const int run = left < kRunRows ? static_cast<int>(left) : kRunRows;
    float sums[kPack] = {};
    float squares[kPack] = {};
    take_rows<kRows>(run, [&](int rows, auto partial) {
      add_deviations<kRows, kWhole, decltype(partial)::value>(x, rows, thread.valid, moments.pivot,
                                                              sums, squares);
      x.advance(rows);
    });
    moments.add_run(run, sums, squares);
  }
}

// The threads' moments about the base to shared memory. Every thread calls it.
template <bool kWhole, typename T, int kPack>
__device__ void share_moments(const MomentsArguments<T>& a, const SlabThread& thread,
                              const ThreadMoments<kPack>& moments, MomentsShared<kPack>& shared) {
  const int column = thread.column(a.slabs);
  if (thread.row_lane == 0 && thread.count > 0) {
    float base[kPack];
    const std::int64_t apart = a.slabs.rows < kBaseRows ? 1 : a.slabs.rows / kBaseRows;
    mean_of_few<kBaseRows, kWhole>(a.x.row(thread.image * a.slabs.rows) + thread.channel,
                                   apart * a.x.stride, a.slabs.rows, thread.valid, base);
    LOCKSTEP_UNROLL
    for (int v = 0; v < kPack; ++v) shared.base[column + v] = base[v];
  }
  __syncthreads();
  shared.count[threadIdx.x] = moments.count;
  LOCKSTEP_UNROLL
  for (int v = 0; v < kPack; ++v) {
    const bool any = moments.count > 0.0F;
    shared.mean[v][threadIdx.x] =
        any ? (moments.pivot[v] - shared.base[column + v]) + moments.mean[v] : 0.0F;
    shared.m2[v][threadIdx.x] = any ? moments.m2[v] : 0.0F;
  }
}

// Chan's formula for all channels of threads a and b.
template <int kPack>
__device__ void merge_threads(MomentsShared<kPack>& shared, int a, int b) {
  const float na = shared.count[a];
  const float nb = shared.count[b];
  if (nb == 0.0F) return;
  const float share = nb / (na + nb);
  LOCKSTEP_UNROLL
  for (int v = 0; v < kPack; ++v) {
    const float delta = shared.mean[v][b] - shared.mean[v][a];
    shared.mean[v][a] += delta * share;
    shared.m2[v][a] += shared.m2[v][b] + delta * delta * (na * share);
  }
  shared.count[a] = na + nb;
}

// A slot from the partials of all chunks. The last block's threads call it.
template <typename T>
__device__ void finish_moments(const MomentsArguments<T>& a, int image, int slab,
                               const float* base) {
  const ChannelSums sums = sum_chunks(a.slabs, slab, a.slabs.partial(a.partials, image),
                                      [&](ChannelSums& s, int chunk, float mean, float m2) {
                                        const auto rows =
                                            static_cast<float>(a.slabs.chunk_rows(chunk));
                                        s.first.add_product(rows, mean);
                                        s.second.add(m2);
                                        s.second.add_square(rows, mean);
                                      });
  const auto column = static_cast<int>(threadIdx.x);
  if (column >= a.slabs.width(slab)) return;
  const std::int64_t channel = a.slabs.first_channel(slab) + column;
  double mean = 0;
  double m2 = 0;
  if (a.slabs.rows > 0) {
    const double sum = sums.first.value();
    const double shift = sum / static_cast<double>(a.slabs.rows);
    mean = base[column] + shift;
    m2 = sums.second.value() - sum * shift;
  }
  write_slot(a.slots, a.host_slots, image, channel, a.slabs.channels, static_cast<float>(mean),
             static_cast<float>(m2 < 0 ? 0.0 : m2));
}

// A thread takes a group. The threads of the image's last block call it.
template <typename T>
__device__ void join_groups(const MomentsArguments<T>& a, int image) {
  const std::int64_t channels = a.slabs.channels;
  float* slot = a.slots + image * 2 * channels;
  for (std::int64_t c = threadIdx.x * a.width; c < channels; c += kThreads * a.width) {
    join_group(slot + c, a.width, channels, a.slabs.rows);
  }
}

template <typename T, bool kWhole>
__global__ void __launch_bounds__(kThreads, 2) moments_kernel(MomentsArguments<T> a) {
  constexpr int kPack = kPackWidth<T>;
  MomentsShared<kPack>& shared = block_shared<MomentsShared<kPack>>();
  const SlabThread thread(a.slabs);
  wait_for_previous_kernel();
  ThreadMoments<kPack> moments;
  reduce_thread<kWhole>(a, thread, moments);
  share_moments<kWhole>(a, thread, moments, shared);
  fold_row_lanes(a.slabs, thread, [&](int mine, int other) { merge_threads(shared, mine, other); });
  if (thread.row_lane == 0) {
    float* partial = a.slabs.partial(a.partials, thread.image, thread.chunk) + thread.channel;
    for (int v = 0; v < thread.valid; ++v) {
      partial[v] = shared.mean[v][threadIdx.x];
      partial[a.slabs.channels + v] = shared.m2[v][threadIdx.x];
    }
  }
  allow_next_kernel();
  unsigned* counter = slab_counter(a.counters, a.slabs, thread);
  if (!arrives_last(counter, static_cast<unsigned>(a.slabs.chunks))) return;
  finish_moments(a, thread.image, thread.slab, shared.base);
  if (a.width == 1) return;
  unsigned* of_image = image_counter(a.counters, a.slabs, thread.image);
  if (arrives_last(of_image, static_cast<unsigned>(a.slabs.slabs))) join_groups(a, thread.image);
}

void launch_moments(const Context& context, const Tensor& x, std::int64_t images,
                    std::int64_t width, float* slots) {
  const ChannelSlabs slabs(x, kMomentRows, ChannelSlabs::kReductionBlocks, images);
  auto* partials = static_cast<float*>(context.scratch(slabs.partial_bytes()));
  float* host_slots = host_slot_of(context, slots, images * 2 * x.shape.channels());
  with_element_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    const MomentsArguments<T> arguments{slabs, Rows<const T>(x), partials, context.counters,
                                        slots, host_slots,       width};
    const bool whole = rows_are_packs(kPackWidth<T>, {&x});
    launch_dependent(context.starts_early(),
                     whole ? moments_kernel<T, true> : moments_kernel<T, false>, slabs.grid(),
                     kThreads, context.stream, arguments);
  });
}

}  // namespace

void image_moments(const Context& context, const Tensor& x, std::int64_t images, std::int64_t width,
                   float* slots) {
  for_image_launches(x, images, [&](std::int64_t first, std::int64_t count) {
    launch_moments(context, parts_of(x, images, first, count), count, width,
                   slots + first * 2 * x.shape.channels());
  });
}

void GpuNorms::batch_norm_moments(const Tensor& x, float* slots, std::int64_t parts) {
  check_batch_norm_moments(x, slots, parts);
  check_parts(context_, "batch_norm_moments", parts == 1);
  image_moments(context_.entered(), x, parts, 1, slots);
}

}  // namespace lockstep::gpu
