#pragma once
// From logits to classes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

/// classes [row]: where the largest of the row's logits [row, channels] is, the first of equal
/// ones.
inline void argmax_rows(std::span<const float> logits, std::int64_t channels,
                        std::vector<std::int32_t>& classes) {
  const auto width = static_cast<std::size_t>(channels);
  classes.resize(logits.size() / width);
  for (std::size_t row = 0; row < classes.size(); ++row) {
    const auto values = logits.subspan(row * width, width);
    const auto largest = std::max_element(values.begin(), values.end());
    classes[row] = static_cast<std::int32_t>(largest - values.begin());
  }
}

}  // namespace lockstep
