// Sums over the samples of a batch, over the slots that hold them, and what a step adds up.

#include <algorithm>

#include "backend/cpu/map.h"
#include "backend/cpu/operations.h"
#include "backend/cpu/parallel_for.h"
#include "backend/formulas.h"
#include "core/image_tree.h"

namespace lockstep {
namespace {

/// Of one position of the samples. `slot`: [2, elements], from the position's first channel on.
template <typename T>
void sum_row(const Tensor& x, std::int64_t row, float* slot, std::int64_t elements) {
  const std::int64_t channels = x.shape.channels();
  const std::int64_t sample_stride = x.shape.rows_per_sample() * x.row_stride;
  constexpr std::int64_t kBlock = 64;  // channels whose sums stay in the cache
  for (std::int64_t begin = 0; begin < channels; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, channels - begin);
    const T* source = row_of<const T>(x, row) + begin;
    double sums[kBlock] = {};
    for (std::int64_t n = 0; n < x.shape.batch(); ++n, source += sample_stride) {
      for (std::int64_t c = 0; c < count; ++c) sums[c] += static_cast<double>(source[c]);
    }
    for (std::int64_t c = 0; c < count; ++c) {
      const SplitSum sum(sums[c]);
      slot[begin + c] = sum.nearest;
      slot[elements + begin + c] = sum.rest;
    }
  }
}

}  // namespace

void CpuSums::sum_over_batch(const Tensor& x, float* slot) {
  check_sum_over_batch(x, slot);
  const auto sum_of = with_element_type(x.dtype, []<typename T>(T) { return sum_row<T>; });
  const std::int64_t rows = x.shape.rows_per_sample(), channels = x.shape.channels();
  parallel_for(rows, channels * std::max<std::int64_t>(1, x.shape.batch()), cpu_.threads(),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   sum_of(x, row, slot + row * channels, rows * channels);
                 }
               });
}

void CpuSums::broadcast_sum(std::span<const StatSlot> slots, const Tensor& y, bool accumulate) {
  check_broadcast_sum(slots, y);
  if (y.shape.elements() == 0) return;
  const std::int64_t rows = y.shape.rows_per_sample(), channels = y.shape.channels();
  const std::int64_t elements = rows * channels;
  auto* sums =
      static_cast<float*>(cpu_.scratch(static_cast<std::size_t>(elements) * sizeof(float)));
  const auto slots_in_all = static_cast<std::int64_t>(slots.size());
  parallel_for(elements, slots_in_all, cpu_.threads(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      double sum = 0;
      for (const StatSlot& slot : slots) {
        for (std::int64_t part = 0; part < slot.parts; ++part) {
          sum += split_sum(slot.data + part * 2 * elements, i, elements);
        }
      }
      sums[i] = static_cast<float>(sum);
    }
  });
  const auto write = [&]<typename T>(T) {
    parallel_for(y.shape.rows(), channels, cpu_.threads(),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     map_stretch(Identity(), channels, accumulate, row_of<T>(y, row),
                                 sums + row % rows * channels);
                   }
                 });
  };
  with_element_type(y.dtype, write);
}

void CpuSums::sum_over_images(const Tensor& x, float* sum) {
  check_sum_over_images(x, sum);
  const std::int64_t images = x.shape.batch();
  if (images == 0) return;
  const std::int64_t elements = x.shape.elements() / images;
  constexpr std::int64_t kBlock = 64;      // elements whose sums stay in the cache
  constexpr std::int64_t kMostNodes = 32;  // enough for 2^32 images
  float nodes[kMostNodes * kBlock];
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, elements - begin);
    for (std::int64_t n = 0; n < images; ++n) {
      add_image(n, x.floats() + n * elements + begin, count, nodes, kBlock);
    }
    add_values(finish_image_tree(images, count, nodes, kBlock), count, sum + begin);
  }
}

void CpuSums::reset_sums(double* sums, int count) {
  check_reset_sums(sums, count);
  std::transform(sums, sums + count, sums, reset_sum);
}

}  // namespace lockstep
