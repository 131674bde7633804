// BatchNorm's normalisation: one kernel reads x (and the residual) and writes y. channel_slabs.h
// says how threads lie over a tensor. Every block first merges the replicas' statistics of its
// channels itself, which are few, and one of each slab keeps them for the backward pass and
// evaluation. The sweep goes from the start to the end: the moments kernel ended at the start,
// which the L2 cache holds.

#include <limits>

#include "backend/operands.h"
#include "kernels/operations/batch_norm_channels.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/image_sums.h"
#include "kernels/primitives/reduce.h"

namespace lockstep::gpu {
namespace {

constexpr int kThreads = ChannelSlabs::kThreads;
constexpr int kNormalizeRows = 4;    // in flight
constexpr int kNormalizeBlocks = 3;  // of a multiprocessor

// What follows from the moments of a channel.
struct BatchStatistics {
  AffineParameters affine;
  float eps;
  EpsMode eps_mode;

  // saved [3, C] of the channel's image: gets what the backward pass needs; null: does not.
  __device__ ChannelConstants from(std::int64_t c, std::int64_t channels, float mean, double m2,
                                   std::int64_t count, float* saved) const {
    const ChannelAffine parameters = channel_affine(affine, c);
    const double var = m2 / static_cast<double>(count);
    const double invstd = inverse_std(var, eps, eps_mode);
    if (saved != nullptr) {
      saved[c] = mean;
      saved[channels + c] = static_cast<float>(invstd);
      saved[2 * channels + c] =
          variance_has_gradient(var, eps, eps_mode) ? static_cast<float>(invstd * invstd) : 0.0F;
    }
    return channel_constants(parameters, mean, static_cast<float>(invstd));
  }
};

// The statistics of a training forward pass: those of all replicas.
struct MergedStatistics {
  SlotTable slots;
  BatchStatistics batch;
  float* saved;  // [3, C]
  RunningStatistics running;

  // Rounded once to fp32 before anything is derived, so that slots merged beforehand give the same
  // bits. One block of a slab also keeps what the backward pass and evaluation need.
  __device__ ChannelConstants operator()(std::int64_t c, std::int64_t channels,
                                         const SlabThread& thread) const {
    double total_mean = 0;
    double total_m2 = 0;
    for_each_slot(slots, c, channels, [&](int s, float slot_mean, float slot_m2) {
      if (s == 0) {
        total_mean = slot_mean;
        total_m2 = slot_m2;
      } else {
        join_moments(total_mean, total_m2, slot_mean, slot_m2, slots.weights[s]);
      }
    });
    const auto mean = static_cast<float>(total_mean);
    const double m2 = static_cast<float>(total_m2);
    const bool publish = thread.chunk == 0;
    if (publish) {
      if (running.mean != nullptr) {
        running.mean[c] = update_running(running.mean[c], mean, running.momentum);
      }
      if (running.var != nullptr) {
        const double unbiased = m2 / static_cast<double>(slots.count - 1);
        running.var[c] = update_running(running.var[c], unbiased, running.momentum);
      }
    }
    return batch.from(c, channels, mean, m2, slots.count, publish ? saved : nullptr);
  }
};

// Those of every image by itself.
struct ImageStatistics {
  const float* moments;  // [images, 2, C]
  std::int64_t count;    // of values behind each
  BatchStatistics batch;
  float* saved;  // [images, 3, C]

  __device__ ChannelConstants operator()(std::int64_t c, std::int64_t channels,
                                         const SlabThread& thread) const {
    const float* slot = moments + thread.image * 2 * channels;
    float* own = thread.chunk == 0 ? saved + thread.image * 3 * channels : nullptr;
    return batch.from(c, channels, slot[c], static_cast<double>(slot[channels + c]), count, own);
  }
};

// Those that a training forward pass kept.
struct SavedStatistics {
  AffineParameters affine;
  const float* saved;  // [3, C]

