#include "backend/cpu/bf16/conv.h"

#ifdef __AVX512F__
#include <immintrin.h>
#endif
#include <omp.h>

#include <algorithm>
#include <vector>

#include "backend/cpu/bf16/products.h"
#include "backend/cpu/bf16/strip.h"
#include "backend/cpu/matmul/slices.h"
#include "backend/cpu/matmul/vec.h"
#include "backend/cpu/matmul/weight_gradient.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using namespace bf16;
using matmul::load;
using matmul::load_partial;
using matmul::Slice;
using matmul::Slices;
using matmul::SumTask;
using Vector = matmul::Vec<kTile>;

constexpr std::int64_t kGroup = 2 * kTile;  // rows and columns that are multiplied at once
// Of a strip: what is read of it at a time, some of its channels, stays in a second-level cache.
constexpr std::int64_t kStripBytes = 1536 * 1024;
// Steps of a panel of weights, which is 256 KiB, that all outputs of a strip are multiplied by
// before the next ones.
constexpr std::int64_t kStepsAtOnce = 128;
// Of the sums of the weights' gradient: channels of a sum, and pixels that are multiplied at once,
// on which the sums' order depends.
constexpr std::int64_t kSliceChannels = 512, kSliceChannelsOfTaps = 192;
constexpr std::int64_t kSumPixels = 1024;
constexpr std::int64_t kMaxParts = 8, kPixelsPerPart = 2048;
constexpr std::int64_t kPixelsAhead = 8;

std::int64_t up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// A distance of rows of so many numbers (a multiple of kDepth) such that sixteen of them fit a
/// first-level cache at once: at that of a large power of two all would meet in few of its lines.
std::int64_t apart(std::int64_t numbers) {
  return numbers % (32 * kDepth) == 0 ? numbers + kDepth : numbers;
}

/// Numbers in the place of so many floats.
std::int64_t floats_of(std::int64_t numbers) { return up(numbers, 2 * kTile) / 2; }

Vector load_channels(const float* from, std::int64_t count) {
  return count >= kTile ? load<kTile>(from) : load_partial<kTile>(from, count);
}

/// `count` values that lie `stride` apart, at most kTile of them.
Vector load_apart(const float* from, std::int64_t stride, std::int64_t count) {
  if (stride == 1) return load_channels(from, count);
#ifdef __AVX512F__
  if (count >= kTile) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(stride)));
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xFFFF, at, from, sizeof(float));
  }
#endif
  alignas(64) float values[kTile] = {};
  for (std::int64_t i = 0; i < std::min(count, kTile); ++i) values[i] = from[i * stride];
  return load<kTile>(values);
}

/// Weights as a product reads them: element (column, channel, y, x) is at column * column_stride +
/// channel * channel_stride + position, positions counted from the last one where `turned`.
struct Weights {
  const float* data;
  std::int64_t column_stride, channel_stride;
  bool turned;
};

/// One of the two passes that write an image: its strip, and the depth of its products in steps.
template <class Rounding>
class StripProduct {
 public:
  /// Of at most `images`, by `threads`.
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

