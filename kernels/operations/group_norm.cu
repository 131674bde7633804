// What GroupNorm needs beside BatchNorm's operations: a thread per group for what its channels have
// in common, and the kernel that writes dx, which sweeps as BatchNorm's does. With dy' = dy masked
// by the ReLU and M values in a group,
//   dx = gamma * invstd * dy' - invstd * sum(gamma * dy') / M
//        - (x - mu) * invstd^3 * sum(gamma * dy' * (x - mu)) / M.

#include "backend/formulas.h"
#include "backend/operand_checks.h"
#include "backend/required_operands.h"
#include "kernels/operations/batch_norm_channels.h"
#include "kernels/operations/batch_norm_gradient.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/primitives/for_each.h"

namespace lockstep::gpu {
namespace {

constexpr int kThreads = ChannelSlabs::kThreads;
constexpr int kBlocks = 2;  // of a multiprocessor

struct JoinGroup {
  GroupMoments a;

  __device__ void operator()(std::int32_t group) const { join_group(a, group); }
};

struct SpreadGroupGradient {
  GroupNormBackwardApply a;
  std::int64_t rows, channels;
  float* terms;  // [2, C] = (offset, slope)

  __device__ void operator()(std::int32_t group) const {
    const GroupGradient of = group_gradient(a, rows, channels, group);
    const std::int64_t width = channels / a.groups;
    for (std::int64_t c = group * width; c < (group + 1) * width; ++c) {
      terms[c] = of.offset;
      terms[channels + c] = of.slope;
    }
  }
};

template <typename T>
struct GroupApplyArguments {
  GradientRows<T> rows;
  AffineParameters affine;
  const float* saved;  // [3, C]
  const float* terms;  // [2, C] = (offset, slope)
  Rows<T> grad_x, grad_residual;
  bool accumulate_residual;
};

template <int kPack>
struct PackGroupConstants {
  PackConstants<kPack> forward;
  float offset[kPack], slope[kPack];
};

template <typename T, int kPack>
__device__ void load_constants(const GroupApplyArguments<T>& a, const SlabThread& thread,
                               PackGroupConstants<kPack>& constants) {
  const std::int64_t channels = a.rows.slabs.channels;
  for (int v = 0; v < kPack; ++v) {
    if (v >= thread.valid) break;
    const std::int64_t c = thread.channel + v;
    const ChannelConstants of =
        channel_constants(channel_affine(a.affine, c), a.saved[c], a.saved[channels + c]);
    constants.forward.mean[v] = of.mean;
    constants.forward.scale[v] = of.scale;
    constants.forward.shift[v] = of.shift;
    constants.offset[v] = a.terms[c];
    constants.slope[v] = a.terms[channels + c];
  }
}

// dx of row i, and the residual's gradient where that is not null.
template <bool kWhole, Mask kMask, int kRows, typename T, int kPack>
__device__ void write_group_gradients(const GradientPacks<kMask, kRows, T>& packs, int i, int valid,
                                      const PackGroupConstants<kPack>& constants, T* grad_x,
                                      T* grad_residual, bool accumulate) {
  Pack<T> out = {};
  Pack<T> residual = {};
  if (accumulate) residual = load_elements<kWhole>(grad_residual, valid);
  LOCKSTEP_UNROLL
  for (int v = 0; v < kPack; ++v) {
    const float grad = packs.masked(i, v, constants.forward);
    const float centred = packs.x[i][v] - constants.forward.mean[v];
    const float common = constants.offset[v] + centred * constants.slope[v];
    out.set(v, from_float<T>(constants.forward.scale[v] * grad - common));
    residual.set(v, from_float<T>(accumulate ? residual[v] + grad : grad));
  }
  store_elements<kWhole>(grad_x, out, valid);
  if (grad_residual != nullptr) store_elements<kWhole>(grad_residual, residual, valid);
}

template <typename T, bool kWhole, Mask kMask>
__global__ void __launch_bounds__(kThreads, kBlocks) group_apply_kernel(GroupApplyArguments<T> a) {
  constexpr int kRows = kRowsAtOnce<kMask, kWhole>;
  const SlabThread thread(a.rows.slabs);
  wait_for_previous_kernel();
  PackGroupConstants<kPackWidth<T>> constants = {};
  load_constants(a, thread, constants);
  const bool residual = a.grad_residual.data != nullptr;
  GradientWalk<kMask, T> walk(a.rows, thread, false);
  RowWalk<T> grad_x(a.grad_x, a.rows.slabs, thread, false);
  RowWalk<T> grad_residual(residual ? a.grad_residual : a.grad_x, a.rows.slabs, thread, false);
  take_rows<kRows>(thread.count, [&](int rows, auto partial) {
    constexpr bool kPartial = decltype(partial)::value;
    GradientPacks<kMask, kRows, T> packs;
    packs.template load<kWhole, kPartial>(walk, rows, thread.valid);
    LOCKSTEP_UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (kPartial && i >= rows) break;
      write_group_gradients<kWhole>(packs, i, thread.valid, constants, grad_x.row(i),
                                    residual ? grad_residual.row(i) : nullptr,
                                    a.accumulate_residual);
    }
    walk.advance(rows);
    grad_x.advance(rows);
    grad_residual.advance(rows);
  });
}

// The kernel for this ReLU and alignment.
template <typename T>
auto choose_group_apply(bool whole, bool relu, const Tensor& y) {
  const int mask = !relu ? 0 : y ? 2 : 1;
  static constexpr void (*kKernels[2][3])(GroupApplyArguments<T>) = {
      {group_apply_kernel<T, false, Mask::kNone>, group_apply_kernel<T, false, Mask::kFromX>,
       group_apply_kernel<T, false, Mask::kFromY>},
      {group_apply_kernel<T, true, Mask::kNone>, group_apply_kernel<T, true, Mask::kFromX>,
       group_apply_kernel<T, true, Mask::kFromY>}};
  return kKernels[whole ? 1 : 0][mask];
}

}  // namespace