  __device__ ChannelConstants operator()(std::int64_t c, std::int64_t channels,
                                         const SlabThread&) const {
    return channel_constants(channel_affine(affine, c), saved[c], saved[channels + c]);
  }
};

struct GivenStatistics {
  AffineParameters affine;
  float eps;
  EpsMode eps_mode;
  const float* mean;  // [C]
  const float* var;   // [C]

  __device__ ChannelConstants operator()(std::int64_t c, std::int64_t, const SlabThread&) const {
    const double invstd = inverse_std(var[c], eps, eps_mode);
    return channel_constants(channel_affine(affine, c), mean[c], static_cast<float>(invstd));
  }
};

template <typename T, typename Statistics>
struct NormalizeArguments {
  ChannelSlabs slabs;
  Rows<const T> x, residual;
  Rows<T> y;
  float lowest;  // of y: 0 for the ReLU, else minus infinity
  Statistics statistics;
};

struct ConstantsShared {
  ChannelConstants channels[ChannelSlabs::kMaxWidth];
};

// One thread per channel of the slab derives its constants; all threads take theirs.
template <typename T, typename Statistics, int kPack>
__device__ void prepare_constants(const NormalizeArguments<T, Statistics>& a,
                                  const SlabThread& thread, PackConstants<kPack>& constants) {
  ConstantsShared& shared = block_shared<ConstantsShared>();
  const auto column = static_cast<int>(threadIdx.x);
  if (column < a.slabs.width(thread.slab)) {
    shared.channels[column] =
        a.statistics(a.slabs.first_channel(thread.slab) + column, a.slabs.channels, thread);
  }
  __syncthreads();
  LOCKSTEP_UNROLL
  for (int v = 0; v < kPack; ++v) {
    const ChannelConstants c = shared.channels[thread.column(a.slabs) + v];
    constants.mean[v] = c.mean;
    constants.scale[v] = c.scale;
    constants.shift[v] = c.shift;
  }
}

// y of kRows rows, or of the first `rows` of them.
template <int kRows, bool kWhole, bool kPartial, bool kResidual, typename T, int kPack>
__device__ void normalize_rows(const RowWalk<const T>& x, const RowWalk<const T>& residual,
                               const RowWalk<T>& y, int rows, int valid,
                               const PackConstants<kPack>& constants, float lowest) {
  Pack<T> packs[kRows] = {};
  Pack<T> residuals[kRows] = {};
  load_rows<kRows, kWhole, kPartial>(x, rows, valid, packs);
  if constexpr (kResidual) load_rows<kRows, kWhole, kPartial>(residual, rows, valid, residuals);
  LOCKSTEP_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (kPartial && i >= rows) break;
    Pack<T> out = {};
    LOCKSTEP_UNROLL
    for (int v = 0; v < kPack; ++v) {
      float value =
          normalize(packs[i][v], constants.mean[v], constants.scale[v], constants.shift[v]);
      if constexpr (kResidual) value += residuals[i][v];
      out.set(v, from_float<T>(value < lowest ? lowest : value));  // NaN passes
    }
    store_elements<kWhole>(y.row(i), out, valid);
  }
}

template <typename T, bool kWhole, bool kResidual, typename Statistics>
__global__ void __launch_bounds__(kThreads, kNormalizeBlocks)
    normalize_kernel(NormalizeArguments<T, Statistics> a) {
  constexpr int kRows = kWhole ? kNormalizeRows : 1;
  const SlabThread thread(a.slabs);
  wait_for_previous_kernel();
  PackConstants<kPackWidth<T>> constants;
  prepare_constants(a, thread, constants);
  RowWalk<const T> x(a.x, a.slabs, thread, false);
  RowWalk<const T> residual(kResidual ? a.residual : a.x, a.slabs, thread, false);
  RowWalk<T> y(a.y, a.slabs, thread, false);
  take_rows<kRows>(thread.count, [&](int rows, auto partial) {
    normalize_rows<kRows, kWhole, decltype(partial)::value, kResidual>(
        x, residual, y, rows, thread.valid, constants, a.lowest);
    x.advance(rows);
    residual.advance(rows);
    y.advance(rows);
  });
}

template <typename T, typename Statistics>
void launch_normalize(const Context& context, const Tensor& x, const Tensor& residual,
                      const Tensor& y, bool relu, const Statistics& statistics,
                      std::int64_t images) {
  const std::int64_t blocks = std::int64_t{kNormalizeBlocks} * context.multiprocessors;
  const ChannelSlabs slabs(x, kNormalizeRows, blocks / images, images);
  const NormalizeArguments<T, Statistics> arguments{
      slabs,
      Rows<const T>(x),
      Rows<const T>(residual),
      Rows<T>(y),
      relu ? 0.0F : -std::numeric_limits<float>::infinity(),
      statistics};
  const bool whole = rows_are_packs(kPackWidth<T>, {&x, &residual, &y});
  const auto kernel = whole ? (residual ? normalize_kernel<T, true, true, Statistics>
                                        : normalize_kernel<T, true, false, Statistics>)
                            : (residual ? normalize_kernel<T, false, true, Statistics>
                                        : normalize_kernel<T, false, false, Statistics>);
  launch_dependent(context.starts_early(), kernel, slabs.grid(), kThreads, context.stream,
                   arguments);
}

template <typename Statistics>
void normalize_tensor(const Context& context, const Tensor& x, const Tensor& residual,
                      const Tensor& y, bool relu, const Statistics& statistics,
                      std::int64_t images = 1) {
  with_element_type(x.dtype, [&](auto element) {
    launch_normalize<decltype(element)>(context, x, residual, y, relu, statistics, images);
  });
}

}  // namespace

