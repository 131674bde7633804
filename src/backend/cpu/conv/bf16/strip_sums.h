#pragma once
// The pass of a convolution that sums over an image, along strips of it.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/cpu/conv/bf16/products.h"
#include "backend/cpu/conv/bf16/strip.h"
#include "backend/cpu/conv/bf16/tiles.h"
#include "backend/cpu/conv/products/weight_gradient.h"
#include "backend/cpu/element.h"
#include "core/image_tree.h"

namespace lockstep::bf16 {

using matmul::SumTask;

// Pixels that are multiplied at once; the sums' order depends on it.
inline constexpr std::int64_t kSumPixels = 1024;

/// The gradient of the weights: sums over the outputs of an image of grad_y^T x for each position
/// of the kernel, along the same strip.
class StripSums {
 public:
  StripSums(const Strip& strip, std::int64_t slice)
      : strip_(strip),
        slice_(slice),
        rows_(std::clamp<std::int64_t>(kSumPixels / strip.pitch, 1, strip.out_height)),
        phases_(strip.stride),
        most_(strip.distance(strip.kernel_h - 1, strip.kernel_w - 1) / phases_),
        length_(up(strip.outputs(rows_) + most_, kDepth)) {
    for (std::int64_t at = 0; at < length_; at += kDepth) steps_.push_back(at);
  }

  std::int64_t floats() const {
    return floats_of(slice_ * row_numbers()) + phases_ * floats_of(slice_ * length_) +
           slice_ * positions() * slice_;
  }

  /// to = or += the sums of a part of an image.
  void operator()(const Products& products, const SumTask& task, std::int64_t parts,
                  const Tensor& x, const Tensor& grad_y, bool add, float* to, float* memory) const {
    const std::int64_t height = strip_.out_height;
    const std::int64_t begin = height * task.part / parts, end = height * (task.part + 1) / parts;
    auto* outputs = reinterpret_cast<Number*>(memory);
    auto* inputs = reinterpret_cast<Number*>(memory + floats_of(slice_ * row_numbers()));
    const Tensor left = grad_y.channel_range(task.out.begin, task.out.count);
    const Tensor right = x.channel_range(task.in.begin, task.in.count);
    // They are complete before they are added to another image's.
    const bool at_once = begin + rows_ >= end;
    float* sums = add && !at_once ? memory + floats() - slice_ * positions() * slice_ : to;
    for (std::int64_t first = begin; first < end; first += rows_) {
      const Rows rows{task.image, first, std::min(rows_, end - first)};
      transpose_outputs(left, rows, outputs);
      for (std::int64_t phase = 0; phase < phases_; ++phase) {
        pair_inputs(right, rows, phase, inputs + phase * slice_ * length_);
      }
      const How how = first > begin ? How::kGoOn : add && at_once ? How::kAdd : How::kWrite;
      multiply(products, task, rows, outputs, inputs, how, sums);
    }
    if (sums != to) add_values(sums, task.out.count * positions() * task.in.padded, to);
  }

 private:
  struct Rows {
    std::int64_t image, first, count;
  };

  /// What becomes of sums: they are a result's first, continue it, or are added to it when they are
  /// complete.
  enum class How : std::uint8_t { kWrite, kGoOn, kAdd };

  std::int64_t positions() const { return strip_.kernel_h * strip_.kernel_w; }

  /// Of a channel of grad_y: its outputs, with zeros before them that let every position of the
  /// kernel see them in its own place, and behind them.
  std::int64_t row_numbers() const { return apart(up(length_ + before(), kDepth)); }
  std::int64_t before() const { return up(most_, kDepth); }

  void transpose_outputs(const Tensor& from, const Rows& rows, Number* to) const {
    const std::int64_t channels = from.shape.channels(), outputs = strip_.outputs(rows.count);
    const std::int64_t stride = row_numbers();
    const std::int64_t end = before() + length_;
    for (std::int64_t c = 0; c < up(channels, kTile); ++c) {
      std::fill_n(to + c * stride, before(), Number{0});
      std::fill(to + c * stride + before() + up(outputs, kDepth), to + c * stride + end, Number{0});
    }
    for (std::int64_t output = 0; output < outputs; output += kDepth) {
      const Number* pixels[kDepth];
      for (std::int64_t i = 0; i < kDepth; ++i) {
        const std::int64_t at = output + i, x = at % strip_.pitch;
        const std::int64_t y = rows.first + at / strip_.pitch;
        pixels[i] = at < outputs && x < strip_.out_width
                        ? row_of<const Number>(
                              from, (rows.image * strip_.out_height + y) * strip_.out_width + x)
                        : nullptr;
      }
      for (std::int64_t c = 0; c < channels; c += kTile) {
        Words block[kTile];
        for (std::int64_t i = 0; i < kTile; ++i) {
          block[i] = pairs(load_pixel(pixels[2 * i], c, channels),
                           load_pixel(pixels[2 * i + 1], c, channels));
        }
        transpose(block);
        for (std::int64_t i = 0; i < kTile; ++i) {
          std::memcpy(to + (c + i) * stride + before() + output, &block[i], sizeof block[i]);
        }
      }
    }
  }

