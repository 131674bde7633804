#include "core/rng.h"

#include <Random123/philox.h>

#include <cmath>
#include <numbers>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// The seed's halves and the sub-index share Philox's 64-bit key; mixing keeps (seed, sub_index)
// pairs apart.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

}  // namespace

Rng::Rng(std::uint64_t seed, RngPurpose purpose, std::uint64_t index, std::uint32_t sub_index) {
  const std::uint64_t key = mix(mix(seed) + sub_index);
  key_[0] = static_cast<std::uint32_t>(key);
  key_[1] = static_cast<std::uint32_t>(key >> 32);
  counter_[0] = 0;
  counter_[1] = static_cast<std::uint32_t>(purpose);
  counter_[2] = static_cast<std::uint32_t>(index);
  counter_[3] = static_cast<std::uint32_t>(index >> 32);
}

void Rng::refill() {
  const philox4x32_ctr_t counter = {{counter_[0], counter_[1], counter_[2], counter_[3]}};
  const philox4x32_key_t key = {{key_[0], key_[1]}};
  const philox4x32_ctr_t block = philox4x32(counter, key);
  for (int i = 0; i < 4; ++i) block_[i] = block.v[i];
  ++counter_[0];
  used_ = 0;
}

std::uint32_t Rng::next_u32() {
  if (used_ == 4) refill();
  return block_[used_++];
}

float Rng::uniform() { return static_cast<float>(next_u32() >> 8) * 0x1.0p-24f; }

float Rng::uniform(float lo, float hi) { return lo + (hi - lo) * uniform(); }

float Rng::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - static_cast<double>(uniform())));
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(uniform());
  return static_cast<float>(radius * std::cos(angle));
}

std::uint32_t Rng::below(std::uint32_t bound) {
  LOCKSTEP_CHECK(bound > 0, "below(0) has no value to draw");
  const std::uint32_t threshold = (0U - bound) % bound;
  while (true) {
    const std::uint64_t product = static_cast<std::uint64_t>(next_u32()) * bound;
    if (static_cast<std::uint32_t>(product) >= threshold) {
      return static_cast<std::uint32_t>(product >> 32);
    }
  }
}

}  // namespace lockstep