void GpuNorms::batch_norm_forward(const BatchNormForward& a) {
  check_operands(a);
  check_parts(context_, "batch_norm_forward", are_whole(a.slots));
  const Context& context = context_.entered();
  if (a.slots.empty()) {
    if (a.x.shape.rows() == 0) return;
    return normalize_tensor(context, a.x, a.residual, a.y, a.relu,
                            SavedStatistics{a.affine, a.saved.data});
  }
  if (!are_whole(a.slots)) {
    const StatSlot merged = merge_moments(context, a.slots, a.x.shape.channels());
    BatchNormForward one = a;
    one.slots = {&merged, 1};
    return GpuNorms::batch_norm_forward(one);
  }
  const SlotTable slots(a.slots);
  if (slots.count == 0 && a.x.shape.rows() == 0) return;
  normalize_tensor(context, a.x, a.residual, a.y, a.relu,
                   MergedStatistics{slots, {a.affine, a.eps, a.eps_mode}, a.saved.data, a.running});
}

void GpuNorms::group_norm_forward(const GroupNormForward& a) {
  check_operands(a);
  const Context& context = context_.entered();
  const GroupShape of(a.x.shape, a.groups);
  if (of.images == 0) return;
  image_moments(context, a.x, of.images, of.width, a.work);
  for_image_launches(a.x, of.images, [&](std::int64_t first, std::int64_t count) {
    const auto run = [&](const Tensor& all) { return parts_of(all, of.images, first, count); };
    normalize_tensor(context, run(a.x), run(a.residual), run(a.y), a.relu,
                     ImageStatistics{a.work + first * 2 * of.channels,
                                     of.rows * of.width,
                                     {a.affine, a.eps, a.eps_mode},
                                     a.saved + first * 3 * of.channels},
                     count);
  });
}

void GpuNorms::batch_norm_inference(const BatchNormInference& a) {
  check_operands(a);
  const Context& context = context_.entered();
  if (a.x.shape.rows() == 0) return;
  normalize_tensor(context, a.x, a.residual, a.y, a.relu,
                   GivenStatistics{a.affine, a.eps, a.eps_mode, a.mean, a.var});
}

}  // namespace lockstep::gpu
