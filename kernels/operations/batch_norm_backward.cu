// BatchNorm's backward pass: the reduce kernel reads x and dy and writes [2, C] sums; the apply
// kernel reads both again and writes dx (and the residual's gradient). channel_slabs.h says how
// threads lie over a tensor. The reduce kernel sweeps from the end to the start and the apply
// kernel from the start to the end, so that each begins with what is still in the L2 cache. With
// dy' = dy masked by the ReLU, N rows of all replicas and x^ = (x - mu) * invstd:
//   dbeta = sum dy',  dgamma = sum dy' * x^,
//   dx = gamma * invstd * (dy' - sum(dy') / N - (x - mu) * invstd^2 * sum(dy' * (x - mu)) / N).
//
// A thread sums runs of kRunRows rows, then its runs, a block its threads pairwise, all in fp32;
// the chunks are added up as compensated sums.

#include "kernels/operations/batch_norm_channels.h"
#include "kernels/operations/batch_norm_gradient.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/host_slot.h"
#include "kernels/operations/image_sums.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/reduce.h"

namespace lockstep::gpu {
namespace {

constexpr int kThreads = ChannelSlabs::kThreads;
constexpr int kRunRows = 32;
constexpr int kBlocks = 2;  // of a multiprocessor

// --- reduce

template <typename T>
struct ReduceArguments {
  GradientRows<T> rows;
  AffineParameters affine;
  SavedOfImages saved;
  float* partials;  // [images, chunks, 2, C]
  unsigned* counters;
  float* sums;               // [images, 2, C]
  float* host_sums;          // the same, for peers out of reach; null: none
  float* grad_weight;        // [C] or null; of every image from `grad_stride` on
  float* grad_bias;          // the same
  std::int64_t grad_stride;  // 0: of one image, added to what is there
};

template <int kPack>
struct SumsShared {
  float sums[kPack][kThreads], products[kPack][kThreads];
};

// sum dy' and sum dy' * (x - mu) of a thread's channels.
template <int kPack>
struct ThreadSums {
  float sums[kPack] = {}, products[kPack] = {};

