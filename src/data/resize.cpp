#include "data/resize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "io/raw_pixels.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// The part in what is held of the image. REQUIRES: that has it.
template <typename Map>
ImagePart part_held(const Map& source, const Whole& whole, ImagePart part) {
  part.top -= whole.top;
  part.left -= whole.left;
  LOCKSTEP_CHECK(part.top >= 0 && part.left >= 0 && part.top + part.size.height <= source.height &&
                     part.left + part.size.width <= source.width,
                 "of an image only ", source.height, "x", source.width, " is there, not ",
                 to_string(part.size), " at (", part.top, ", ", part.left, ")");
  return part;
}

template <typename Map>
void prepare(const Map& source, Size full, const ImagePart& window, Map& result) {
  LOCKSTEP_CHECK(source.height > 0 && source.width > 0 && window.top >= 0 && window.left >= 0 &&
                     window.top + window.size.height <= full.height &&
                     window.left + window.size.width <= full.width,
                 "a window of ", to_string(window.size), " at (", window.top, ", ", window.left,
                 ") lies outside ", to_string(full));
  result.height = window.size.height;
  result.width = window.size.width;
}

/// Calls `use` with the values of `source` and those of `result` of the same type; the others of
/// `result` become empty.
template <typename Use>
void with_values_of_both(const Image& source, Image& result, const Use& use) {
  result.channels = source.channels;
  result.type = source.type;
  if (source.pixels.empty()) result.pixels.clear();
  if (source.words.empty()) result.words.clear();
  if (source.floats.empty()) result.floats.clear();
  if (!source.floats.empty()) return use(source.floats, result.floats);
  if (!source.words.empty()) return use(source.words, result.words);
  use(source.pixels, result.pixels);
}

/// A sum as a value, where integers began at 0.5: truncation rounds.
template <typename Value>
Value value_of(float sum) {
  if constexpr (std::is_same_v<Value, float>) {
    return sum;
  } else {
    return static_cast<Value>(std::min(sum, static_cast<float>(std::numeric_limits<Value>::max())));
  }
}

int nearest(int i, int from, int to) {
  return static_cast<int>((2 * static_cast<std::int64_t>(i) + 1) * from /
                          (2 * static_cast<std::int64_t>(to)));
}

}  // namespace

void Resizer::plan(int source, int full, int begin, int count, Axis& axis) {
  const double scale = static_cast<double>(source) / full;
  const double support = std::max(scale, 1.0);
  axis.taps.resize(static_cast<std::size_t>(count));
  axis.weights.clear();
  for (int i = 0; i < count; ++i) {
    const double center = (begin + i + 0.5) * scale;
    const int first = std::max(static_cast<int>(center - support + 0.5), 0);
    const int end = std::min(static_cast<int>(center + support + 0.5), source);
    double total = 0;
    for (int k = first; k < end; ++k)
      total += std::max(0.0, 1 - std::abs(k + 0.5 - center) / support);
    axis.taps[static_cast<std::size_t>(i)] = {first, end - first, axis.weights.size()};
    for (int k = first; k < end; ++k) {
      const double weight = std::max(0.0, 1 - std::abs(k + 0.5 - center) / support);
      axis.weights.push_back(static_cast<float>(weight / total));
    }
  }
}

// Columns [first, end) of one result row: a weighted sum of source rows. Rows go first because a
// sum over whole rows vectorises, and because one row of scratch then is enough.
template <typename Value>
void Resizer::blend_rows(const Value* values, std::size_t stride, const Tap& tap, std::size_t first,
                         std::size_t end) {
  std::fill(row_.begin() + static_cast<std::ptrdiff_t>(first),
            row_.begin() + static_cast<std::ptrdiff_t>(end), 0.0F);
  for (int k = 0; k < tap.count; ++k) {
    const float weight = rows_.weights[tap.offset + static_cast<std::size_t>(k)];
    const Value* in = values + static_cast<std::size_t>(tap.first + k) * stride;
    float* out = row_.data();
    for (std::size_t i = first; i < end; ++i) out[i] += weight * static_cast<float>(in[i]);
  }
}

template <typename Value>
void Resizer::blend_columns(std::size_t channels, Value* result) const {
  constexpr float kBegin = std::is_same_v<Value, float> ? 0.0F : 0.5F;
  if (channels == 3) {
    for (const Tap& tap : columns_.taps) {
      const float* in = row_.data() + static_cast<std::size_t>(tap.first) * 3;
      const float* weights = columns_.weights.data() + tap.offset;
      float rgb[3] = {kBegin, kBegin, kBegin};
      for (int k = 0; k < tap.count; ++k) {
        for (int c = 0; c < 3; ++c) rgb[c] += weights[k] * in[k * 3 + c];
      }
      for (int c = 0; c < 3; ++c) *result++ = value_of<Value>(rgb[c]);
    }
    return;
  }
  for (const Tap& tap : columns_.taps) {
    const float* weights = columns_.weights.data() + tap.offset;
    for (std::size_t c = 0; c < channels; ++c) {
      const float* in = row_.data() + static_cast<std::size_t>(tap.first) * channels + c;
      float sum = kBegin;
      for (int k = 0; k < tap.count; ++k)
        sum += weights[k] * in[static_cast<std::size_t>(k) * channels];
      *result++ = value_of<Value>(sum);
    }
  }
}

