#pragma once
// Which pixels of its input a convolution reads, position by position of the kernel.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/backend/convolutions.h"
#include "lockstep/core/shape.h"

namespace lockstep::matmul {

/// A position of the kernel, and the pixels of an image of the output that read the image there:
/// what others read is padding.
struct Tap {
  std::int64_t index = 0;
  std::int64_t top = 0, left = 0, height = 0, width = 0;

  std::int64_t pixels() const { return height * width; }
};

/// The positions of the kernel under which any pixel reads the image: first those under which all
/// do.
inline std::vector<Tap> taps_inside(const ConvGeometry& geometry, const Shape& in) {
  const Shape out = geometry.output_shape(in);
  // Outputs [first, end) of `size` read inside of `inputs`, the one at 0 at `offset`.
  const auto inside = [](std::int64_t offset, std::int64_t stride, std::int64_t inputs,
                         std::int64_t size) {
    const std::int64_t first = std::max<std::int64_t>(0, (stride - 1 - offset) / stride);
    const std::int64_t end =
        offset < inputs ? std::min(size, (inputs - 1 - offset) / stride + 1) : 0;
    return std::pair(first, std::max(first, end));
  };
  std::vector<Tap> taps;
  for (std::int64_t index = 0; index < geometry.kernel_h * geometry.kernel_w; ++index) {
    const std::int64_t y = index / geometry.kernel_w * geometry.dilation_h - geometry.padding_h;
    const std::int64_t x = index % geometry.kernel_w * geometry.dilation_w - geometry.padding_w;
    const auto [top, bottom] = inside(y, geometry.stride_h, in.height(), out.height());
    const auto [left, right] = inside(x, geometry.stride_w, in.width(), out.width());
    const Tap tap{index, top, left, bottom - top, right - left};
    if (tap.pixels() > 0) taps.push_back(tap);
  }
  std::stable_partition(taps.begin(), taps.end(),
                        [&](const Tap& tap) { return tap.pixels() == out.rows_per_sample(); });
  return taps;
}

/// Which pixel of the input each pixel of the output reads.
class Pixels {
 public:
  Pixels(const ConvGeometry& geometry, const Shape& in, const Shape& out)
      : geometry_(geometry), in_(in), out_(out) {}

  /// Whether a tap is of all pixels, so that its rows are those of the output.
  bool all(const Tap& tap) const { return tap.pixels() == out_.rows_per_sample(); }
  /// Whether, besides, every pixel reads the one at its own place.
  bool same(const Tap& tap) const {
    return all(tap) && geometry_.stride_h == 1 && geometry_.stride_w == 1 &&
           in_.height() == out_.height() && in_.width() == out_.width();
  }
  /// The pixel of the output that is this row of a tap's, counted over all images.
  std::int64_t output(const Tap& tap, std::int64_t row) const {
    if (all(tap)) return row;
    const std::int64_t y = row / tap.width;
    return (y / tap.height * out_.height() + tap.top + y % tap.height) * out_.width() + tap.left +
           row % tap.width;
  }
  /// The pixel that it reads.
  std::int64_t input(const Tap& tap, std::int64_t row) const {
    return same(tap) ? row : input(output(tap, row), tap.index);
  }
  /// The one under this position of the kernel; -1 outside the image.
  std::int64_t input(std::int64_t output, std::int64_t tap) const {
    const ConvGeometry& g = geometry_;
    const std::int64_t row = output / out_.width();
    const std::int64_t image = row / out_.height();
    const std::int64_t y =
        row % out_.height() * g.stride_h + tap / g.kernel_w * g.dilation_h - g.padding_h;
    const std::int64_t x =
        output % out_.width() * g.stride_w + tap % g.kernel_w * g.dilation_w - g.padding_w;
    if (y < 0 || y >= in_.height() || x < 0 || x >= in_.width()) return -1;
    return (image * in_.height() + y) * in_.width() + x;
  }
  /// The pixels that `count` of the output read under a position of the kernel, from `first` on.
  void inputs(std::int64_t first, std::int64_t count, std::int64_t tap, std::int64_t* to) const {
    const ConvGeometry& g = geometry_;
    const std::int64_t down = tap / g.kernel_w * g.dilation_h - g.padding_h;
    const std::int64_t right = tap % g.kernel_w * g.dilation_w - g.padding_w;
    std::int64_t column = first % out_.width(), row = first / out_.width();
    for (std::int64_t p = 0; p < count; ++row, column = 0) {
      const std::int64_t y = row % out_.height() * g.stride_h + down;
      const std::int64_t line = (row / out_.height() * in_.height() + y) * in_.width();
      const bool outside = y < 0 || y >= in_.height();
      for (; column < out_.width() && p < count; ++column, ++p) {
        const std::int64_t x = column * g.stride_w + right;
        to[p] = outside || x < 0 || x >= in_.width() ? -1 : line + x;
      }
    }
  }
  /// body(pixel) for the pixels of the input that this one of the output of a 1x1 convolution
  /// stands for: those from its own up to the next one's.
  template <class Body>
  void for_each_input(std::int64_t output, const Body& body) const {
    const std::int64_t first = input(output, 0);
    const std::int64_t left = first % in_.width(), top = first / in_.width() % in_.height();
    const std::int64_t rows = std::min(geometry_.stride_h, in_.height() - top);
    const std::int64_t columns = std::min(geometry_.stride_w, in_.width() - left);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) body(first + r * in_.width() + c);
    }
  }

 private:
  const ConvGeometry geometry_;
  const Shape in_, out_;
};

}  // namespace lockstep::matmul
