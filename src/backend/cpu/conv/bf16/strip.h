#pragma once
// How the pixels of an image lie while bf16 products read them: a strip, rows of `pitch` pixels one
// after the other, padding included. An output's neighbours lie at the same distances from it
// everywhere, so that sixteen outputs one after the other are sixteen rows of a matrix for each
// position of the kernel. Outputs are counted along the strip, too: those beyond the right edge of
// the image are computed for nothing and dropped.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/backend/convolutions.h"
#include "lockstep/core/tensor.h"

namespace lockstep::bf16 {

/// A convolution along a strip. Of the gradient of an input, the image is that of the output's
/// gradient, with zeros between its pixels where the convolution has a stride.
struct Strip {
  std::int64_t in_height = 0, in_width = 0;    // of the image that is read
  std::int64_t out_height = 0, out_width = 0;  // of the result
  std::int64_t take = 1;                       // every so many pixels of the image; or
  std::int64_t spread = 1;                     // a pixel of the image, and so many - 1 zeros
  std::int64_t put = 1;                        // the result is every so many pixels of its tensor
  std::int64_t stride = 1;                     // of the result along the strip
  std::int64_t kernel_h = 1, kernel_w = 1, dilation_h = 1, dilation_w = 1;
  std::int64_t padding_h = 0, padding_w = 0;
  std::int64_t pitch = 0;

  /// y = x * weight.
  static Strip forward(const ConvGeometry& g, const Shape& input) {
    const Shape output = g.output_shape(input);
    Strip strip;
    strip.in_height = input.height(), strip.in_width = input.width();
    strip.out_height = output.height(), strip.out_width = output.width();
    strip.set_kernel(g, g.padding_h, g.padding_w);
    // A 1x1 kernel reads the pixels of its outputs alone.
    if (single(g)) {
      strip.take = g.stride_h;
    } else {
      strip.stride = g.stride_h;
    }
    return strip.with_pitch();
  }
  /// grad_x = grad_y * the kernel turned by 180 degrees.
  static Strip backward_data(const ConvGeometry& g, const Shape& input) {
    const Shape output = g.output_shape(input);
    Strip strip;
    strip.in_height = output.height(), strip.in_width = output.width();
    strip.set_kernel(g, g.dilation_h * (g.kernel_h - 1) - g.padding_h,
                     g.dilation_w * (g.kernel_w - 1) - g.padding_w);
    if (single(g)) {
      strip.put = g.stride_h;
      strip.out_height = output.height(), strip.out_width = output.width();
    } else {
      strip.spread = g.stride_h;
      strip.out_height = input.height(), strip.out_width = input.width();
    }
    return strip.with_pitch();
  }

  /// Rows of the strip that `rows` rows of outputs read.
  std::int64_t rows_read(std::int64_t rows) const {
    return stride * (rows - 1) + dilation_h * (kernel_h - 1) + 1;
  }
  /// Outputs along the strip, from the first of a row to the last of the `rows`-th.
  std::int64_t outputs(std::int64_t rows) const { return (rows - 1) * pitch + out_width; }
  /// Pixels between an output's first one and the one under a position of the kernel.
  std::int64_t distance(std::int64_t y, std::int64_t x) const {
    return y * dilation_h * pitch + x * dilation_w;
  }
  /// The row of the image at a row of the strip, which is counted from the one that row 0 of the
  /// outputs begins with; -1 for zeros. Columns likewise.
  std::int64_t image_row(std::int64_t row) const { return place(row - padding_h, in_height); }
  std::int64_t image_column(std::int64_t column) const {
    return place(column - padding_w, in_width);
  }

 private:
  static bool single(const ConvGeometry& g) { return g.kernel_h == 1 && g.kernel_w == 1; }

  void set_kernel(const ConvGeometry& g, std::int64_t pad_h, std::int64_t pad_w) {
    kernel_h = g.kernel_h, kernel_w = g.kernel_w;
    dilation_h = g.dilation_h, dilation_w = g.dilation_w;
    padding_h = pad_h, padding_w = pad_w;
  }
  Strip with_pitch() const {
    Strip strip = *this;
    strip.pitch = std::max(out_width, stride * (out_width - 1) + dilation_w * (kernel_w - 1) + 1);
    return strip;
  }
  std::int64_t place(std::int64_t at, std::int64_t extent) const {
    if (at < 0 || at % spread != 0) return -1;
    const std::int64_t pixel = at / spread * take;
    return pixel < extent ? pixel : -1;
  }
};

}  // namespace lockstep::bf16
