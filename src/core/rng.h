#pragma once
// Counter-based random numbers (Philox4x32-10; Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A stream is a pure function of (seed, purpose, index): there is no state to
// save, and the numbers do not depend on threads, devices or the order of use.

#include <cstdint>

namespace lockstep {

/// What a stream is for. Streams of different purposes are independent; never renumber.
enum class RngPurpose : std::uint32_t {
  kInitialWeights = 1,
  kShuffle = 2,
  kAugment = 3,
  kExposure = 4,
  kDropout = 5,
  kSynthetic = 6,
  kDelay = 7,
  kTiming = 8,
  kResizedCrop = 9,
  kSymmetry = 10,
  kValues = 11,
  kClassCrop = 12,
  kSignFlip = 13,
  kTest = 100,
};

/// A stream of random numbers. A value type; cheap to make; used by one thread.
class Rng {
 public:
  /// `index` names the item the numbers belong to, `sub_index` a second coordinate (an epoch, say).
  Rng(std::uint64_t seed, RngPurpose purpose, std::uint64_t index, std::uint32_t sub_index = 0);

  std::uint32_t next_u32();
  /// Uniform in [0, 1), 24 random bits.
  float uniform();
  /// Uniform in [lo, hi).
  float uniform(float lo, float hi);
  /// Standard normal (Box-Muller).
  float normal();
  /// Uniform in [0, bound) without modulo bias. REQUIRES: bound > 0.
  std::uint32_t below(std::uint32_t bound);

 private:
  void refill();

  std::uint32_t key_[2];
  std::uint32_t counter_[4];  // [0] advances; [1] purpose and sub-index; [2], [3] index
  std::uint32_t block_[4] = {};
  int used_ = 4;
};

}  // namespace lockstep
