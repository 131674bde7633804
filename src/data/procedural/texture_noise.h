#pragma once
// Noise for textures: tables made once, from a fixed seed. It is a property of the generator, so
// that only where a scene looks into it is random. Immutable; cheap to make; safe from several
// threads.

#include <cmath>
#include <cstddef>

namespace lockstep {

class TextureNoise {
 public:
  TextureNoise();

  /// Smooth noise in about [-1, 1], of period 256 in both directions, with detail down to 4 units.
  float smooth(float u, float v) const {
    return smooth_[place(static_cast<int>(std::floor(u)), static_cast<int>(std::floor(v)))];
  }
  /// Independent values in [-1, 1], of period 256.
  float white(int x, int y) const { return white_[place(x, y)]; }

  static constexpr int kPeriod = 256;
  static std::size_t place(int x, int y) {
    constexpr int kMask = kPeriod - 1;
    return static_cast<std::size_t>(y & kMask) * kPeriod + static_cast<std::size_t>(x & kMask);
  }

 private:
  const float* white_;
  const float* smooth_;
};

}  // namespace lockstep
