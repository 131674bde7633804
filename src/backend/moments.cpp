#include "backend/moments.h"

#include <algorithm>
#include <array>

#include "backend/formulas.h"

namespace lockstep {
namespace {

// Channels are worked through in blocks that live on the stack: the merge runs in every step of a
// training and may not allocate.
constexpr std::int64_t kBlock = 128;

// body(data [2, C], count) for every part that has rows, in order.
template <typename Body>
void for_each_part(std::span<const StatSlot> slots, std::int64_t channels, const Body& body) {
  for (const StatSlot& slot : slots) {
    if (slot.count == 0) continue;
    const std::int64_t count = slot.count / slot.parts;
    for (std::int64_t part = 0; part < slot.parts; ++part) {
      body(slot.data + part * 2 * channels, count);
    }
  }
}

// What depends on the counts alone is computed once per part: every replica merges all slots of its
// group, in every call.
void merge_moments_block(std::span<const StatSlot> slots, std::int64_t channels, std::int64_t begin,
                         std::int64_t size, float* merged) {
  std::array<double, kBlock> mean{};
  std::array<double, kBlock> m2{};
  std::int64_t before = 0;
  for_each_part(slots, channels, [&](const float* part, std::int64_t count) {
    const float* part_mean = part + begin;
    const float* part_m2 = part_mean + channels;
    if (before == 0) {
      std::copy_n(part_mean, size, mean.begin());
      std::copy_n(part_m2, size, m2.begin());
    } else {
      const MomentsWeights weights = moments_weights(before, count);
#pragma omp simd
      for (std::int64_t c = 0; c < size; ++c) {
        join_moments(mean[c], m2[c], part_mean[c], part_m2[c], weights);
      }
    }
    before += count;
  });
  for (std::int64_t c = 0; c < size; ++c) {
    merged[begin + c] = static_cast<float>(mean[c]);
    merged[channels + begin + c] = static_cast<float>(m2[c]);
  }
}

void merge_sums_block(std::span<const StatSlot> slots, std::int64_t channels, std::int64_t begin,
                      std::int64_t size, float* merged) {
  std::array<double, kBlock> sums{};
  for_each_part(slots, channels, [&](const float* part, std::int64_t) {
    for (std::int64_t i = 0; i < size; ++i) sums[i] += static_cast<double>(part[begin + i]);
  });
  for (std::int64_t i = 0; i < size; ++i) merged[begin + i] = static_cast<float>(sums[i]);
}

}  // namespace

std::int64_t total_count(std::span<const StatSlot> slots) {
  std::int64_t count = 0;
  for (const StatSlot& slot : slots) count += slot.count;
  return count;
}

std::int64_t merge_moments(std::span<const StatSlot> slots, std::int64_t channels, float* merged) {
  for (std::int64_t begin = 0; begin < channels; begin += kBlock) {
    merge_moments_block(slots, channels, begin, std::min(kBlock, channels - begin), merged);
  }
  return total_count(slots);
}

std::int64_t merge_sums(std::span<const StatSlot> slots, std::int64_t channels, float* merged) {
  const std::int64_t elements = 2 * channels;
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    merge_sums_block(slots, channels, begin, std::min(kBlock, elements - begin), merged);
  }
  return total_count(slots);
}

std::vector<float> read_moments(Backend& backend, const StatSlot& slot, std::int64_t channels) {
  std::vector<float> parts(static_cast<std::size_t>(slot.parts * 2 * channels));
  // The backend only reads through this pointer.
  backend.download(parts.data(), Tensor(const_cast<float*>(slot.data), {slot.parts, 2 * channels}));
  backend.synchronize();
  std::vector<float> merged(static_cast<std::size_t>(2 * channels));
  const StatSlot read{slot.count, parts.data(), slot.parts};
  merge_moments({&read, 1}, channels, merged.data());
  return merged;
}

}  // namespace lockstep
