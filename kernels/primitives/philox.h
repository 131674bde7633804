#pragma once
// The random numbers of core/rng.h on a GPU: Philox4x32-10, any block of a stream at once. Rng
// gives the same numbers one after another. For .cu files only.

#include <cstdint>

#include "core/rng.h"
#include "kernels/primitives/launch.h"
#include "lockstep/core/device.h"

namespace lockstep::gpu {

struct PhiloxKey {
  std::uint32_t low, high;
};

/// Numbers 4 * block, ..., 4 * block + 3 of a stream.
struct PhiloxBlock {
  std::uint32_t words[4];
};

/// The key of Rng(seed, ...) with sub-index 0.
LOCKSTEP_HOST_DEVICE inline PhiloxKey philox_key(std::uint64_t seed) {
  std::uint64_t value = seed;
  for (int round = 0; round < 2; ++round) {
    value += 0x9E3779B97F4A7C15ULL;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
    value ^= value >> 31;
  }
  return {static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32)};
}

/// A block of the stream Rng(seed, purpose, index). As Rng, it begins again after 2^32 blocks.
__device__ inline PhiloxBlock philox_block(PhiloxKey key, RngPurpose purpose, std::uint64_t index,
                                           std::uint64_t block) {
  std::uint32_t w0 = static_cast<std::uint32_t>(block);
  std::uint32_t w1 = static_cast<std::uint32_t>(purpose);
  std::uint32_t w2 = static_cast<std::uint32_t>(index);
  std::uint32_t w3 = static_cast<std::uint32_t>(index >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * w0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * w2;
    w0 = static_cast<std::uint32_t>(p1 >> 32) ^ w1 ^ key.low;
    w1 = static_cast<std::uint32_t>(p1);
    w2 = static_cast<std::uint32_t>(p0 >> 32) ^ w3 ^ key.high;
    w3 = static_cast<std::uint32_t>(p0);
    key.low += 0x9E3779B9U;
    key.high += 0xBB67AE85U;
  }
  return {{w0, w1, w2, w3}};
}

/// Rng::uniform of a number.
__device__ inline float to_uniform(std::uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1.0p-24F;
}

}  // namespace lockstep::gpu
