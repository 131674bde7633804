#include "data/window_merge.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

std::size_t area(int height, int width) {
  return static_cast<std::size_t>(height) * static_cast<std::size_t>(width);
}

std::size_t first_largest(const float* values, std::size_t count) {
  return static_cast<std::size_t>(std::max_element(values, values + count) - values);
}

/// Along one side: the middle has 1.
std::vector<double> gaussian(int side) {
  std::vector<double> weights;
  const double sigma = side / 8.0;
  for (int i = 0; i < side; ++i) {
    const double distance = i - (side - 1) / 2.0;
    weights.push_back(std::exp(-distance * distance / (2 * sigma * sigma)));
  }
  return weights;
}

}  // namespace

WindowAxis window_axis(int extent, int window, double overlap, int divisor) {
  const int all = (extent + divisor - 1) / divisor;  // in units of the divisor
  const int side = std::min(window / divisor, all);
  if (side < 1) {
    throw ConfigError(concat("eval.window: a window of ", window, " pixels is smaller than the ",
                             "network's divisor; its sides must be at least ", divisor));
  }
  if (!(overlap >= 0 && overlap < 1)) {
    throw ConfigError(concat("eval.overlap: expected a share of 0 to below 1, got ", overlap));
  }
  constexpr double kRounding = 1e-9;  // 20 (1 - 0.9) is 2
  const int step = std::max(1, static_cast<int>(side * (1 - overlap) + kRounding));
  const int rest = all - side;
  const int count = (rest + step - 1) / step + 1;
  WindowAxis axis{side * divisor, {0}};
  for (std::int64_t k = 1; k < count; ++k) {  // halves are rounded up
    const std::int64_t unit = (2 * k * rest + count - 1) / (2 * (count - 1));
    axis.starts.push_back(static_cast<int>(unit) * divisor);
  }
  return axis;
}

std::vector<int> WindowAxis::owners(int extent) const {
  std::vector<int> owners;
  for (int i = 0; i < extent; ++i) {
    const auto distance = [&](int k) {  // doubled: middles may lie between pixels
      return std::abs(2 * (i - starts[static_cast<std::size_t>(k)]) - (window - 1));
    };
    int owner = owners.empty() ? 0 : owners.back();
    while (owner + 1 < static_cast<int>(starts.size()) && distance(owner + 1) < distance(owner)) {
      ++owner;
    }
    owners.push_back(owner);
  }
  return owners;
}

WindowGrid::WindowGrid(Size image, const WindowOptions& options)
    : image_(image),
      rows_(window_axis(image.height, options.window.height, options.overlap, options.divisor)),
      columns_(window_axis(image.width, options.window.width, options.overlap, options.divisor)) {}

WindowPlace WindowGrid::at(int row, int column) const {
  const int y = rows_.starts[static_cast<std::size_t>(row)];
  const int x = columns_.starts[static_cast<std::size_t>(column)];
  return {y,
          x,
          {std::min(rows_.window, image_.height - y), std::min(columns_.window, image_.width - x)}};
}

std::vector<float> gaussian_weights(Size window) {
  constexpr double kLeast = 0.001;
  const std::vector<double> rows = gaussian(window.height), columns = gaussian(window.width);
  std::vector<float> weights;
  weights.reserve(area(window.height, window.width));
  for (const double row : rows) {
    for (const double column : columns) {
      weights.push_back(static_cast<float>(std::max(row * column, kLeast)));
    }
  }
  return weights;
}

WindowMerge::WindowMerge(const WindowGrid& grid, std::int64_t classes, Blend blend, bool compares,
                         Rows rows)
    : grid_(grid),
      classes_(static_cast<std::size_t>(classes)),
      blend_(blend),
      compares_(compares),
      rows_(std::move(rows)) {
  const Size image = grid.image(), window = grid.window();
  if (blend == Blend::kCrop) {
    row_owners_ = grid.row_axis().owners(image.height);
    column_owners_ = grid.column_axis().owners(image.width);
  }
  if (blend == Blend::kGaussian) gaussian_ = gaussian_weights(window);
  weights_.resize(area(std::min(window.height, image.height), image.width));
  sums_.resize(weights_.size() * classes_);
}