  /// [panel of kGroup channels, step, column tile, kDepth / 2, kTile, 2], of every phases_-th pixel
  /// of the strip from the `phase`-th on.
  void pair_inputs(const Tensor& from, const Rows& rows, std::int64_t phase, Number* to) const {
    const std::int64_t channels = from.shape.channels();
    const std::int64_t read = strip_.rows_read(rows.count);
    const std::int64_t length = up(strip_.outputs(rows.count) + most_, kDepth);
    std::int64_t row = 0, column = phase;
    const auto next = [&]() -> const Number* {
      while (column >= strip_.pitch) column -= strip_.pitch, ++row;
      const std::int64_t y = row < read ? strip_.image_row(strip_.stride * rows.first + row) : -1;
      const std::int64_t x = strip_.image_column(column);
      column += phases_;
      if (y < 0 || x < 0) return nullptr;
      return row_of<const Number>(from, (rows.image * strip_.in_height + y) * strip_.in_width + x);
    };
    for (std::int64_t step = 0; step < length; step += kDepth) {
      const Number* pixels[kDepth];
      for (const Number*& pixel : pixels) pixel = next();
      for (std::int64_t c = 0; c < channels; c += kTile) {
        const std::int64_t panel = c / kGroup * kGroup;
        const std::int64_t tiles = panel + kTile < channels ? 2 : 1;
        Number* tile =
            to + panel * length_ + (step / kDepth * tiles + (c - panel) / kTile) * kTileNumbers;
        for (std::int64_t i = 0; i < kDepth; i += 2, tile += 2 * kTile) {
          const Words pair =
              pairs(load_pixel(pixels[i], c, channels), load_pixel(pixels[i + 1], c, channels));
          std::memcpy(tile, &pair, sizeof pair);
        }
      }
    }
  }

  void multiply(const Products& products, const SumTask& task, const Rows& rows,
                const Number* outputs, const Number* inputs, How how, float* to) const {
    const std::int64_t taps = positions();
    const std::int64_t stride = taps * task.in.padded, count = strip_.outputs(rows.count);
    alignas(64) float alone[kGroup * kGroup];
    Block product;
    product.a_stride = row_numbers();
    product.steps = steps_.data();
    product.add = how == How::kGoOn;
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const std::int64_t distance = strip_.distance(tap / strip_.kernel_w, tap % strip_.kernel_w);
      const std::int64_t phase = distance % phases_, shift = distance / phases_;
      const std::int64_t first = shift / kDepth, end = (shift + count + kDepth - 1) / kDepth;
      product.step_count = end - first;
      for (std::int64_t n = 0; n < task.in.padded; n += kGroup) {
        product.column_tiles = n + kTile < task.in.padded ? 2 : 1;
        product.b =
            inputs + (phase * slice_ + n) * length_ + first * product.column_tiles * kTileNumbers;
        for (std::int64_t m = 0; m < task.out.padded; m += kGroup) {
          product.row_tiles = m + kTile < task.out.padded ? 2 : 1;
          product.a = outputs + m * product.a_stride + before() + first * kDepth - shift;
          float* result = to + m * stride + tap * task.in.padded + n;
          product.c = how == How::kAdd ? alone : result;
          product.c_stride = how == How::kAdd ? kGroup : stride;
          products.multiply(product);
          for (std::int64_t r = 0; how == How::kAdd && r < product.row_tiles * kTile; ++r) {
            add_values(alone + r * kGroup, product.column_tiles * kTile, result + r * stride);
          }
        }
      }
    }
  }

  const Strip strip_;
  const std::int64_t slice_;   // channels
  const std::int64_t rows_;    // of outputs, that are multiplied at once
  const std::int64_t phases_;  // an output's neighbours lie at every so many pixels of the strip
  const std::int64_t most_;    // the farthest of them, in outputs
  const std::int64_t length_;  // outputs and inputs of a phase that are multiplied at once
  std::vector<std::int64_t> steps_;
};

}  // namespace lockstep::bf16
