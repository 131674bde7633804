// What GroupNorm needs beside BatchNorm's operations (Wu and He 2018). With dy' = dy masked by the
// ReLU and M values in a group,
//   dx = gamma * invstd * dy' - invstd * sum(gamma * dy') / M
//        - (x - mu) * invstd^3 * sum(gamma * dy' * (x - mu)) / M.

#include "backend/cpu/masked_gradient.h"
#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/operand_checks.h"
#include "backend/required_operands.h"

namespace lockstep {
namespace {

struct GroupInputGradient {
  MaskedGradient gradient;
  const float* offset;  // [C] GroupGradient's
  const float* slope;   // [C]
  Tensor grad_x, grad_residual;
  bool accumulate_residual;
};

template <Mask kMask>
void group_gradient_rows(const GroupInputGradient& a, std::int64_t begin, std::int64_t end) {
  const MaskedGradient& g = a.gradient;
  const std::int64_t channels = g.x.shape.channels();
  const float* __restrict mean = g.scale.mean;
  const float* __restrict scale = g.scale.scale;
  const float* __restrict shift = g.scale.shift;
  const float* __restrict offset = a.offset;
  const float* __restrict slope = a.slope;
  RowPointers rows(g, begin);
  for (std::int64_t row = begin; row < end; ++row, rows.advance(1)) {
    if (a.grad_residual) {
      residual_row<kMask>(rows, g.scale, channels,
                          a.grad_residual.floats() + row * a.grad_residual.row_stride,
                          a.accumulate_residual);
    }
    rows.prefetch(0, channels);
    const RowPointers at = rows;
    float* grad_x = a.grad_x.floats() + row * a.grad_x.row_stride;
    prefetch_to_write(grad_x, a.grad_x.row_stride, channels);
#pragma omp simd
    for (std::int64_t c = 0; c < channels; ++c) {
      const float grad = masked<kMask>(at.grad_y[c], at.x[c], at.y[c], mean[c], scale[c], shift[c]);
      grad_x[c] = scale[c] * grad - (offset[c] + (at.x[c] - mean[c]) * slope[c]);
    }
  }
}

// terms [2, C] = (offset, slope).
void spread_group_gradients(const GroupNormBackwardApply& a, float* terms) {
  const std::int64_t channels = a.x.shape.channels();
  const std::int64_t width = channels / a.groups;
  for (std::int64_t group = 0; group < a.groups; ++group) {
    const GroupGradient of = group_gradient(a, a.x.shape.rows(), channels, group);
    std::fill_n(terms + group * width, width, of.offset);
    std::fill_n(terms + channels + group * width, width, of.slope);
  }
}

}  // namespace

void CpuNorms::group_moments(const GroupMoments& a) {
  check_operands(a);
  check_groups("group_moments", a.channels, a.groups);
  if (a.rows == 0) return;
  for (std::int64_t group = 0; group < a.groups; ++group) join_group(a, group);
}

void CpuNorms::group_norm_backward_apply(const GroupNormBackwardApply& a) {
  check_operands(a);
  const auto activations = {&a.x, &a.grad_y, &a.y, &a.grad_x, &a.grad_residual};
  check_same_shape("group_norm_backward_apply", activations);
  check_fp32("group_norm_backward_apply", activations);
  const std::int64_t channels = a.x.shape.channels();
  check_groups("group_norm_backward_apply", channels, a.groups);
  if (a.x.shape.rows() == 0) return;
  auto* memory =
      static_cast<float*>(cpu_.scratch(5 * static_cast<std::size_t>(channels) * sizeof(float)));
  float* terms = memory + 3 * channels;
  spread_group_gradients(a, terms);
  const ChannelScale scale(memory, a.saved.data, a.saved.data + channels, a.affine, channels);
  const GroupInputGradient work{
      {a.x, a.grad_y, a.y, scale}, terms, terms + channels, a.grad_x, a.grad_residual,
      a.accumulate_residual};
  const auto kernel =
      choose_mask(a.relu, a.y, group_gradient_rows<Mask::kNone>, group_gradient_rows<Mask::kFromX>,
                  group_gradient_rows<Mask::kFromY>);
  parallel_for(a.x.shape.rows(), channels, cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) { kernel(work, begin, end); });
}

}  // namespace lockstep