void WindowMerge::add(std::span<const float> probabilities, int stride) {
  const WindowPlace place = grid_.at(row_, column_);
  accumulate(place, probabilities, stride);
  if (compares_) {
    Kept kept{place, {}};
    for (int y = 0; y < place.size.height; ++y) {
      const auto row =
          probabilities.subspan(area(y, stride) * classes_, area(1, place.size.width) * classes_);
      kept.probabilities.insert(kept.probabilities.end(), row.begin(), row.end());
    }
    compare(std::move(kept));
  }
  if (++column_ < grid_.columns()) return;
  column_ = 0;
  ++row_;
  std::swap(above_, present_);
  present_.clear();
  finish_rows(row_ < grid_.rows() ? grid_.at(row_, 0).y : grid_.image().height);
}

float WindowMerge::weight(const WindowPlace& place, int y, int x) const {
  switch (blend_) {
    case Blend::kCrop:
      return row_owners_[static_cast<std::size_t>(place.y + y)] == row_ &&
                     column_owners_[static_cast<std::size_t>(place.x + x)] == column_
                 ? 1.0F
                 : 0.0F;
    case Blend::kGaussian:
      return gaussian_[area(y, grid_.window().width) + static_cast<std::size_t>(x)];
    case Blend::kFlat:
      break;
  }
  return 1.0F;
}

void WindowMerge::accumulate(const WindowPlace& place, std::span<const float> probabilities,
                             int stride) {
  for (int y = 0; y < place.size.height; ++y) {
    const std::size_t to =
        area(place.y - first_ + y, grid_.image().width) + static_cast<std::size_t>(place.x);
    const std::size_t from = area(y, stride);
    for (int x = 0; x < place.size.width; ++x) {
      const float factor = weight(place, y, x);
      if (factor == 0) continue;
      const auto column = static_cast<std::size_t>(x);
      const float* const values = probabilities.data() + (from + column) * classes_;
      float* const sums = sums_.data() + (to + column) * classes_;
      for (std::size_t c = 0; c < classes_; ++c) sums[c] += factor * values[c];
      weights_[to + column] += factor;
    }
  }
}

void WindowMerge::compare(Kept window) {
  if (!present_.empty()) compare(present_.back(), window);
  if (!above_.empty()) compare(above_[static_cast<std::size_t>(column_)], window);
  present_.push_back(std::move(window));
}

void WindowMerge::compare(const Kept& a, const Kept& b) {
  const int top = std::max(a.place.y, b.place.y), left = std::max(a.place.x, b.place.x);
  const int bottom = std::min(a.place.y + a.place.size.height, b.place.y + b.place.size.height);
  const int right = std::min(a.place.x + a.place.size.width, b.place.x + b.place.size.width);
  const auto values = [&](const Kept& window, int y, int x) {
    return window.probabilities.data() + (area(y - window.place.y, window.place.size.width) +
                                          static_cast<std::size_t>(x - window.place.x)) *
                                             classes_;
  };
  for (int y = top; y < bottom; ++y) {
    for (int x = left; x < right; ++x) {
      const float* const p = values(a, y, x);
      const float* const q = values(b, y, x);
      double difference = 0;
      for (std::size_t c = 0; c < classes_; ++c) difference += std::abs(p[c] - q[c]);
      mismatch_.difference += difference / 2;
      mismatch_.other_class += first_largest(p, classes_) != first_largest(q, classes_) ? 1 : 0;
      ++mismatch_.pixels;
    }
  }
}

void WindowMerge::finish_rows(int end) {
  const int count = end - first_;
  if (count <= 0) return;
  const std::size_t pixels = area(count, grid_.image().width);
  for (std::size_t i = 0; i < pixels; ++i) {
    for (std::size_t c = 0; c < classes_; ++c) sums_[i * classes_ + c] /= weights_[i];
  }
  rows_(first_, count, std::span(sums_).first(pixels * classes_));
  const auto move_up = [](std::vector<float>& values, std::size_t by) {
    std::copy(values.begin() + static_cast<std::ptrdiff_t>(by), values.end(), values.begin());
    std::fill(values.end() - static_cast<std::ptrdiff_t>(by), values.end(), 0.0F);
  };
  move_up(sums_, pixels * classes_);
  move_up(weights_, pixels);
  first_ = end;
}

}  // namespace lockstep
