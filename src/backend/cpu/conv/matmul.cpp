#include "backend/cpu/conv/matmul.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/conv/products/pixels.h"
#include "backend/cpu/conv/products/products.h"
#include "backend/cpu/conv/products/slices.h"
#include "backend/cpu/conv/products/weight_gradient.h"
#include "backend/cpu/simd.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using namespace matmul;
using namespace simd;

// Rows at a distance of this many floats share a few lines of a first-level cache: they are copied
// closer together.
constexpr std::int64_t kSetStride = 1024;
// Rows of a block: with a few hundred channels they stay in a second-level cache.
constexpr std::int64_t kBlockGroups = 8;
// Channels of one sum of the weights' gradient, which is 64 KiB, with the nine positions of a 3x3
// kernel 144 KiB. Processors with wide vectors have second-level caches of 1 MiB and more: 256 and
// 576 KiB, so that pixels are packed half as often.
template <std::int64_t kLanes>
constexpr std::int64_t kSliceChannels = kLanes == 16 ? 256 : 128;
template <std::int64_t kLanes>
constexpr std::int64_t kSliceChannelsOfTaps = kLanes == 16 ? 128 : 64;
// Pixels whose products are summed by themselves; the sums' order depends on it.
constexpr std::int64_t kSumPixels = 256;
// Pixels lie far apart where they have many channels, of which a slice is read: what fetches data
// ahead by itself does not guess them.
constexpr std::int64_t kPixelsAhead = 12;
// So do the weights of output channels, of which a few are read at once.
constexpr std::int64_t kFloatsAhead = 128;
// Positions of a kernel, each a product of its own whose result is added to the others'.
constexpr std::int64_t kMostTaps = 9;
// Parts of an image's gradient, so that threads have work when images and slices are few.
constexpr std::int64_t kMaxParts = 8, kPixelsPerPart = 2048;
// Pixels from a packed panel to the next one: panels that lie a multiple of 4 KiB apart meet in
// few lines of a first-level cache.
constexpr std::int64_t panel_pixels(std::int64_t pixels) {
  return pixels % 16 == 0 ? pixels + 1 : pixels;
}

void copy_channels(const float* from, std::int64_t count, std::int64_t padded_count, float* to) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  std::fill(to + count, to + padded_count, 0.0F);
}

/// With vectors of kLanes floats.
template <std::int64_t kLanes>
class MatmulConvolution final : public Convolution {
 public:
  MatmulConvolution(const ConvGeometry& geometry, const Shape& input, int threads)
      : geometry_(geometry),
        threads_(threads),
        in_(padded(geometry.in_channels)),
        out_(padded(geometry.out_channels)),
        image_pixels_(geometry.output_shape(input).rows_per_sample()),
        taps_(geometry.kernel_h * geometry.kernel_w),
        pixels_(geometry, input, geometry.output_shape(input)),
        forward_(forward_steps(taps_inside(geometry, input))),
        data_(data_steps(taps_inside(geometry, input))),
        slice_(taps_ == 1 ? kSliceChannels<kLanes> : kSliceChannelsOfTaps<kLanes>),
        gradient_(geometry, Slices(geometry.out_channels, slice_),
                  Slices(geometry.in_channels, slice_),
                  std::clamp<std::int64_t>(image_pixels_ / kPixelsPerPart, 1, kMaxParts),
                  input.batch(), threads) {}