template <typename Value>
void Resizer::blend(const Image& source, const std::vector<Value>& values, Image& result,
                    std::vector<Value>& blended) {
  const auto channels = static_cast<std::size_t>(source.channels);
  const std::size_t stride = static_cast<std::size_t>(source.width) * channels;
  const std::size_t row_values = static_cast<std::size_t>(result.width) * channels;
  blended.resize(static_cast<std::size_t>(result.height) * row_values);
  row_.resize(stride);
  const auto first = static_cast<std::size_t>(columns_.taps.front().first) * channels;
  const Tap& last = columns_.taps.back();
  const auto end = static_cast<std::size_t>(last.first + last.count) * channels;
  for (std::size_t y = 0; y < rows_.taps.size(); ++y) {
    blend_rows(values.data(), stride, rows_.taps[y], first, end);
    blend_columns(channels, blended.data() + y * row_values);
  }
}

ImagePart Resizer::source_of(Size image, Size full, const ImagePart& window) {
  if (image == full) return window;
  plan(image.height, full.height, window.top, window.size.height, rows_);
  plan(image.width, full.width, window.left, window.size.width, columns_);
  const auto extent = [](const Axis& axis) {
    return axis.taps.back().first + axis.taps.back().count - axis.taps.front().first;
  };
  return {rows_.taps.front().first, columns_.taps.front().first, {extent(rows_), extent(columns_)}};
}

void Resizer::resize(const Image& source, const Whole& whole, Size full, const ImagePart& window,
                     Image& result) {
  prepare(source, full, window, result);
  const ImagePart part = part_held(source, whole, source_of(whole.size, full, window));
  with_values_of_both(source, result, [&](const auto& values, auto& kept) {
    if (whole.size == full) {
      copy_part(values, source.width, static_cast<std::size_t>(source.channels), part, kept);
    } else {
      for (Tap& tap : rows_.taps) tap.first -= whole.top;
      for (Tap& tap : columns_.taps) tap.first -= whole.left;
      blend(source, values, result, kept);
    }
  });
}

void Resizer::resize(const LabelMap& source, const Whole& whole, Size full, const ImagePart& window,
                     LabelMap& result) {
  prepare(source, full, window, result);
  if (whole.size == full) {
    const ImagePart part = part_held(source, whole, window);
    return copy_part(source.pixels, source.width, 1, part, result.pixels);
  }
  result.pixels.resize(static_cast<std::size_t>(result.height) *
                       static_cast<std::size_t>(result.width));
  const auto row_of = [&](int y) {
    return nearest(window.top + y, whole.size.height, full.height) - whole.top;
  };
  nearest_.resize(static_cast<std::size_t>(window.size.width));
  for (int x = 0; x < window.size.width; ++x) {
    nearest_[static_cast<std::size_t>(x)] =
        nearest(window.left + x, whole.size.width, full.width) - whole.left;
  }
  LOCKSTEP_CHECK(row_of(0) >= 0 && row_of(window.size.height - 1) < source.height &&
                     nearest_.front() >= 0 && nearest_.back() < source.width,
                 "of labels only ", source.height, "x", source.width, " are there");
  Label* out = result.pixels.data();
  for (int y = 0; y < window.size.height; ++y) {
    const auto row = static_cast<std::size_t>(row_of(y));
    const Label* in = source.pixels.data() + row * static_cast<std::size_t>(source.width);
    for (const int x : nearest_) *out++ = in[x];
  }
}

ImageGeometry ResizeRule::geometry(Size image) const {
  Size full = resize.value_or(image);
  if (shorter_side) {
    const double scale = static_cast<double>(*shorter_side) / std::min(image.height, image.width);
    full = {static_cast<int>(std::lround(image.height * scale)),
            static_cast<int>(std::lround(image.width * scale))};
  }
  const Size crop = center_crop.value_or(full);
  const Size part{std::min(crop.height, full.height), std::min(crop.width, full.width)};
  return {full, {(full.height - part.height) / 2, (full.width - part.width) / 2, part}};
}

ResizeRule resize_rule(const DataOptions& options, Split split) {
  if (options.resize && options.val_resize)
    throw ConfigError("data.resize and data.val_resize both say what size validation images have");
  if (split == Split::kTrain) return {options.resize, std::nullopt, std::nullopt};
  return {options.resize, options.val_resize, options.val_crop};
}

}  // namespace lockstep
