// What GroupNorm needs beside BatchNorm's operations (Wu and He 2018). With dy' = dy masked by the
// ReLU and M values in a group,
//   dx = gamma * invstd * dy' - invstd * sum(gamma * dy') / M
//        - (x - mu) * invstd^3 * sum(gamma * dy' * (x - mu)) / M.

#include "backend/cpu/masked_gradient.h"
#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/operands.h"
#include "core/image_tree.h"

namespace lockstep {

// An image's second pass finds it in a cache.
void CpuNorms::group_norm_forward(const GroupNormForward& a) {
  check_operands(a);
  const GroupShape of(a.x.shape, a.groups);
  for (std::int64_t image = 0; image < of.images; ++image) {
    const Tensor x = a.x.sample_range(image, 1);
    float* moments = a.work + image * 2 * of.channels;
    batch_norm_moments(x, moments, 1);
    for (std::int64_t first = 0; first < of.channels; first += of.width) {
      join_group(moments + first, of.width, of.channels, of.rows);
    }
    const StatSlot slot{of.rows * of.width, moments};
    batch_norm_forward({.x = x,
                        .residual = image_of(a.residual, image),
                        .y = image_of(a.y, image),
                        .affine = a.affine,
                        .slots = {&slot, 1},
                        .eps = a.eps,
                        .eps_mode = a.eps_mode,
                        .relu = a.relu,
                        .saved = {a.saved + image * 3 * of.channels},
                        .running = {}});
  }
}

// `grads` [2, C]: gamma's and beta's, += the image's; null: they are not wanted.
void CpuNorms::group_norm_backward_image(const GroupNormBackward& a, const GroupShape& of,
                                         std::int64_t image, float* grads) {
  float* saved = a.saved + image * 3 * of.channels;
  float* sums = a.work + image * 2 * of.channels;
  batch_norm_backward_reduce({.x = image_of(a.x, image),
                              .grad_y = image_of(a.grad_y, image),
                              .y = image_of(a.y, image),
                              .affine = a.affine,
                              .saved = {saved},
                              .relu = a.relu,
                              .sums = sums,
                              .grad_weight = grads,
                              .grad_bias = grads == nullptr ? nullptr : grads + of.channels});
  if (!a.grad_x) return;
  for (std::int64_t first = 0; first < of.channels; first += of.width) {
    spread_group_gradient(sums, saved, a.affine.weight, first, of.width, of.channels, of.rows);
  }
  const ChannelScale scale(cpu_.scratch(ChannelScale::bytes(of.channels)), saved,
                           saved + of.channels, a.affine, of.channels);
  write_input_gradient<GroupNormInputGradient>(
      {{image_of(a.x, image), image_of(a.grad_y, image), image_of(a.y, image), scale},
       sums,
       sums + of.channels,
       image_of(a.grad_x, image),
       image_of(a.grad_residual, image),
       a.accumulate_residual},
      a.relu, cpu_.threads());
}

void CpuNorms::group_norm_backward(const GroupNormBackward& a) {
  check_operands(a);
  const GroupShape of(a.x.shape, a.groups);
  const std::int64_t size = 2 * of.channels;
  const auto node = [&](int index) { return a.work + (of.images + index) * size; };
  const auto join = [&](int index) { add_values(node(index + 1), size, node(index)); };
  for (std::int64_t image = 0; image < of.images; ++image) {
    const auto take = [&](int index, bool first) {
      if (first) std::fill_n(node(index), size, 0.0F);
      group_norm_backward_image(a, of, image, node(index));
    };
    if (a.grad_weight == nullptr) {
      group_norm_backward_image(a, of, image, nullptr);
    } else {
      place_image(image, take, join);
    }
  }
  if (a.grad_weight == nullptr || of.images == 0) return;
  join_nodes(of.images, join);
  add_values(node(0), of.channels, a.grad_weight);
  add_values(node(0) + of.channels, of.channels, a.grad_bias);
}

}  // namespace lockstep