  void prepare(ConvPass) override {}
  std::size_t scratch_bytes(ConvPass pass, bool) const override {
    const std::int64_t floats =
        pass == ConvPass::kBackwardWeights
            ? gradient_.scratch_floats(sum_floats())
            : packed_floats() + threads_ * kBlockRows * (apart(in_) + apart(out_));
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  void forward(const Tensor& x, const float* weight, const float* bias, const Tensor& y,
               void* scratch, const RowsDone& done) override {
    check(ConvPass::kForward);
    const std::int64_t channels = y.shape.channels();
    if (!begins_by_writing(forward_)) fill_rows(y, bias);
    const auto input = [&](const Step& step, std::int64_t row) {
      return x.floats() + pixels_.input(step.tap, row) * x.row_stride;
    };
    const auto finish = [&](const Step& step, std::int64_t begin, std::int64_t end,
                            const ConstRows& sums) {
      for (std::int64_t r = begin; r < end; ++r) {
        float* to = y.floats() + pixels_.output(step.tap, r) * y.row_stride;
        const float* from = sums.data + (r - begin) * sums.stride;
        if (!step.writes) {
          add_values(from, channels, to);
          continue;
        }
        if (from != to) copy_channels(from, channels, channels, to);
        for (std::int64_t c = 0; bias != nullptr && c < channels; ++c) to[c] += bias[c];
      }
      if (done && forward_.size() == 1) done(begin, end);
    };
    const Operands operands{geometry_.in_channels, geometry_.out_channels, x.row_stride,
                            y.row_stride, y.floats()};
    multiply(forward_, x.shape.batch(), operands, WeightOrder::kOutputByInput, weight, input,
             finish, static_cast<float*>(scratch));
    if (done && forward_.size() != 1) tell_of_blocks(y.shape.rows(), done);
  }

  void backward_data(const Tensor& grad_y, const float* weight, const Tensor& grad_x,
                     void* scratch) override {
    check(ConvPass::kBackwardData);
    const std::int64_t channels = grad_x.shape.channels();
    if (!begins_by_writing(data_)) fill_rows(grad_x, nullptr);
    const auto input = [&](const Step& step, std::int64_t row) {
      return grad_y.floats() + pixels_.output(step.tap, row) * grad_y.row_stride;
    };
    const auto finish = [&](const Step& step, std::int64_t begin, std::int64_t end,
                            const ConstRows& sums) {
      for (std::int64_t r = begin; r < end; ++r) {
        const float* from = sums.data + (r - begin) * sums.stride;
        const std::int64_t own = pixels_.input(step.tap, r);
        const auto write = [&](std::int64_t pixel) {
          float* to = grad_x.floats() + pixel * grad_x.row_stride;
          if (pixel != own) {
            std::fill_n(to, channels, 0.0F);
          } else if (from != to) {
            copy_channels(from, channels, channels, to);
          }
        };
        if (!step.writes) {
          add_values(from, channels, grad_x.floats() + own * grad_x.row_stride);
        } else if (taps_ == 1) {
          pixels_.for_each_input(r, write);
        } else {
          write(own);  // there is none in between
        }
      }
    };
    const Operands operands{geometry_.out_channels, geometry_.in_channels, grad_y.row_stride,
                            grad_x.row_stride, grad_x.floats()};
    multiply(data_, grad_y.shape.batch(), operands, WeightOrder::kInputByOutput, weight, input,
             finish, static_cast<float*>(scratch));
  }

  void backward_weights(const Tensor& x, const Tensor& grad_y, float* grad_weight,
                        void* scratch) override {
    if (x.shape.batch() == 0) return;
    const Sum sum{*this, x, grad_y, pixels_};
    gradient_.add(x.shape.batch(), sum, sum_floats(), grad_weight, static_cast<float*>(scratch));
  }

 private:
  using Products = matmul::Products<kLanes>;
  static constexpr std::int64_t kBlockRows = kBlockGroups * Products::kRows;

  void check(ConvPass pass) const {
    LOCKSTEP_CHECK(matmul_supports(geometry_, pass), "no matrix product for the pass ",
                   to_string(pass), " of a ", to_string(geometry_));
  }

  /// Of the weights [out, in], which are the columns of the product.
  enum class WeightOrder : std::uint8_t { kOutputByInput, kInputByOutput };

  /// What is multiplied by rows.
  struct Operands {
    std::int64_t depth, columns;          // channels
    std::int64_t from_stride, to_stride;  // of rows that follow one another
    float* to;                            // the result's first row
  };
  /// One of the products that a pass is the sum of.
  struct Step {
    Tap tap;
    bool writes;    // else it adds to what the steps before it have written
    bool follow;    // whether the rows of its left factor follow one another
    bool in_place;  // whether it may write the result where that belongs
  };

  std::vector<Step> forward_steps(const std::vector<Tap>& taps) const {
    std::vector<Step> steps;
    for (const Tap& tap : taps) {
      const bool writes = steps.empty() && pixels_.all(tap);
      steps.push_back({tap, writes, pixels_.same(tap), writes});
    }
    return steps;
  }
  /// Of the gradient of the input.
  std::vector<Step> data_steps(const std::vector<Tap>& taps) const {
    std::vector<Step> steps;
    for (const Tap& tap : taps) {
      const bool in_place = steps.empty() && pixels_.same(tap);
      const bool covers = taps_ == 1 && pixels_.all(tap);  // with the pixels between its own
      steps.push_back({tap, in_place || covers, pixels_.all(tap), in_place});
    }
    return steps;
  }
  static bool begins_by_writing(const std::vector<Step>& steps) {
    return !steps.empty() && steps.front().writes;
  }
  /// All rows = bias, or 0.
  void fill_rows(const Tensor& rows, const float* bias) const {
    const std::int64_t channels = rows.shape.channels();
#pragma omp parallel for num_threads(threads_) if (threads_ > 1)
    for (std::int64_t r = 0; r < rows.shape.rows(); ++r) {
      float* to = rows.floats() + r * rows.row_stride;
      std::fill_n(to, channels, 0.0F);
      if (bias != nullptr) copy_channels(bias, channels, channels, to);
    }
  }

  void tell_of_blocks(std::int64_t rows, const RowsDone& done) const {
#pragma omp parallel for schedule(dynamic) num_threads(threads_) if (threads_ > 1)
    for (std::int64_t begin = 0; begin < rows; begin += kBlockRows) {
      done(begin, std::min(rows, begin + kBlockRows));
    }
  }

  std::int64_t packed_floats() const {
    return static_cast<std::int64_t>(forward_.size()) * in_ * out_;
  }

  /// Rows times the weights of each step, one step after the other, by blocks: row r of the left
  /// factor is at input(step, r); finish(step, begin, end, sums) gets the result of a block, which
  /// lies where it belongs if it can.
  template <class Input, class Finish>
  void multiply(const std::vector<Step>& steps, std::int64_t images, const Operands& operands,
                WeightOrder order, const float* weight, const Input& input, const Finish& finish,
                float* scratch) const {
    const std::int64_t columns = padded(operands.columns);
    float* blocks = scratch + packed_floats();
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
    {
#pragma omp for schedule(static)
      for (std::int64_t first = 0; first < columns; first += Products::kPanel) {
        for (std::size_t i = 0; i < steps.size(); ++i) {
          pack(weight, order, steps[i].tap.index, first, packed_of(scratch, i));
        }
      }
      float* memory = blocks + omp_get_thread_num() * kBlockRows * (apart(in_) + apart(out_));
      for (std::size_t i = 0; i < steps.size(); ++i) {
        const std::int64_t rows = images * steps[i].tap.pixels();
        const std::int64_t size = even_block(rows, kBlockRows, threads_);
#pragma omp for schedule(dynamic)
        for (std::int64_t begin = 0; begin < rows; begin += size) {
          multiply_block(steps[i], begin, size, rows, operands, packed_of(scratch, i), input,
                         finish, memory);
        }
      }
    }
  }
  float* packed_of(float* scratch, std::size_t step) const {
    return scratch + static_cast<std::int64_t>(step) * in_ * out_;
  }

  template <class Input, class Finish>
  void multiply_block(const Step& step, std::int64_t begin, std::int64_t most, std::int64_t rows,
                      const Operands& operands, const float* packed, const Input& input,
                      const Finish& finish, float* memory) const {
    const std::int64_t depth = padded(operands.depth), columns = padded(operands.columns);
    const std::int64_t size = std::min(most, rows - begin);
    ConstRows from{input(step, begin), operands.from_stride};
    if (!step.follow || depth != operands.depth || operands.from_stride % kSetStride == 0) {
      from = {memory, apart(depth)};
      for (std::int64_t r = 0; r < size; ++r) {
        copy_channels(input(step, begin + r), operands.depth, depth, memory + r * from.stride);
      }
    }
    Rows to{memory + kBlockRows * apart(depth), columns};
    if (step.in_place && columns == operands.columns) {
      to = {operands.to + begin * operands.to_stride, operands.to_stride};
    }
    Products::multiply(from, packed, to, {size, depth, columns});
    finish(step, begin, begin + size, ConstRows{to.data, to.stride});
  }

  /// The panel of columns from `first` on, of the weights at a position of the kernel.
  void pack(const float* weight, WeightOrder order, std::int64_t tap, std::int64_t first,
            float* packed) const {
    const std::int64_t in = geometry_.in_channels, out = geometry_.out_channels;
    const bool by_input = order == WeightOrder::kOutputByInput;
    const std::int64_t depth = by_input ? in : out, channels = by_input ? out : in;
    const std::int64_t width = std::min(Products::kPanel, padded(channels) - first);
    float* to = packed + first * padded(depth);
    std::fill_n(to, padded(depth) * width, 0.0F);
    const std::int64_t count = std::min(width, channels - first);
    if (!by_input) {
      for (std::int64_t k = 0; k < depth; ++k) {
        const float* from = weight + (k * in + first) * taps_ + tap;
        if (taps_ == 1) {
          copy_channels(from, count, count, to + k * width);
          continue;
        }
        for (std::int64_t n = 0; n < count; ++n) to[k * width + n] = from[n * taps_];
      }
      return;
    }
    // With one position of the kernel, lines of the panel one after another: each is complete while
    // a cache holds it. With several a line of weights holds few of one position: in their order.
    const std::int64_t lines = taps_ == 1 ? kLine : depth;
    for (std::int64_t k = 0; k < depth; k += lines) {
      for (std::int64_t n = 0; n < count; n += 8) {
        for (std::int64_t eight = k; eight < std::min(depth, k + lines); eight += 8) {
          pack_transposed(weight + ((first + n) * in + eight) * taps_ + tap,
                          std::min<std::int64_t>(8, count - n),
                          std::min<std::int64_t>(8, depth - eight), to + eight * width + n, width);
        }
      }
    }
  }

  /// Up to eight columns of up to eight values of depth.
  void pack_transposed(const float* from, std::int64_t columns, std::int64_t depth, float* to,
                       std::int64_t width) const {
    Vec8 rows[8] = {};
    for (std::int64_t n = 0; n < columns; ++n) {
      const float* row = from + n * geometry_.in_channels * taps_;
      if (taps_ == 1) {
        __builtin_prefetch(row + kFloatsAhead);
        rows[n] = load_partial<8>(row, depth);
        continue;
      }
      for (std::int64_t k = 0; k < depth; ++k) rows[n][k] = row[k * taps_];
    }
    transpose(rows);
    for (std::int64_t k = 0; k < depth; ++k) store<8>(to + k * width, rows[k]);
  }

  std::int64_t sum_floats() const {
    return (3 * panel_pixels(kSumPixels) + taps_ * slice_) * slice_;
  }

  /// The sums of the weights' gradient: grad_y^T x of the pixels.
  struct Sum {
    const MatmulConvolution& convolution;
    const Tensor& x;
    const Tensor& grad_y;
    const Pixels& pixels;

    void operator()(const SumTask& task, bool add, float* to, float* memory) const {
      const std::int64_t all = convolution.image_pixels_;
      const std::int64_t parts = convolution.gradient_.parts();
      const std::int64_t first = task.image * all + all * task.part / parts;
      const std::int64_t end = task.image * all + all * (task.part + 1) / parts;
      // Blocks are summed by themselves before they are added to another image's.
      const bool alone = add && end - first > kSumPixels;
      float* values = alone ? memory + 3 * panel_pixels(kSumPixels) * convolution.slice_ : to;
      for (std::int64_t p = first; p < end; p += kSumPixels) {
        const bool onto = p > first || (add && !alone);
        multiply(task, p, std::min(kSumPixels, end - p), onto, values, memory);
      }
      if (alone) add_values(values, task.out.count * convolution.taps_ * task.in.padded, to);
    }

    void multiply(const SumTask& task, std::int64_t first, std::int64_t count, bool add,
                  float* values, float* memory) const {
      const std::int64_t taps = convolution.taps_;
      const std::int64_t panels = panel_pixels(kSumPixels) * convolution.slice_;
      const Tensor outputs = grad_y.channel_range(task.out.begin, task.out.count);
      float *all = memory, *gathered = memory + panels, *inputs = memory + 2 * panels;
      pack(
          outputs, count, kChannelUnit, [&](std::int64_t p) { return first + p; }, all);
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        float* sums = values + tap * task.in.padded;
        std::int64_t reads[kSumPixels], who[kSumPixels];
        pixels.inputs(first, count, tap, reads);
        std::int64_t inside = 0;
        for (std::int64_t p = 0; p < count; ++p) {
          who[inside] = p;
          if (reads[p] >= 0) ++inside;
        }
        // Zeros add nothing: pixels that read padding are left out where they are many.
        if (2 * inside > count) {
          multiply_tap(
              task, count, add, [&](std::int64_t p) { return reads[p]; }, all, inputs, sums);
        } else if (inside > 0 || !add) {
          pack(
              outputs, inside, kChannelUnit, [&](std::int64_t p) { return first + who[p]; },
              gathered);
          multiply_tap(
              task, inside, add, [&](std::int64_t p) { return reads[who[p]]; }, gathered, inputs,
              sums);
        }
      }
    }

    /// Of one position of the kernel: `count` pixels of the output, which are packed, and those of
    /// the input that they read.
    template <class Row>
    void multiply_tap(const SumTask& task, std::int64_t count, bool add, const Row& row,
                      const float* outputs, float* inputs, float* sums) const {
      const Slice &out = task.out, &in = task.in;
      const std::int64_t stride = convolution.taps_ * in.padded, pitch = panel_pixels(count);
      pack(x.channel_range(in.begin, in.count), count, Products::kPanel, row, inputs);
      for (std::int64_t n = 0; n < in.padded; n += Products::kPanel) {
        const std::int64_t width = std::min(Products::kPanel, in.padded - n);
        for (std::int64_t m = 0; m < out.padded; m += kChannelUnit) {
          Products::multiply_transposed(
              {outputs + m * pitch, kChannelUnit}, {inputs + n * pitch, width},
              {sums + m * stride + n, stride}, {kChannelUnit, count, width}, add);
        }
      }
    }

    /// Panels of `width` channels, in which `count` pixels follow one another; zeros for pixels
    /// outside the image. row(i): where the i-th lies.
    template <class Row>
    static void pack(const Tensor& from, std::int64_t count, std::int64_t width, const Row& row,
                     float* to) {
      const std::int64_t channels = from.shape.channels();
      const auto pixel = [&](std::int64_t index) -> const float* {
        const std::int64_t at = row(index);
        return at < 0 ? nullptr : from.floats() + at * from.row_stride;
      };
      for (std::int64_t p = 0; p < count; ++p) {
        const float* values = pixel(p);
        const float* later = pixel(std::min(p + kPixelsAhead, count - 1));
        for (std::int64_t c = 0; c < channels; c += kChannelUnit) {
          if (later != nullptr) __builtin_prefetch(later + c);
          const std::int64_t n = c / width * width;
          const std::int64_t panel = std::min(width, padded(channels) - n);
          float* unit = to + n * panel_pixels(count) + p * panel + c - n;
          if (values == nullptr) {
            store<kChannelUnit>(unit, Vec<kChannelUnit>{});
          } else if (c + kChannelUnit <= channels) {
            store<kChannelUnit>(unit, load<kChannelUnit>(values + c));
          } else {
            copy_channels(values + c, channels - c, kChannelUnit, unit);
          }
        }
      }
    }
  };

