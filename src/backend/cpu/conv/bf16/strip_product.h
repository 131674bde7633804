#pragma once
// The two passes of a convolution that write an image, along strips of it.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "backend/bfloat16.h"
#include "backend/cpu/conv/bf16/products.h"
#include "backend/cpu/conv/bf16/strip.h"
#include "backend/cpu/conv/bf16/tiles.h"
#include "backend/cpu/element.h"
#include "lockstep/core/tensor.h"

namespace lockstep::bf16 {

// Of a strip: what is read of it at a time, some of its channels, stays in a second-level cache.
inline constexpr std::int64_t kStripBytes = 1536 * 1024;
// Steps of a panel of weights, which is 256 KiB, that all outputs of a strip are multiplied by
// before the next ones.
inline constexpr std::int64_t kStepsAtOnce = 128;

/// Weights as a product reads them: element (column, channel, y, x) is at column * column_stride +
/// channel * channel_stride + position, positions counted from the last one where `turned`.
struct Weights {
  const float* data;
  std::int64_t column_stride, channel_stride;
  bool turned;
};

/// One of the two passes that write an image: its strip, and the depth of its products in steps.
class StripProduct {
 public:
  /// For at most `images` at a time, computed by `threads`.
  StripProduct(const Strip& strip, std::int64_t channels, std::int64_t columns, std::int64_t images,
               int threads)
      : strip_(strip),
        channels_(channels),
        columns_(columns),
        merged_(channels % kDepth != 0 && strip.dilation_w == 1 && strip.kernel_w > 1),
        pixel_(merged_ ? channels : apart(up(channels, kDepth))) {
    // Positions in a row of the kernel are one run of numbers where pixels lie next to one another.
    const std::int64_t runs = merged_ ? 1 : strip.kernel_w;
    run_ = merged_ ? strip.kernel_w * channels : channels;
    // Channels of all positions while they are in a cache.
    for (std::int64_t at = 0; at < run_; at += kDepth) {
      for (std::int64_t y = 0; y < strip.kernel_h; ++y) {
        for (std::int64_t x = 0; x < runs; ++x) {
          steps_.push_back(strip.distance(y, x) * pixel_ + at);
          origins_.push_back({y, x, at});
        }
      }
    }
    rows_ = strip.out_height;
    while (rows_ > 1 && strip_numbers(rows_) * std::int64_t{sizeof(Number)} > kStripBytes) {
      rows_ = (rows_ + 1) / 2;
    }
    while (rows_ > 4 && tasks(images) < 2 * threads) rows_ = (rows_ + 1) / 2;
  }

  std::int64_t packed_numbers() const { return up(columns_, kTile) * kDepth * step_count(); }
  std::int64_t task_floats() const {
    return floats_of(strip_numbers(rows_)) + up(strip_.outputs(rows_), kGroup) * kGroup;
  }
  std::int64_t tasks(std::int64_t images) const { return images * parts(); }

  /// The panel of columns from `first` on.
  void pack(const Weights& weights, std::int64_t first, Number* packed) const {
    const std::int64_t tiles = column_tiles(first);
    Number* to = packed + first * kDepth * step_count();
    for (const Origin& origin : origins_) {
      for (std::int64_t tile = 0; tile < tiles; ++tile, to += kTileNumbers) {
        pack_tile(weights, origin, first + tile * kTile, to);
      }
    }
  }

  /// The rows of outputs that are this task's. `done`: told of them, counted over all images; or
  /// null.
  void run(const Products& products, std::int64_t task, const Tensor& from, const Number* packed,
           const float* bias, const Tensor& to,
           const std::function<void(std::int64_t begin, std::int64_t end)>& done,
           float* memory) const {
    const std::int64_t image = task / parts(), first = task % parts() * rows_;
    const std::int64_t rows = std::min(rows_, strip_.out_height - first);
    auto* strip = reinterpret_cast<Number*>(memory);
    float* sums = memory + floats_of(strip_numbers(rows_));
    fill(from, image, first, rows, strip);
    if (strip_.put > 1) clear(to, image, first, rows);
    for (std::int64_t column = 0; column < columns_; column += kGroup) {
      multiply_panel(products, strip, packed, column, {image, first, rows}, bias, to, sums);
    }
    if (done) {
      const std::int64_t row = (image * strip_.out_height + first) * strip_.out_width;
      done(row, row + rows * strip_.out_width);
    }
  }

