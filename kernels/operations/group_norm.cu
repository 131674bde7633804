// GroupNorm's backward pass: BatchNorm's reduce kernel for every image, a thread per group for what
// its channels have in common, and the kernel that writes dx, which sweeps as BatchNorm's does.
// With dy' = dy masked by the ReLU and M values in a group,
//   dx = gamma * invstd * dy' - invstd * sum(gamma * dy') / M
//        - (x - mu) * invstd^3 * sum(gamma * dy' * (x - mu)) / M.

#include "backend/formulas.h"
#include "backend/operands.h"
#include "kernels/operations/batch_norm_channels.h"
#include "kernels/operations/batch_norm_gradient.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/operations/image_sums.h"
#include "kernels/primitives/divisor.h"
#include "kernels/primitives/grid_loop.h"
#include "kernels/primitives/reduce.h"

namespace lockstep::gpu {
namespace {

constexpr int kThreads = ChannelSlabs::kThreads;
constexpr int kBlocks = 2;  // of a multiprocessor

// A channel's gradients of gamma and beta, then what a group of an image has in common.
struct FinishGroups {
  std::int32_t affine_channels;  // 0: gamma's and beta's are not wanted
  AffineGradients affine;
  float* sums;         // [images, 2, C]; become (offset, slope)
  const float* saved;  // [images, 3, C]
  const float* gamma;  // [C] or null
  GroupShape of;
  std::int32_t groups;
  Divisor by_groups;

  __device__ void operator()(std::int32_t i) const {
    if (i < affine_channels) return affine(i);
    const std::int32_t image = (i - affine_channels) / by_groups;
    const std::int64_t group = i - affine_channels - image * groups;
    spread_group_gradient(sums + image * 2 * of.channels, saved + image * 3 * of.channels, gamma,
                          group * of.width, of.width, of.channels, of.rows);
  }
};

template <typename T>
struct GroupApplyArguments {
  GradientRows<T> rows;
  AffineParameters affine;
  const float* saved;  // [images, 3, C]
  const float* terms;  // [images, 2, C] = (offset, slope)
  InputGradient<T> gradient;
};

template <typename T, int kPack>
__device__ void load_constants(const GroupApplyArguments<T>& a, const SlabThread& thread,
                               PackGradientConstants<kPack>& constants) {
  const std::int64_t channels = a.rows.slabs.channels;
  const float* saved = a.saved + thread.image * 3 * channels;
  const float* terms = a.terms + thread.image * 2 * channels;
  for (int v = 0; v < kPack; ++v) {
    if (v >= thread.valid) break;
    const std::int64_t c = thread.channel + v;
    constants.set(v, channel_constants(channel_affine(a.affine, c), saved[c], saved[channels + c]),
                  terms[c], terms[channels + c]);
  }
}

template <typename T, bool kWhole, Mask kMask>
__global__ void __launch_bounds__(kThreads, kBlocks) group_apply_kernel(GroupApplyArguments<T> a) {
  const SlabThread thread(a.rows.slabs);
  wait_for_previous_kernel();
  PackGradientConstants<kPackWidth<T>> constants = {};
  load_constants(a, thread, constants);
  write_input_gradient<GroupNormInputGradient, kWhole, kMask>(a.rows, a.gradient, thread,
                                                              constants);
}

// Of `images` images whose groups have their terms.
void launch_group_apply(const Context& context, const GroupNormBackward& a, std::int64_t images) {
  const std::int64_t blocks = std::int64_t{kBlocks} * context.multiprocessors;
  const ChannelSlabs slabs(a.x, kMostRows, blocks / images, images);
  with_element_type(a.x.dtype, [&](auto element) {
    using T = decltype(element);
    const bool whole =
        rows_are_packs(kPackWidth<T>, {&a.x, &a.grad_y, &a.y, &a.grad_x, &a.grad_residual});
    const GroupApplyArguments<T> arguments{gradient_rows<T>(slabs, a.x, a.grad_y, a.y),
                                           a.affine,
                                           a.saved,
                                           a.work,
                                           {a.grad_x, a.grad_residual, a.accumulate_residual}};
    const auto kernel = choose<void(GroupApplyArguments<T>)>(
        whole, a.relu, a.y,
        {{group_apply_kernel<T, false, Mask::kNone>, group_apply_kernel<T, false, Mask::kFromX>,
          group_apply_kernel<T, false, Mask::kFromY>},
         {group_apply_kernel<T, true, Mask::kNone>, group_apply_kernel<T, true, Mask::kFromX>,
          group_apply_kernel<T, true, Mask::kFromY>}});
    launch(kernel, slabs.grid(), kThreads, context.stream, arguments);
  });
}

}  // namespace

void GpuNorms::group_norm_backward(const GroupNormBackward& a) {
  check_operands(a);
  const Context& context = context_.entered();
  const GroupShape of(a.x.shape, a.groups);
  if (of.images == 0) return;
  const AffineGradients affine{a.work + of.images * 2 * of.channels, of.images, of.channels,
                               a.grad_weight, a.grad_bias};
  ImagesReduce sums{a.x,   a.grad_y, a.y, a.affine, a.relu, of.images, {a.saved, 3 * of.channels},
                    a.work};
  if (a.grad_weight != nullptr) affine.collect(sums);
  reduce_images(context, sums);
  const std::int64_t channels = a.grad_weight == nullptr ? 0 : of.channels;
  const std::int64_t items = channels + (a.grad_x ? of.images * a.groups : 0);
  LOCKSTEP_CHECK(items <= kMaxItems, "group_norm_backward: expected at most ", kMaxItems,
                 " groups of all images, got ", of.images, " times ", a.groups);
  for_each(
      context, static_cast<std::int32_t>(items),
      FinishGroups{static_cast<std::int32_t>(channels), affine, a.work, a.saved, a.affine.weight,
                   of, static_cast<std::int32_t>(a.groups), Divisor(a.groups)});
  if (!a.grad_x) return;
  for_image_launches(a.x, of.images, [&](std::int64_t first, std::int64_t count) {
    const auto run = [&](const Tensor& all) { return parts_of(all, of.images, first, count); };
    GroupNormBackward one = a;
    one.x = run(a.x);
    one.grad_y = run(a.grad_y);
    one.y = run(a.y);
    one.grad_x = run(a.grad_x);
    one.grad_residual = run(a.grad_residual);
    one.saved += first * 3 * of.channels;
    one.work += first * 2 * of.channels;
    launch_group_apply(context, one, count);
  });
}

}  // namespace lockstep::gpu
