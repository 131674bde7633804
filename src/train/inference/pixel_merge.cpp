#include "train/inference/pixel_merge.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/check.h"
#include "nn/argmax.h"

namespace lockstep {
namespace {

/// Where a pixel of the result lies between two of the source.
struct Between {
  int first = 0, second = 0;
  float weight = 0;  // of the second
};

std::vector<Between> positions(int source, int result) {
  std::vector<Between> positions;
  const double scale = static_cast<double>(source) / result;
  for (int i = 0; i < result; ++i) {
    const double center = std::max(0.0, (i + 0.5) * scale - 0.5);
    const int first = std::min(static_cast<int>(center), source - 1);
    positions.push_back(
        {first, std::min(first + 1, source - 1), static_cast<float>(center - first)});
  }
  return positions;
}

float between(float a, float b, float weight) { return a + weight * (b - a); }

/// Calls use(y, x, logits of the pixel) for all pixels at `size`.
template <typename Use>
void for_each_pixel(const LogitMap& map, Size size, const Use& use) {
  LOCKSTEP_CHECK(map.valid.height <= map.stored.height && map.valid.width <= map.stored.width,
                 "logits of ", to_string(map.stored), " for an image of ", to_string(map.valid));
  const auto classes = static_cast<std::size_t>(map.classes);
  const std::size_t stride = static_cast<std::size_t>(map.stored.width) * classes;
  const std::vector<Between> rows = positions(map.valid.height, size.height);
  const std::vector<Between> columns = positions(map.valid.width, size.width);
  std::vector<float> logits(classes);
  for (int y = 0; y < size.height; ++y) {
    const Between& row = rows[static_cast<std::size_t>(y)];
    const float* upper = map.values + static_cast<std::size_t>(row.first) * stride;
    const float* lower = map.values + static_cast<std::size_t>(row.second) * stride;
    for (int x = 0; x < size.width; ++x) {
      const Between& column = columns[static_cast<std::size_t>(x)];
      const std::size_t left = static_cast<std::size_t>(column.first) * classes;
      const std::size_t right = static_cast<std::size_t>(column.second) * classes;
      if (size == map.valid) {
        use(y, x, upper + left);
        continue;
      }
      for (std::size_t c = 0; c < classes; ++c) {
        const float above = between(upper[left + c], upper[right + c], column.weight);
        const float below = between(lower[left + c], lower[right + c], column.weight);
        logits[c] = between(above, below, row.weight);
      }
      use(y, x, logits.data());
    }
  }
}

}  // namespace

std::vector<Label> pixel_classes(const LogitMap& logits, Size size) {
  std::vector<Label> labels;
  labels.reserve(static_cast<std::size_t>(size.height) * static_cast<std::size_t>(size.width));
  for_each_pixel(logits, size, [&](int, int, const float* values) {
    const auto classes = static_cast<std::size_t>(logits.classes);
    labels.push_back(static_cast<Label>(first_largest({values, classes})));
  });
  return labels;
}

void add_probabilities(const LogitMap& logits, Size size, std::span<float> sums) {
  const auto classes = static_cast<std::size_t>(logits.classes);
  const auto width = static_cast<std::size_t>(size.width);
  LOCKSTEP_CHECK(sums.size() == static_cast<std::size_t>(size.height) * width * classes,
                 "probabilities of ", to_string(size), " pixels, got ", sums.size());
  std::vector<float> probabilities(classes);
  for_each_pixel(logits, size, [&](int y, int x, const float* values) {
    softmax({values, classes}, probabilities.data());
    const std::size_t column =
        logits.mirrored ? width - 1 - static_cast<std::size_t>(x) : static_cast<std::size_t>(x);
    float* sum = sums.data() + (static_cast<std::size_t>(y) * width + column) * classes;
    for (std::size_t c = 0; c < classes; ++c) sum[c] += probabilities[c];
  });
}

std::vector<float> interpolated(const LogitMap& values, Size size) {
  std::vector<float> result;
  for_each_pixel(values, size, [&](int, int, const float* pixel) {
    result.insert(result.end(), pixel, pixel + values.classes);
  });
  return result;
}

std::vector<Label> largest(std::span<const float> values, std::int64_t classes) {
  const auto count = static_cast<std::size_t>(classes);
  std::vector<Label> labels;
  labels.reserve(values.size() / count);
  for (std::size_t i = 0; i < values.size(); i += count) {
    labels.push_back(static_cast<Label>(first_largest(values.subspan(i, count))));
  }
  return labels;
}

std::vector<ClassScore> likeliest(std::span<const float> probabilities) {
  constexpr std::size_t kMost = 5;
  std::vector<ClassScore> scores;
  for (const float probability : probabilities) {
    scores.push_back({static_cast<Label>(scores.size()), probability});
  }
  std::stable_sort(scores.begin(), scores.end(), [](const ClassScore& a, const ClassScore& b) {
    return a.probability > b.probability;
  });
  scores.resize(std::min(scores.size(), kMost));
  return scores;
}

}  // namespace lockstep