  const ConvGeometry geometry_;
  const int threads_;
  const std::int64_t in_, out_;  // padded channels
  const std::int64_t image_pixels_;
  const std::int64_t taps_;  // positions of the kernel
  const Pixels pixels_;      // of any batch
  const std::vector<Step> forward_, data_;
  const std::int64_t slice_;  // channels of a sum
  const WeightGradient gradient_;
};

}  // namespace

bool matmul_supports(const ConvGeometry& geometry, ConvPass pass) {
  const bool few = geometry.kernel_h * geometry.kernel_w <= kMostTaps;
  return geometry.groups == 1 && (few || pass == ConvPass::kBackwardWeights);
}

bool matmul_skips_padding(const ConvGeometry& geometry, const Shape& input) {
  const std::int64_t taps = geometry.kernel_h * geometry.kernel_w;
  std::int64_t pixels = 0;
  for (const Tap& tap : taps_inside(geometry, input)) pixels += tap.pixels();
  return 2 * pixels <= taps * geometry.output_shape(input).rows_per_sample();
}

std::unique_ptr<Convolution> make_matmul_convolution(const ConvGeometry& geometry,
                                                     const Shape& input, int threads, int lanes) {
  LOCKSTEP_CHECK(matmul_supports(geometry, ConvPass::kBackwardWeights), "no matrix product for a ",
                 to_string(geometry));
  LOCKSTEP_CHECK(lanes == 8 || lanes == 16, "no matrix product with vectors of ", lanes,
                 " floats; there are 8 and 16");
  if (lanes == 16) return std::make_unique<MatmulConvolution<16>>(geometry, input, threads);
  return std::make_unique<MatmulConvolution<8>>(geometry, input, threads);
}

}  // namespace lockstep
