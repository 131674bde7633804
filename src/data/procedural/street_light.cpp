#include "data/procedural/street_scene.h"

namespace lockstep {
namespace {

// How much of the colour at distance z arrives. The sky is a haze of its own.
float transmitted(float haze, float z) {
  if (z >= StreetCanvas::kFar) return 0.75F;
  const float t = 1 / (1 + haze * z);
  return t * t;
}

}  // namespace

void develop(const StreetScene& scene, const StreetCanvas& canvas,
             std::vector<std::uint8_t>& pixels) {
  const StreetLight& light = scene.light;
  const TextureNoise noise;
  const int grain_x = static_cast<int>(scene.texture_u);
  const int grain_y = static_cast<int>(scene.texture_v);
  std::size_t i = 0;
  for (int y = 0; y < canvas.size.height; ++y) {
    for (int x = 0; x < canvas.size.width; ++x, ++i) {
      const Rgb color =
          mix(light.haze_color, canvas.colors[i], transmitted(light.haze, canvas.depths[i]));
      const std::array<float, 3> rgb{color.r * light.tint.r, color.g * light.tint.g,
                                     color.b * light.tint.b};
      for (std::size_t c = 0; c < 3; ++c) {
        const float grain =
            light.noise * noise.white(x + grain_x + 83 * static_cast<int>(c), y + grain_y);
        const float value = (rgb[c] - 110) * light.contrast + 110 + grain;
        pixels[i * 3 + c] = static_cast<std::uint8_t>(std::clamp(value, 0.0F, 255.0F) + 0.5F);
      }
    }
  }
}

}  // namespace lockstep
