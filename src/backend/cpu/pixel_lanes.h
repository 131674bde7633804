#pragma once
// Eight pixels at a time with their logits transposed, so that a vector holds one class of all of
// them: every step of a softmax then uses whole vectors, whatever the number of classes is.

#include <algorithm>
#include <cstdint>

#include "backend/cpu/element.h"
#include "backend/cpu/exp_log.h"
#include "backend/cpu/vec.h"

namespace lockstep::pixel_lanes {

using vec::Floats;
using vec::Ints;

inline constexpr int kIgnored = -1;  // in place of an ignored label

/// Rows of an image behind one partial sum: fixed, not per thread.
inline constexpr std::int64_t kTaskRows = 1024;

/// Calls body(first, lanes) for classes [first, first + lanes). All are kLanes, a constant: the
/// last ones overlap those before them. Only fewer than kLanes classes are taken as they are.
template <typename Body>
[[gnu::always_inline]] inline void for_each_class_lanes(std::int64_t classes, const Body& body) {
  if (classes < vec::kLanes) return body(0, classes);
  std::int64_t c = 0;
  for (; c + vec::kLanes <= classes; c += vec::kLanes) body(c, vec::kLanes);
  if (c < classes) body(classes - vec::kLanes, vec::kLanes);
}

/// Returns the labels of pixels from row `begin` on; those in lanes beyond `pixels` are kIgnored.
[[gnu::always_inline]] inline Ints load_labels(const Tensor& from, int ignore_index,
                                               std::int64_t begin, std::int64_t pixels) {
  const auto* source = static_cast<const std::uint16_t*>(from.data);
  Ints labels{};
  if (from.row_stride == 1) {
    labels = vec::load_labels(source + begin, pixels);
  } else {
    for (std::int64_t p = 0; p < pixels; ++p) labels[p] = source[(begin + p) * from.row_stride];
  }
  constexpr Ints kLane = {0, 1, 2, 3, 4, 5, 6, 7};
  const Ints ignored = (labels == ignore_index) | (kLane >= static_cast<std::int32_t>(pixels));
  return ignored ? Ints{} + kIgnored : labels;
}

/// values [class]. Lanes beyond `pixels` get the last pixel's logits.
[[gnu::always_inline]] inline void load_logits(const Tensor& logits, std::int64_t begin,
                                               std::int64_t pixels, Floats* values) {
  with_computed_type(logits.dtype, [&]<typename T>(T) {
    const T* source = row_of<const T>(logits, begin);
    for_each_class_lanes(logits.shape.channels(), [&](std::int64_t first, std::int64_t lanes) {
      Floats rows[vec::kLanes];
      for (std::int64_t p = 0; p < vec::kLanes; ++p) {
        rows[p] = vec::load(source + std::min(p, pixels - 1) * logits.row_stride + first, lanes);
      }
      simd::transpose(rows);
      for (int k = 0; k < vec::kLanes; ++k) values[first + k] = rows[k];
    });
  });
}

/// Writes rows [begin, begin + pixels) of `to`; gradient(first, k) is the vector of class first +
/// k, k a constant. Of lanes beyond the last class what it gives is not used.
template <typename Gradient>
[[gnu::always_inline]] inline void store_classes(const Tensor& to, std::int64_t begin,
                                                 std::int64_t pixels, const Gradient& gradient) {
  with_computed_type(to.dtype, [&]<typename T>(T) {
    T* target = row_of<T>(to, begin);
    for_each_class_lanes(to.shape.channels(), [&](std::int64_t first, std::int64_t lanes) {
      Floats rows[vec::kLanes];
      for (int k = 0; k < vec::kLanes; ++k) rows[k] = gradient(first, k);
      simd::transpose(rows);
      for (std::int64_t p = 0; p < pixels; ++p) {
        vec::store(target + p * to.row_stride + first, rows[p], lanes);
      }
    });
  });
}

}  // namespace lockstep::pixel_lanes
