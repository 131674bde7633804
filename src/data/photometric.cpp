#include <algorithm>
#include <array>
#include <cmath>

#include "data/augment.h"

namespace lockstep {
namespace {

float clamp_channel(float value) { return std::clamp(value, 0.0F, 255.0F); }

void scale_channels(float factor, std::array<float, 3>& rgb) {
  for (float& value : rgb) value = clamp_channel(value * factor);
}

// Hue in sixths of the circle, as RGB -> HSV -> RGB needs it.
float hue_of(const std::array<float, 3>& rgb, float high, float chroma) {
  if (chroma <= 0) return 0;
  if (high == rgb[0]) return (rgb[1] - rgb[2]) / chroma;
  if (high == rgb[1]) return (rgb[2] - rgb[0]) / chroma + 2;
  return (rgb[0] - rgb[1]) / chroma + 4;
}

// Value and saturation as in HSV: `high` stays, the distance of the lowest channel from it is
// scaled.
void turn_color(float saturation_factor, float hue_sixths, std::array<float, 3>& rgb) {
  const float high = std::max({rgb[0], rgb[1], rgb[2]});
  const float chroma = high - std::min({rgb[0], rgb[1], rgb[2]});
  const float hue = hue_of(rgb, high, chroma) + hue_sixths;
  const float new_chroma = std::min(chroma * saturation_factor, high);
  constexpr std::array<float, 3> kOffsets{5, 3, 1};
  for (std::size_t c = 0; c < 3; ++c) {
    float k = kOffsets[c] + hue;
    k -= 6 * std::floor(k / 6);
    rgb[c] = high - new_chroma * std::clamp(std::min(k, 4 - k), 0.0F, 1.0F);
  }
}

}  // namespace

void distort_colors(const AugmentDraw& draw, Image& image) {
  const float shift = draw.brightness ? draw.brightness_shift : 0;
  const bool turn = draw.saturation || draw.hue;
  const float saturation = draw.saturation ? draw.saturation_factor : 1;
  const float hue = draw.hue ? draw.hue_shift / 60 : 0;
  for (std::size_t i = 0; i + 2 < image.pixels.size(); i += 3) {
    std::uint8_t* pixel = image.pixels.data() + i;
    std::array<float, 3> rgb{};
    for (std::size_t c = 0; c < 3; ++c)
      rgb[c] = clamp_channel(static_cast<float>(pixel[c]) + shift);
    if (draw.contrast && !draw.contrast_last) scale_channels(draw.contrast_factor, rgb);
    if (turn) turn_color(saturation, hue, rgb);
    if (draw.contrast && draw.contrast_last) scale_channels(draw.contrast_factor, rgb);
    for (std::size_t c = 0; c < 3; ++c) pixel[c] = static_cast<std::uint8_t>(rgb[c] + 0.5F);
  }
}

void vary_values(const AugmentOptions& options, Rng rng, const Image& image, Size padded,
                 float* values) {
  const float gain = rng.uniform(options.gain[0], options.gain[1]);
  const float shift = rng.uniform(-options.shift, options.shift);
  const auto noise = [&] { return options.noise > 0 ? options.noise * rng.normal() : 0; };
  const auto channels = static_cast<std::size_t>(image.channels);
  const std::size_t row = static_cast<std::size_t>(image.width) * channels;
  for (std::size_t y = 0; y < static_cast<std::size_t>(image.height); ++y) {
    for (std::size_t i = 0; i < row; ++i) {
      const bool there = image.floats.empty() || !std::isnan(image.floats[y * row + i]);
      if (there) values[i] = values[i] * gain + shift + noise();
    }
    values += static_cast<std::size_t>(padded.width) * channels;
  }
}

}  // namespace lockstep
