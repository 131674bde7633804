#pragma once
// From what a network says of windows to what it says of the image.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/data/windows.h"

namespace lockstep {

/// Windows along one side of an image, evenly spread.
struct WindowAxis {
  int window = 0;           // pixels
  std::vector<int> starts;  // multiples of the divisor
  /// [pixel of the image] the window whose middle is nearest; of two the first.
  std::vector<int> owners(int extent) const;
};

/// The side is filled up to a multiple of the divisor. A window longer than that is as long as it.
/// Throws ConfigError where a window is shorter than the divisor, or the overlap is none.
WindowAxis window_axis(int extent, int window, double overlap, int divisor);

/// Where a window lies, and what of it belongs to the image: what fills the image up does not.
struct WindowPlace {
  int y = 0, x = 0;
  Size size;
};

/// All windows of an image, row by row from the top left.
class WindowGrid {
 public:
  WindowGrid(Size image, const WindowOptions& options);

  Size image() const { return image_; }
  /// As it is used: at most the image, filled up.
  Size window() const { return {rows_.window, columns_.window}; }
  int rows() const { return static_cast<int>(rows_.starts.size()); }
  int columns() const { return static_cast<int>(columns_.starts.size()); }
  WindowPlace at(int row, int column) const;
  /// Of the last window: the image filled up.
  Size end() const {
    return {rows_.starts.back() + rows_.window, columns_.starts.back() + columns_.window};
  }
  const WindowAxis& row_axis() const { return rows_; }
  const WindowAxis& column_axis() const { return columns_; }

 private:
  Size image_;
  WindowAxis rows_, columns_;
};

/// [window.height, window.width] exp(-d^2 / (2 (side / 8)^2)) along each side, not below 0.001 (as
/// MONAI's SlidingWindowInferer).
std::vector<float> gaussian_weights(Size window);

/// Adds up windows in their order, which alone decides the bits. Of the image it holds the rows
/// that a row of windows touches.
class WindowMerge {
 public:
  /// `rows`: probabilities [count, width, classes] of the image's rows from `first` on, which no
  /// later window changes. Called from the top, for each row once.
  using Rows = std::function<void(int first, int count, std::span<const float> probabilities)>;

  /// `compares`: whether windows are kept until the next ones come, for `mismatch`. The grid
  /// outlives the object.
  WindowMerge(const WindowGrid& grid, std::int64_t classes, Blend blend, bool compares, Rows rows);

  /// The next window's probabilities, rows of `stride` pixels; as many as WindowPlace::size says
  /// are read.
  void add(std::span<const float> probabilities, int stride);
  const TileMismatch& mismatch() const { return mismatch_; }

 private:
  /// What a window says of the image's pixels.
  struct Kept {
    WindowPlace place;
    std::vector<float> probabilities;  // [place.size, classes]
  };

  float weight(const WindowPlace& place, int y, int x) const;
  void accumulate(const WindowPlace& place, std::span<const float> probabilities, int stride);
  void compare(Kept window);
  void compare(const Kept& a, const Kept& b);
  void finish_rows(int end);

  const WindowGrid& grid_;
  const std::size_t classes_;
  const Blend blend_;
  const bool compares_;
  const Rows rows_;
  std::vector<int> row_owners_, column_owners_;  // of kCrop
  std::vector<float> gaussian_;                  // of kGaussian
  int row_ = 0, column_ = 0;                     // of the next window
  int first_ = 0;                                // row of the image that the sums begin with
  std::vector<float> sums_;                      // [window.height, image.width, classes]
  std::vector<float> weights_;                   // [window.height, image.width]
  std::vector<Kept> above_, present_;            // [column]
  TileMismatch mismatch_;
};

}  // namespace lockstep
