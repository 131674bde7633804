#include "nn/image_layout.h"

#include <algorithm>

namespace lockstep {

const float* channels_last(const float* values, const Shape& shape, ImageLayout layout,
                           std::vector<float>& buffer) {
  if (layout == ImageLayout::kChannelsLast) return values;
  const auto needed = static_cast<std::size_t>(shape.elements());
  if (buffer.size() < needed) buffer.resize(needed);
  const std::int64_t channels = shape.channels(), rows = shape.rows_per_sample();
  for (std::int64_t n = 0; n < shape.batch(); ++n) {
    const float* from = values + n * rows * channels;
    float* to = buffer.data() + n * rows * channels;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t c = 0; c < channels; ++c) to[row * channels + c] = from[c * rows + row];
    }
  }
  return buffer.data();
}

}  // namespace lockstep
