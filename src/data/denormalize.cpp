#include "data/denormalize.h"

#include <algorithm>
#include <cmath>

namespace lockstep {

Image denormalize(const Batch& batch, std::size_t place, const DataOptions& options) {
  const auto [height, width] = batch.size;
  Image image{height, width, {}};
  image.pixels.resize(static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * 3);
  const float* normalised = batch.images.data() + place * image.pixels.size();
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    const float value = (normalised[i] * options.std[i % 3] + options.mean[i % 3]) * 255;
    image.pixels[i] = static_cast<std::uint8_t>(std::lround(std::clamp(value, 0.F, 255.F)));
  }
  return image;
}

}  // namespace lockstep
