#pragma once
// What BatchNorm's forward and backward kernels know of a channel: the slots that replicas hand in,
// and the constants of y = (x - mean) * scale + shift. Both directions take these from the same
// fp32 values by the same expressions, so that the backward pass recomputes y's sign exactly.

#include <cstdint>
#include <span>

#include "backend/formulas.h"
#include "kernels/operations/gpu_operations.h"
#include "kernels/primitives/channel_slabs.h"

namespace lockstep::gpu {

/// What the slots' parts, (mean, M2) each, come to in their order by Chan's formula: a slot of one
/// part in the context's scratch memory.
StatSlot merge_moments(const Context& context, std::span<const StatSlot> slots,
                       std::int64_t channels);
/// The same of sums, which are added in their order in double.
StatSlot merge_sums(const Context& context, std::span<const StatSlot> slots, std::int64_t channels);

/// slots [images, 2, C] = (mean, M2) of `images` equal parts of the rows of x; of every `width`
/// channels together, where that is not 1.
void image_moments(const Context& context, const Tensor& x, std::int64_t images, std::int64_t width,
                   float* slots);

/// BatchNormSaved of images, `stride` floats apart; 0: one for all.
struct SavedOfImages {
  const float* data;  // [3, C]
  std::int64_t stride;

  __device__ const float* of(int image) const { return data + image * stride; }
};

/// BatchNormBackwardReduce of each of `images` equal parts of the rows.
struct ImagesReduce {
  Tensor x, grad_y, y;
  AffineParameters affine;
  bool relu;
  std::int64_t images;
  SavedOfImages saved;
  float* sums;  // [images, 2, C]
  /// [C] of every image, `grad_stride` floats apart; 0: of the only one, added to what is there.
  /// Null: not wanted.
  float* grad_weight = nullptr;
  float* grad_bias = nullptr;
  std::int64_t grad_stride = 0;
};
void reduce_images(const Context& context, const ImagesReduce& a);

/// The slots that have rows, as a kernel takes them: by value, with what their counts determine.
/// Every block merges them, so that a division there would be one per slot and block.
struct SlotTable {
  int size = 0;
  std::int64_t count = 0;                      // of all
  const float* data[kMaxStatSlots] = {};       // [2, C] each
  MomentsWeights weights[kMaxStatSlots] = {};  // of Chan's formula; the first's are of no use

  explicit SlotTable(std::span<const StatSlot> slots) {
    for (const StatSlot& slot : slots) {
      if (slot.count == 0) continue;
      LOCKSTEP_CHECK(size < kMaxStatSlots, "batch_norm: at most ", kMaxStatSlots,
                     " slots with rows can be merged on a GPU, got more of ", slots.size(),
                     "; use process groups of fewer replicas (bn.sync_group)");
      weights[size] = moments_weights(count, slot.count);
      data[size] = slot.data;
      count += slot.count;
      ++size;
    }
  }
};

/// take(slot, first, second) with a channel's two values of every slot, in order. Loads those of
/// several slots at once: one after another each would wait for the memory, which may be a peer's.
template <typename Take>
__device__ void for_each_slot(const SlotTable& slots, std::int64_t channel, std::int64_t channels,
                              const Take& take) {
  constexpr int kAtOnce = 8;
  for (int begin = 0; begin < slots.size; begin += kAtOnce) {
    float first[kAtOnce] = {};
    float second[kAtOnce] = {};
    LOCKSTEP_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i >= slots.size) continue;
      first[i] = slots.data[begin + i][channel];
      second[i] = slots.data[begin + i][channels + channel];
    }
    LOCKSTEP_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i < slots.size) take(begin + i, first[i], second[i]);
    }
  }
}

/// gamma and beta of a channel, or what stands for them.
struct ChannelAffine {
  float weight, bias;
};

__device__ inline ChannelAffine channel_affine(const AffineParameters& affine,
                                               std::int64_t channel) {
  return {affine.weight != nullptr ? affine.weight[channel] : 1.0F,
          affine.bias != nullptr ? affine.bias[channel] : 0.0F};
}

struct ChannelConstants {
  float mean, scale, shift;
};

__device__ inline ChannelConstants channel_constants(const ChannelAffine& affine, float mean,
                                                     float invstd) {
  return {mean, affine.weight * invstd, affine.bias};
}

/// The constants of a thread's channels, in registers.
template <int kPack>
struct PackConstants {
  float mean[kPack], scale[kPack], shift[kPack];
};

}  // namespace lockstep::gpu