  __device__ void add(const ThreadSums& other) {
    LOCKSTEP_UNROLL
    for (int v = 0; v < kPack; ++v) {
      sums[v] += other.sums[v];
      products[v] += other.products[v];
    }
  }
  template <bool kPartial, Mask kMask, int kRows, typename T>
  __device__ void add_rows(const GradientPacks<kMask, kRows, T>& packs, int rows,
                           const PackConstants<kPack>& constants) {
    LOCKSTEP_UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (kPartial && i >= rows) break;
      LOCKSTEP_UNROLL
      for (int v = 0; v < kPack; ++v) {
        const float grad = packs.masked(i, v, constants);
        sums[v] += grad;
        products[v] += grad * (packs.x[i][v] - constants.mean[v]);
      }
    }
  }
};

template <Mask kMask, bool kWhole, typename T, int kPack>
__device__ void reduce_thread(const ReduceArguments<T>& a, const SlabThread& thread,
                              ThreadSums<kPack>& total) {
  constexpr int kRows = kRowsAtOnce<kMask, kWhole>;
  const std::int64_t channels = a.rows.slabs.channels;
  PackConstants<kPack> constants = {};
  for (int v = 0; v < kPack; ++v) {
    if (v >= thread.valid) break;
    const std::int64_t c = thread.channel + v;
    const float* saved = a.saved.of(thread.image);
    const ChannelConstants of =
        channel_constants(channel_affine(a.affine, c), saved[c], saved[channels + c]);
    constants.mean[v] = of.mean;
    constants.scale[v] = of.scale;
    constants.shift[v] = of.shift;
  }
  GradientWalk<kMask, T> walk(a.rows, thread, true);
  for (std::int64_t left = thread.count; left > 0; left -= kRunRows) {
    ThreadSums<kPack> run;
    take_rows<kRows>(left < kRunRows ? left : kRunRows, [&](int rows, auto partial) {
      constexpr bool kPartial = decltype(partial)::value;
      GradientPacks<kMask, kRows, T> packs;
      packs.template load<kWhole, kPartial>(walk, rows, thread.valid);
      run.template add_rows<kPartial>(packs, rows, constants);
      walk.advance(rows);
    });
    total.add(run);
  }
}

// The result, and what it adds to the gradients of gamma and beta. The last block's threads call
// it.
template <typename T>
__device__ void finish_sums(const ReduceArguments<T>& a, int image, int slab) {
  const ChannelSlabs& slabs = a.rows.slabs;
  const ChannelSums total = sum_chunks(slabs, slab, slabs.partial(a.partials, image),
                                       [](ChannelSums& s, int, float sum, float product) {
                                         s.first.add(sum);
                                         s.second.add(product);
                                       });
  const auto column = static_cast<int>(threadIdx.x);
  if (column >= slabs.width(slab)) return;
  const std::int64_t c = slabs.first_channel(slab) + column;
  const auto sum = static_cast<float>(total.first.value());
  const double product = total.second.value();
  write_slot(a.sums, a.host_sums, image, c, slabs.channels, sum, static_cast<float>(product));
  if (a.grad_weight == nullptr) return;
  const double invstd = a.saved.of(image)[slabs.channels + c];
  const std::int64_t at = image * a.grad_stride + c;
  const bool add = a.grad_stride == 0;
  a.grad_weight[at] = (add ? a.grad_weight[at] : 0.0F) + static_cast<float>(product * invstd);
  a.grad_bias[at] = (add ? a.grad_bias[at] : 0.0F) + sum;
}

template <typename T, bool kWhole, Mask kMask>
__global__ void __launch_bounds__(kThreads, kBlocks) backward_reduce_kernel(ReduceArguments<T> a) {
  constexpr int kPack = kPackWidth<T>;
  SumsShared<kPack>& shared = block_shared<SumsShared<kPack>>();
  const ChannelSlabs& slabs = a.rows.slabs;
  const SlabThread thread(slabs);
  wait_for_previous_kernel();
  ThreadSums<kPack> mine;
  reduce_thread<kMask, kWhole>(a, thread, mine);
  LOCKSTEP_UNROLL
  for (int v = 0; v < kPack; ++v) {
    shared.sums[v][threadIdx.x] = mine.sums[v];
    shared.products[v][threadIdx.x] = mine.products[v];
  }
  fold_row_lanes(slabs, thread, [&](int to, int from) {
    LOCKSTEP_UNROLL
    for (int v = 0; v < kPack; ++v) {
      shared.sums[v][to] += shared.sums[v][from];
      shared.products[v][to] += shared.products[v][from];
    }
  });
  if (thread.row_lane == 0) {
    float* partial = slabs.partial(a.partials, thread.image, thread.chunk) + thread.channel;
    for (int v = 0; v < thread.valid; ++v) {
      partial[v] = shared.sums[v][threadIdx.x];
      partial[slabs.channels + v] = shared.products[v][threadIdx.x];
    }
  }
  allow_next_kernel();
  unsigned* counter = slab_counter(a.counters, slabs, thread);
  if (!arrives_last(counter, static_cast<unsigned>(slabs.chunks))) return;
  finish_sums(a, thread.image, thread.slab);
}

// --- apply

template <typename T>
struct ApplyArguments {
  GradientRows<T> rows;
  SlotTable slots;
  AffineParameters affine;
  const float* saved;  // [3, C]
  InputGradient<T> gradient;
};

// What dx needs of a channel.
struct GradientConstants {
  ChannelConstants forward;
  float mean_gradient;  // sum(dy') / N
  float projection;     // invstd^2 * sum(dy' * (x - mu)) / N, or 0
};

struct GradientConstantsShared {
  GradientConstants channels[ChannelSlabs::kMaxWidth];
};

// The merged sums are rounded once to fp32, so that sums merged beforehand give the same bits.
template <typename T>
__device__ GradientConstants gradient_constants(const ApplyArguments<T>& a, std::int64_t c) {
  const std::int64_t channels = a.rows.slabs.channels;
  const ChannelAffine affine = channel_affine(a.affine, c);
  const float mean = a.saved[c];
  const float invstd = a.saved[channels + c];
  const double invstd_squared = a.saved[2 * channels + c];
  double sum = 0;
  double product = 0;
  for_each_slot(a.slots, c, channels, [&](int, float slot_sum, float slot_product) {
    sum += slot_sum;
    product += slot_product;
  });
  const auto total = static_cast<double>(a.slots.count);
  return {channel_constants(affine, mean, invstd),
          static_cast<float>(static_cast<float>(sum) / total),
          static_cast<float>(invstd_squared * static_cast<float>(product) / total)};
}

// One thread per channel of the slab derives its constants; all threads take theirs.
template <typename T, int kPack>
__device__ void prepare_constants(const ApplyArguments<T>& a, const SlabThread& thread,
                                  PackGradientConstants<kPack>& constants) {
  GradientConstantsShared& shared = block_shared<GradientConstantsShared>();
  const ChannelSlabs& slabs = a.rows.slabs;
  const auto column = static_cast<int>(threadIdx.x);
  if (column < slabs.width(thread.slab)) {
    shared.channels[column] = gradient_constants(a, slabs.first_channel(thread.slab) + column);
  }
  __syncthreads();
  LOCKSTEP_UNROLL
  for (int v = 0; v < kPack; ++v) {
    const GradientConstants c = shared.channels[thread.column(slabs) + v];
    constants.set(v, c.forward, c.mean_gradient, c.projection);
  }
}

template <typename T, bool kWhole, Mask kMask>
__global__ void __launch_bounds__(kThreads, kBlocks) backward_apply_kernel(ApplyArguments<T> a) {
  const SlabThread thread(a.rows.slabs);
  wait_for_previous_kernel();
  PackGradientConstants<kPackWidth<T>> constants;
  prepare_constants(a, thread, constants);
  write_input_gradient<BatchNormInputGradient, kWhole, kMask>(a.rows, a.gradient, thread,
                                                              constants);
}

void launch_reduce(const Context& context, const ImagesReduce& a) {
  const ChannelSlabs slabs(a.x, kMostRows, ChannelSlabs::kReductionBlocks, a.images);
  auto* partials = static_cast<float*>(context.scratch(slabs.partial_bytes()));
  float* host_sums = host_slot_of(context, a.sums, a.images * 2 * slabs.channels);
  const bool any = a.x.shape.rows() > 0;  // else `saved` may never have been written
  with_element_type(a.x.dtype, [&](auto element) {
    using T = decltype(element);
    const bool whole = rows_are_packs(kPackWidth<T>, {&a.x, &a.grad_y, &a.y});
    const ReduceArguments<T> arguments{gradient_rows<T>(slabs, a.x, a.grad_y, a.y),
                                       a.affine,
                                       a.saved,
                                       partials,
                                       context.counters,
                                       a.sums,
                                       host_sums,
                                       any ? a.grad_weight : nullptr,
                                       any ? a.grad_bias : nullptr,
                                       a.grad_stride};
    const auto kernel =
        choose<void(ReduceArguments<T>)>(whole, a.relu, a.y,
                                         {{backward_reduce_kernel<T, false, Mask::kNone>,
                                           backward_reduce_kernel<T, false, Mask::kFromX>,
                                           backward_reduce_kernel<T, false, Mask::kFromY>},
                                          {backward_reduce_kernel<T, true, Mask::kNone>,
                                           backward_reduce_kernel<T, true, Mask::kFromX>,
                                           backward_reduce_kernel<T, true, Mask::kFromY>}});
    launch_dependent(context.starts_early(), kernel, slabs.grid(), kThreads, context.stream,
                     arguments);
  });
}

}  // namespace

