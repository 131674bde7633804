#include "data/procedural/texture_noise.h"

#include <cstdint>
#include <vector>

#include "core/rng.h"

namespace lockstep {
namespace {

constexpr int kPeriod = TextureNoise::kPeriod;

std::size_t place(int x, int y) { return TextureNoise::place(x, y); }

struct NoiseTables {
  std::vector<float> white = std::vector<float>(kPeriod * kPeriod);
  std::vector<float> smooth = std::vector<float>(kPeriod * kPeriod);

  NoiseTables() {
    Rng rng(0, RngPurpose::kSynthetic, ~std::uint64_t{0});
    for (float& value : white) value = rng.uniform(-1, 1);
    float amplitude = 0.5F;
    for (int cell = 32; cell >= 4; cell /= 2, amplitude *= 0.62F) add_octave(cell, amplitude);
  }

  // Values at the corners of square cells, blended with Perlin's cubic weights.
  void add_octave(int cell, float amplitude) {
    for (int y = 0; y < kPeriod; ++y) {
      for (int x = 0; x < kPeriod; ++x) {
        const float s = ease(static_cast<float>(x % cell) / static_cast<float>(cell));
        const float t = ease(static_cast<float>(y % cell) / static_cast<float>(cell));
        const int x0 = x - x % cell;
        const int y0 = y - y % cell;
        const float low = white[place(x0, y0)] * (1 - s) + white[place(x0 + cell, y0)] * s;
        const float high =
            white[place(x0, y0 + cell)] * (1 - s) + white[place(x0 + cell, y0 + cell)] * s;
        smooth[place(x, y)] += amplitude * (low * (1 - t) + high * t);
      }
    }
  }
  static float ease(float t) { return t * t * (3 - 2 * t); }
};

const NoiseTables& tables() {
  static const NoiseTables noise;
  return noise;
}

}  // namespace

TextureNoise::TextureNoise() : white_(tables().white.data()), smooth_(tables().smooth.data()) {}

}  // namespace lockstep
