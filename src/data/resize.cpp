#include "data/resize.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

template <typename Map>
void copy_window(const Map& source, const Window& window, std::size_t channels, Map& result) {
  const std::size_t row_bytes = static_cast<std::size_t>(window.size.width) * channels;
  for (int y = 0; y < window.size.height; ++y) {
    const auto row =
        static_cast<std::size_t>(window.top + y) * static_cast<std::size_t>(source.width);
    const auto begin =
        source.pixels.begin() +
        static_cast<std::ptrdiff_t>((row + static_cast<std::size_t>(window.left)) * channels);
    std::copy(begin, begin + static_cast<std::ptrdiff_t>(row_bytes),
              result.pixels.begin() +
                  static_cast<std::ptrdiff_t>(static_cast<std::size_t>(y) * row_bytes));
  }
}

template <typename Map>
void prepare(const Map& source, Size full, const Window& window, std::size_t channels,
             Map& result) {
  LOCKSTEP_CHECK(source.height > 0 && source.width > 0 && window.top >= 0 && window.left >= 0 &&
                     window.top + window.size.height <= full.height &&
                     window.left + window.size.width <= full.width,
                 "a window of ", to_string(window.size), " at (", window.top, ", ", window.left,
                 ") lies outside ", to_string(full));
  result.height = window.size.height;
  result.width = window.size.width;
  result.pixels.resize(static_cast<std::size_t>(result.height) *
                       static_cast<std::size_t>(result.width) * channels);
}

template <typename Map>
bool same_size(const Map& source, Size full) {
  return source.height == full.height && source.width == full.width;
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
void Resizer::blend_rows(const Image& source, const Tap& tap, std::size_t first, std::size_t end) {
  const std::size_t stride = static_cast<std::size_t>(source.width) * 3;
  std::fill(row_.begin() + static_cast<std::ptrdiff_t>(first),
            row_.begin() + static_cast<std::ptrdiff_t>(end), 0.0F);
  for (int k = 0; k < tap.count; ++k) {
    const float weight = rows_.weights[tap.offset + static_cast<std::size_t>(k)];
    const std::uint8_t* in =
        source.pixels.data() + static_cast<std::size_t>(tap.first + k) * stride;
    float* out = row_.data();
    for (std::size_t i = first; i < end; ++i) out[i] += weight * static_cast<float>(in[i]);
  }
}

void Resizer::blend_columns(std::uint8_t* result) const {
  for (const Tap& tap : columns_.taps) {
    const float* in = row_.data() + static_cast<std::size_t>(tap.first) * 3;
    const float* weights = columns_.weights.data() + tap.offset;
    float rgb[3] = {0.5F, 0.5F, 0.5F};  // so that truncation rounds
    for (int k = 0; k < tap.count; ++k) {
      for (int c = 0; c < 3; ++c) rgb[c] += weights[k] * in[k * 3 + c];
    }
    for (int c = 0; c < 3; ++c) *result++ = static_cast<std::uint8_t>(std::min(rgb[c], 255.0F));
  }
}

void Resizer::resize(const Image& source, Size full, const Window& window, Image& result) {
  prepare(source, full, window, 3, result);
  if (same_size(source, full)) return copy_window(source, window, 3, result);
  plan(source.height, full.height, window.top, window.size.height, rows_);
  plan(source.width, full.width, window.left, window.size.width, columns_);
  row_.resize(static_cast<std::size_t>(source.width) * 3);
  const auto first = static_cast<std::size_t>(columns_.taps.front().first) * 3;
  const Tap& last = columns_.taps.back();
  const auto end = static_cast<std::size_t>(last.first + last.count) * 3;
  for (std::size_t y = 0; y < rows_.taps.size(); ++y) {
    blend_rows(source, rows_.taps[y], first, end);
    blend_columns(result.pixels.data() + y * static_cast<std::size_t>(result.width) * 3);
  }
}

void Resizer::resize(const LabelMap& source, Size full, const Window& window, LabelMap& result) {
  prepare(source, full, window, 1, result);
  if (same_size(source, full)) return copy_window(source, window, 1, result);
  const auto nearest = [](int i, int from, int to) {
    return static_cast<int>((2 * static_cast<std::int64_t>(i) + 1) * from /
                            (2 * static_cast<std::int64_t>(to)));
  };
  nearest_.resize(static_cast<std::size_t>(window.size.width));
  for (int x = 0; x < window.size.width; ++x) {
    nearest_[static_cast<std::size_t>(x)] = nearest(window.left + x, source.width, full.width);
  }
  Label* out = result.pixels.data();
  for (int y = 0; y < window.size.height; ++y) {
    const auto row = static_cast<std::size_t>(nearest(window.top + y, source.height, full.height));
    const Label* in = source.pixels.data() + row * static_cast<std::size_t>(source.width);
    for (const int x : nearest_) *out++ = in[x];
  }
}

namespace {

bool is_empty(const std::optional<Size>& size) {
  return size && (size->height < 1 || size->width < 1);
}

void check_sizes(const DataOptions& options) {
  if (is_empty(options.resize)) {
    throw ConfigError(concat("data.resize = [", options.resize->height, ", ", options.resize->width,
                             "]: expected [height, width] of at least 1"));
  }
  if (options.resize && options.val_resize) {
    throw ConfigError("data.resize and data.val_resize both say what size validation images have");
  }
  if (options.val_resize && *options.val_resize < 1) {
    throw ConfigError(
        concat("data.val_resize = ", *options.val_resize, ": expected the shorter side in pixels"));
  }
  if (is_empty(options.val_crop)) {
    throw ConfigError("data.val_crop: expected [height, width] of at least 1");
  }
}

}  // namespace

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
  check_sizes(options);
  if (split == Split::kTrain) return {options.resize, std::nullopt, std::nullopt};
  return {options.resize, options.val_resize, options.val_crop};
}

}  // namespace lockstep