void GpuNorms::group_moments(const GroupMoments& a) {
  check_operands(a);
  const Context& context = context_.entered();
  check_groups("group_moments", a.channels, a.groups);
  if (a.rows == 0) return;
  for_each(context, static_cast<std::int32_t>(a.groups), JoinGroup{a});
}

void GpuNorms::group_norm_backward_apply(const GroupNormBackwardApply& a) {
  check_operands(a);
  const Context& context = context_.entered();
  check_alike("group_norm_backward_apply", {&a.x, &a.grad_y, &a.y, &a.grad_x, &a.grad_residual});
  const std::int64_t channels = a.x.shape.channels();
  check_groups("group_norm_backward_apply", channels, a.groups);
  if (a.x.shape.rows() == 0) return;
  const auto bytes = 2 * static_cast<std::size_t>(channels) * sizeof(float);
  auto* terms = static_cast<float*>(context.scratch(bytes));
  for_each(context, static_cast<std::int32_t>(a.groups),
           SpreadGroupGradient{a, a.x.shape.rows(), channels, terms});
  const ChannelSlabs slabs(a.x, kMostRows, std::int64_t{kBlocks} * context.multiprocessors);
  with_element_type(a.x.dtype, [&](auto element) {
    using T = decltype(element);
    const bool whole =
        rows_are_packs(kPackWidth<T>, {&a.x, &a.grad_y, &a.y, &a.grad_x, &a.grad_residual});
    const GroupApplyArguments<T> arguments{gradient_rows<T>(slabs, a.x, a.grad_y, a.y),
                                           a.affine,
                                           a.saved.data,
                                           terms,
                                           Rows<T>(a.grad_x),
                                           Rows<T>(a.grad_residual),
                                           a.accumulate_residual && a.grad_residual};
    launch(choose_group_apply<T>(whole, a.relu, a.y), slabs.grid(), kThreads, context.stream,
           arguments);
  });
}

}  // namespace lockstep::gpu