  /// The rows of outputs that are this task's.
  void run(const Products& products, std::int64_t task, const Tensor& from, const Number* packed,
           const float* bias, const Tensor& to, const RowsDone& done, float* memory) const {
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
        rows[d / 2] = Rounding::pairs(
            low, last ? Vector{} : load_apart(from + channel_stride, column_stride, columns));
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
        matmul::store<kTile>(values, load_apart(from, channel_stride, depth));
        if (depth > kTile) {
          matmul::store<kTile>(values + kTile, load_apart(from + kTile * channel_stride,
                                                          channel_stride, depth - kTile));
        }
      }
      Number numbers[kDepth];
      convert<Rounding>(values, kDepth, numbers);
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
      const float* line =
          from.floats() + (image * strip_.in_height + y) * strip_.in_width * from.row_stride;
      if (dense && strip_.pitch == strip_.in_width) {
        convert<Rounding>(line, row_numbers, to);
        continue;
      }
      for (std::int64_t c = 0; c < strip_.pitch; ++c, to += pixel_) {
        const std::int64_t x = strip_.image_column(c);
        if (x < 0) {
          std::fill_n(to, pixel_, Number{0});
          continue;
        }
        convert<Rounding>(line + x * from.row_stride, channels_, to);
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
      std::fill_n(to.floats() + r * to.row_stride, columns_, 0.0F);
    }
  }

  void multiply_panel(const Products& products, const Number* strip, const Number* packed,
                      std::int64_t column, const Rows& rows, const float* bias, const Tensor& to,
                      float* sums) const {
    const std::int64_t outputs = strip_.outputs(rows.count), pitch = strip_.pitch;
    const std::int64_t count = std::min(kGroup, columns_ - column);
    const auto tiles = static_cast<int>(column_tiles(column));
    const bool whole = count == tiles * kTile && bias == nullptr;
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
        for (std::int64_t tile = 0; tile < product.row_tiles; ++tile) {
          const std::int64_t first = output + tile * kTile;
          // Outputs that follow one another in the result, too, are written there at once.
          const bool follow = (pitch == strip_.out_width && strip_.put == 1) ||
                              first % pitch + kTile <= strip_.out_width;
          const bool direct = whole && follow && first + kTile <= outputs;
          product.c[tile] = direct ? place(rows, first, to) + column : sums + first * kGroup;
          product.c_stride[tile] = direct ? strip_.put * to.row_stride : kGroup;
        }
        products.multiply(product);
        if (block + 1 < blocks) continue;
        for (std::int64_t tile = 0; tile < product.row_tiles; ++tile) {
          const std::int64_t first = output + tile * kTile;
          if (product.c[tile] != sums + first * kGroup) continue;
          const std::int64_t last = std::min(first + kTile, outputs);
          for (std::int64_t o = first; o < last; ++o) {
            if (o % pitch >= strip_.out_width) continue;
            write(sums + o * kGroup, count, bias == nullptr ? nullptr : bias + column,
                  place(rows, o, to) + column);
          }
        }
      }
    }
  }

  float* place(const Rows& rows, std::int64_t output, const Tensor& to) const {
    const std::int64_t y = (rows.first + output / strip_.pitch) * strip_.put;
    const std::int64_t x = output % strip_.pitch * strip_.put;
    return to.floats() +
           ((rows.image * to.shape.height() + y) * to.shape.width() + x) * to.row_stride;
  }

  static void write(const float* sums, std::int64_t count, const float* bias, float* to) {
    if (bias == nullptr) {
      std::memcpy(to, sums, static_cast<std::size_t>(count) * sizeof(float));
      return;
    }
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

/// The gradient of the weights: sums over the outputs of an image of grad_y^T x for each position
/// of the kernel, along the same strip.
template <class Rounding>
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
      const float* pixels[kDepth];
      for (std::int64_t i = 0; i < kDepth; ++i) {
        const std::int64_t at = output + i, x = at % strip_.pitch;
        const std::int64_t y = rows.first + at / strip_.pitch;
        pixels[i] =
            at < outputs && x < strip_.out_width
                ? from.floats() + ((rows.image * strip_.out_height + y) * strip_.out_width + x) *
                                      from.row_stride
                : nullptr;
      }
      for (std::int64_t c = 0; c < channels; c += kTile) {
        const std::int64_t count = channels - c;
        Words block[kTile];
        for (std::int64_t i = 0; i < kTile; ++i) {
          const float *low = pixels[2 * i], *high = pixels[2 * i + 1];
          block[i] = Rounding::pairs(low == nullptr ? Vector{} : load_channels(low + c, count),
                                     high == nullptr ? Vector{} : load_channels(high + c, count));
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
    const auto next = [&]() -> const float* {
      while (column >= strip_.pitch) column -= strip_.pitch, ++row;
      const std::int64_t y = row < read ? strip_.image_row(strip_.stride * rows.first + row) : -1;
      const std::int64_t x = strip_.image_column(column);
      column += phases_;
      if (y < 0 || x < 0) return nullptr;
      return from.floats() +
             ((rows.image * strip_.in_height + y) * strip_.in_width + x) * from.row_stride;
    };
    for (std::int64_t step = 0; step < length; step += kDepth) {
      const float* pixels[kDepth];
      for (const float*& pixel : pixels) pixel = next();
      for (std::int64_t c = 0; c < channels; c += kTile) {
        const std::int64_t panel = c / kGroup * kGroup, count = channels - c;
        const std::int64_t tiles = panel + kTile < channels ? 2 : 1;
        Number* tile =
            to + panel * length_ + (step / kDepth * tiles + (c - panel) / kTile) * kTileNumbers;
        for (std::int64_t i = 0; i < kDepth; i += 2, tile += 2 * kTile) {
          const float *low = pixels[i], *high = pixels[i + 1];
          const Words pair =
              Rounding::pairs(low == nullptr ? Vector{} : load_channels(low + c, count),
                              high == nullptr ? Vector{} : load_channels(high + c, count));
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
          float* sums = how == How::kAdd ? alone : result;
          const std::int64_t sums_stride = how == How::kAdd ? kGroup : stride;
          for (int tile = 0; tile < product.row_tiles; ++tile) {
            product.c[tile] = sums + tile * kTile * sums_stride;
            product.c_stride[tile] = sums_stride;
          }
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

/// `Rounding`: how this processor rounds to bf16 (numbers.h).
template <class Rounding>
class Bf16Convolution final : public Convolution {
 public:
  Bf16Convolution(const ConvGeometry& geometry, const Shape& input, int threads,
                  Instructions instructions)
      : geometry_(geometry),
        threads_(threads),
        instructions_(instructions),
        forward_(Strip::forward(geometry, input), geometry.in_channels, geometry.out_channels,
                 input.batch(), threads),
        data_(Strip::backward_data(geometry, input), geometry.out_channels, geometry.in_channels,
              input.batch(), threads),
        slice_(geometry.kernel_h * geometry.kernel_w == 1 ? kSliceChannels : kSliceChannelsOfTaps),
        sums_(Strip::forward(geometry, input), widest_slice()),
        gradient_(geometry, out_slices(), in_slices(),
                  std::clamp<std::int64_t>(
                      geometry.output_shape(input).rows_per_sample() / kPixelsPerPart, 1,
                      std::min(kMaxParts, geometry.output_shape(input).height())),
                  input.batch(), threads) {}

  void prepare(ConvPass) override {}
  std::size_t scratch_bytes(ConvPass pass, bool) const override {
    const std::int64_t floats = pass == ConvPass::kBackwardWeights
                                    ? gradient_.scratch_floats(sums_.floats())
                                    : scratch_floats(product_of(pass));
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  void forward(const Tensor& x, const float* weight, const float* bias, const Tensor& y,
               void* scratch, const RowsDone& done) override {
    const std::int64_t taps = geometry_.kernel_h * geometry_.kernel_w;
    multiply(forward_, x, {weight, geometry_.in_channels * taps, taps, false}, bias, y, done,
             static_cast<float*>(scratch));
  }

  void backward_data(const Tensor& grad_y, const float* weight, const Tensor& grad_x,
                     void* scratch) override {
    const std::int64_t taps = geometry_.kernel_h * geometry_.kernel_w;
    multiply(data_, grad_y, {weight, taps, geometry_.in_channels * taps, true}, nullptr, grad_x,
             nullptr, static_cast<float*>(scratch));
  }

  void backward_weights(const Tensor& x, const Tensor& grad_y, float* grad_weight,
                        void* scratch) override {
    if (x.shape.batch() == 0) return;
    const auto sum = [&](const SumTask& task, bool add, float* to, float* memory) {
      const Products products(instructions_);
      sums_(products, task, gradient_.parts(), x, grad_y, add, to, memory);
    };
    gradient_.add(x.shape.batch(), sum, sums_.floats(), grad_weight, static_cast<float*>(scratch));
  }

 private:
  Slices out_slices() const { return {geometry_.out_channels, slice_}; }
  Slices in_slices() const { return {geometry_.in_channels, slice_}; }
  std::int64_t widest_slice() const {
    return up(std::max(out_slices().size(), in_slices().size()), kGroup);
  }
  const StripProduct<Rounding>& product_of(ConvPass pass) const {
    return pass == ConvPass::kForward ? forward_ : data_;
  }
  std::int64_t scratch_floats(const StripProduct<Rounding>& product) const {
    return floats_of(product.packed_numbers()) + threads_ * product.task_floats();
  }

  void multiply(const StripProduct<Rounding>& product, const Tensor& from, const Weights& weights,
                const float* bias, const Tensor& to, const RowsDone& done, float* scratch) const {
    auto* packed = reinterpret_cast<Number*>(scratch);
    float* memory = scratch + floats_of(product.packed_numbers());
    const std::int64_t columns = to.shape.channels(), tasks = product.tasks(to.shape.batch());
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
    {
#pragma omp for schedule(static)
      for (std::int64_t first = 0; first < columns; first += kGroup) {
        product.pack(weights, first, packed);
      }
      const Products products(instructions_);
#pragma omp for schedule(dynamic)
      for (std::int64_t task = 0; task < tasks; ++task) {
        product.run(products, task, from, packed, bias, to, done,
                    memory + omp_get_thread_num() * product.task_floats());
      }
    }
  }

  const ConvGeometry geometry_;
  const int threads_;
  const Instructions instructions_;
  const StripProduct<Rounding> forward_, data_;
  const std::int64_t slice_;
  const StripSums<Rounding> sums_;
  const matmul::WeightGradient gradient_;
};

}  // namespace

bool bf16_supports(const ConvGeometry& g) {
  return g.groups == 1 && g.stride_h == g.stride_w &&
         g.padding_h <= g.dilation_h * (g.kernel_h - 1) &&
         g.padding_w <= g.dilation_w * (g.kernel_w - 1);
}

std::unique_ptr<Convolution> make_bf16_convolution(const ConvGeometry& geometry, const Shape& input,
                                                   int threads, Instructions instructions) {
  LOCKSTEP_CHECK(bf16_supports(geometry), "no products of bf16 numbers for a ",
                 to_string(geometry));
  LOCKSTEP_CHECK(usable(instructions), "this processor has no such products of bf16 numbers");
#ifdef __AVX512F__
  if (instructions != Instructions::kAny) {
    return std::make_unique<Bf16Convolution<Avx512Bf16Rounding>>(geometry, input, threads,
                                                                 instructions);
  }
#endif
  return std::make_unique<Bf16Convolution<AnyRounding>>(geometry, input, threads, instructions);
}

}  // namespace lockstep