 private:
  /// Where a step begins: a position of the kernel, and how far in the run of numbers from there.
  struct Origin {
    std::int64_t y, x, at;
  };
  struct Rows {
    std::int64_t image, first, count;
  };

  std::int64_t step_count() const { return static_cast<std::int64_t>(steps_.size()); }
  std::int64_t parts() const { return (strip_.out_height + rows_ - 1) / rows_; }
  std::int64_t column_tiles(std::int64_t first) const {
    return std::min<std::int64_t>(2, (columns_ - first + kTile - 1) / kTile);
  }
  /// With what the last outputs read behind the strip.
  std::int64_t strip_numbers(std::int64_t rows) const {
    return strip_.rows_read(rows) * strip_.pitch * pixel_ + tail_numbers();
  }
  std::int64_t tail_numbers() const { return strip_.stride * kGroup * pixel_ + up(run_, kDepth); }

  void pack_tile(const Weights& weights, const Origin& origin, std::int64_t first,
                 Number* to) const {
    const std::int64_t columns = std::min(kTile, columns_ - first);
    const std::int64_t depth = std::min(kDepth, run_ - origin.at);
    const std::int64_t column_stride = weights.column_stride;
    const std::int64_t channel_stride = weights.channel_stride;
    const float* from = weights.data + first * column_stride;
    if (!merged_) from += origin.at * channel_stride + position(weights, origin.y, origin.x);
    Words rows[kTile] = {};
    if (!merged_ && column_stride < channel_stride) {
      for (std::int64_t d = 0; d < depth; d += 2, from += 2 * channel_stride) {
        const Vector low = load_apart(from, column_stride, columns);
        const bool last = d + 1 == depth;
        const Vector high =
            last ? Vector{} : load_apart(from + channel_stride, column_stride, columns);
        rows[d / 2] = pairs(rounded(low), rounded(high));
      }
      std::memcpy(to, rows, sizeof rows);
      return;
    }
    for (std::int64_t column = 0; column < columns; ++column, from += column_stride) {
      alignas(64) float values[kDepth] = {};
      if (merged_) {
        for (std::int64_t d = 0; d < depth; ++d) {
          const std::int64_t x = (origin.at + d) / channels_, channel = (origin.at + d) % channels_;
          values[d] = from[channel * channel_stride + position(weights, origin.y, x)];
        }
      } else {
        simd::store<kTile>(values, load_apart(from, channel_stride, depth));
        if (depth > kTile) {
          simd::store<kTile>(values + kTile, load_apart(from + kTile * channel_stride,
                                                        channel_stride, depth - kTile));
        }
      }
      const Halves numbers[2] = {rounded(simd::load<kTile>(values)),
                                 rounded(simd::load<kTile>(values + kTile))};
      std::memcpy(&rows[column], numbers, sizeof numbers);
    }
    transpose(rows);
    std::memcpy(to, rows, sizeof rows);
  }

  std::int64_t position(const Weights& weights, std::int64_t y, std::int64_t x) const {
    const std::int64_t at = y * strip_.kernel_w + x;
    return weights.turned ? strip_.kernel_h * strip_.kernel_w - 1 - at : at;
  }

