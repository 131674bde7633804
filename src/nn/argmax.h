#pragma once
// From logits to classes and probabilities.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace lockstep {

/// Where the largest of these values is, the first of equal ones.
inline std::size_t first_largest(std::span<const float> values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

/// classes [row]: where the largest of the row's logits [row, channels] is, the first of equal
/// ones.
inline void argmax_rows(std::span<const float> logits, std::int64_t channels,
                        std::vector<std::int32_t>& classes) {
  const auto width = static_cast<std::size_t>(channels);
  classes.resize(logits.size() / width);
  for (std::size_t row = 0; row < classes.size(); ++row) {
    classes[row] = static_cast<std::int32_t>(first_largest(logits.subspan(row * width, width)));
  }
}

/// Probabilities of one row of logits, as many.
inline void softmax(std::span<const float> logits, float* probabilities) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  float total = 0;
  for (std::size_t c = 0; c < logits.size(); ++c) {
    probabilities[c] = std::exp(logits[c] - largest);
    total += probabilities[c];
  }
  for (std::size_t c = 0; c < logits.size(); ++c) probabilities[c] /= total;
}

/// Cross-entropy of a label's probability. The smallest that a float tells from 0 keeps it finite.
inline double negative_log(float probability) {
  return -std::log(std::max(static_cast<double>(probability),
                            static_cast<double>(std::numeric_limits<float>::min())));
}

}  // namespace lockstep