void reduce_images(const Context& context, const ImagesReduce& a) {
  for_image_launches(a.x, a.images, [&](std::int64_t first, std::int64_t count) {
    const auto run = [&](const Tensor& all) { return parts_of(all, a.images, first, count); };
    ImagesReduce one = a;
    one.x = run(a.x);
    one.grad_y = run(a.grad_y);
    one.y = run(a.y);
    one.images = count;
    one.saved.data += first * a.saved.stride;
    one.sums += first * 2 * a.x.shape.channels();
    if (a.grad_weight != nullptr) {
      one.grad_weight += first * a.grad_stride;
      one.grad_bias += first * a.grad_stride;
    }
    launch_reduce(context, one);
  });
}

void GpuNorms::batch_norm_backward_reduce(const BatchNormBackwardReduce& a) {
  check_operands(a);
  check_parts(context_, "batch_norm_backward_reduce", a.parts == 1);
  const Context& context = context_.entered();
  const std::int64_t channels = a.x.shape.channels();
  ImagesReduce images{a.x,     a.grad_y,          a.y,    a.affine,      a.relu,
                      a.parts, {a.saved.data, 0}, a.sums, a.grad_weight, a.grad_bias,
                      0};
  if (a.parts == 1 || a.grad_weight == nullptr) return reduce_images(context, images);
  const AffineGradients gradients{
      static_cast<float*>(
          context.sums(static_cast<std::size_t>(a.parts * 2 * channels) * sizeof(float))),
      a.parts, channels, a.grad_weight, a.grad_bias};
  gradients.collect(images);
  reduce_images(context, images);
  for_each(context, static_cast<std::int32_t>(channels), gradients);
}

void GpuNorms::batch_norm_backward_apply(const BatchNormBackwardApply& a) {
  check_operands(a);
  check_parts(context_, "batch_norm_backward_apply", are_whole(a.slots));
  const Context& context = context_.entered();
  if (a.x.shape.rows() == 0) return;
  if (!are_whole(a.slots)) {
    const StatSlot merged = merge_sums(context, a.slots, a.x.shape.channels());
    BatchNormBackwardApply one = a;
    one.slots = {&merged, 1};
    return GpuNorms::batch_norm_backward_apply(one);
  }
  const SlotTable slots(a.slots);
  const std::int64_t blocks = std::int64_t{kBlocks} * context.multiprocessors;
  const ChannelSlabs slabs(a.x, kMostRows, blocks);
  with_element_type(a.x.dtype, [&](auto element) {
    using T = decltype(element);
    const bool whole =
        rows_are_packs(kPackWidth<T>, {&a.x, &a.grad_y, &a.y, &a.grad_x, &a.grad_residual});
    const ApplyArguments<T> arguments{gradient_rows<T>(slabs, a.x, a.grad_y, a.y),
                                      slots,
                                      a.affine,
                                      a.saved.data,
                                      {a.grad_x, a.grad_residual, a.accumulate_residual}};
    const auto kernel = choose<void(ApplyArguments<T>)>(
        whole, a.relu, a.y,
        {{backward_apply_kernel<T, false, Mask::kNone>,
          backward_apply_kernel<T, false, Mask::kFromX>,
          backward_apply_kernel<T, false, Mask::kFromY>},
         {backward_apply_kernel<T, true, Mask::kNone>, backward_apply_kernel<T, true, Mask::kFromX>,
          backward_apply_kernel<T, true, Mask::kFromY>}});
    launch_dependent(context.starts_early(), kernel, slabs.grid(), kThreads, context.stream,
                     arguments);
  });
}

}  // namespace lockstep::gpu