  /// The strip that `rows` rows of outputs from `first` on read.
  void fill(const Tensor& from, std::int64_t image, std::int64_t first, std::int64_t rows,
            Number* strip) const {
    const std::int64_t read = strip_.rows_read(rows), row_numbers = strip_.pitch * pixel_;
    const bool dense = from.row_stride == pixel_ && channels_ == pixel_ && strip_.take == 1;
    std::fill_n(strip + read * row_numbers, tail_numbers(), Number{0});
    for (std::int64_t r = 0; r < read; ++r) {
      Number* to = strip + r * row_numbers;
      const std::int64_t y = strip_.image_row(strip_.stride * first + r);
      if (y < 0) {
        std::fill_n(to, row_numbers, Number{0});
        continue;
      }
      const Number* line =
          row_of<const Number>(from, (image * strip_.in_height + y) * strip_.in_width);
      if (dense && strip_.pitch == strip_.in_width) {
        std::copy_n(line, row_numbers, to);
        continue;
      }
      for (std::int64_t c = 0; c < strip_.pitch; ++c, to += pixel_) {
        const std::int64_t x = strip_.image_column(c);
        if (x < 0) {
          std::fill_n(to, pixel_, Number{0});
          continue;
        }
        std::copy_n(line + x * from.row_stride, channels_, to);
        std::fill(to + channels_, to + pixel_, Number{0});
      }
    }
  }

  /// The rows of a result that are written in part.
  void clear(const Tensor& to, std::int64_t image, std::int64_t first, std::int64_t rows) const {
    const std::int64_t height = to.shape.height(), width = to.shape.width();
    const std::int64_t begin = first * strip_.put;
    const std::int64_t end =
        first + rows == strip_.out_height ? height : (first + rows) * strip_.put;
    for (std::int64_t r = (image * height + begin) * width; r < (image * height + end) * width;
         ++r) {
      std::fill_n(row_of<Number>(to, r), columns_, Number{0});
    }
  }

  void multiply_panel(const Products& products, const Number* strip, const Number* packed,
                      std::int64_t column, const Rows& rows, const float* bias, const Tensor& to,
                      float* sums) const {
    const std::int64_t outputs = strip_.outputs(rows.count), pitch = strip_.pitch;
    const std::int64_t count = std::min(kGroup, columns_ - column);
    const auto tiles = static_cast<int>(column_tiles(column));
    const std::int64_t blocks = (step_count() + kStepsAtOnce - 1) / kStepsAtOnce;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t begin = step_count() * block / blocks;
      const std::int64_t end = step_count() * (block + 1) / blocks;
      Block product;
      product.a_stride = strip_.stride * pixel_;
      product.steps = steps_.data() + begin;
      product.step_count = end - begin;
      product.b = packed + column * kDepth * step_count() + begin * tiles * kTileNumbers;
      product.column_tiles = tiles;
      product.add = block > 0;
      for (std::int64_t output = 0; output < outputs; output += kGroup) {
        product.a = strip + output * product.a_stride;
        product.row_tiles = output + kTile < outputs ? 2 : 1;
        product.c = sums + output * kGroup;
        product.c_stride = kGroup;
        products.multiply(product);
        if (block + 1 < blocks) continue;
        for (std::int64_t o = output; o < std::min(output + kGroup, outputs); ++o) {
          if (o % pitch >= strip_.out_width) continue;
          write(sums + o * kGroup, count, bias == nullptr ? nullptr : bias + column,
                row_of<BFloat16>(to, place(rows, o, to)) + column);
        }
      }
    }
  }

  /// The row of the result that an output is.
  std::int64_t place(const Rows& rows, std::int64_t output, const Tensor& to) const {
    const std::int64_t y = (rows.first + output / strip_.pitch) * strip_.put;
    const std::int64_t x = output % strip_.pitch * strip_.put;
    return (rows.image * to.shape.height() + y) * to.shape.width() + x;
  }

  static void write(const float* sums, std::int64_t count, const float* bias, BFloat16* to) {
    if (bias == nullptr) {
#pragma omp simd
      for (std::int64_t c = 0; c < count; ++c) to[c] = sums[c];
      return;
    }
#pragma omp simd
    for (std::int64_t c = 0; c < count; ++c) to[c] = sums[c] + bias[c];
  }

  const Strip strip_;
  const std::int64_t channels_, columns_;
  const bool merged_;         // whether the positions in a row of the kernel are one run of numbers
  const std::int64_t pixel_;  // numbers of a pixel of the strip
  std::int64_t run_;          // numbers of a run of the depth
  std::int64_t rows_;         // of outputs, of a task
  std::vector<std::int64_t> steps_;  // where each begins, from an output's first pixel
  std::vector<Origin> origins_;
};

}  // namespace lockstep::bf16
