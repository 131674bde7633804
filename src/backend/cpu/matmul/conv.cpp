#include "backend/cpu/matmul/conv.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "backend/cpu/matmul/products.h"
#include "backend/cpu/matmul/slices.h"
#include "backend/cpu/matmul/vec.h"
#include "backend/cpu/matmul/weight_gradient.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using namespace matmul;

// Rows at a distance of this many floats share a few lines of a first-level cache: they are copied
// closer together.
constexpr std::int64_t kSetStride = 1024;
// Rows of a block: with a few hundred channels they stay in a second-level cache.
constexpr std::int64_t kBlockGroups = 8;
// Channels of one sum of the weights' gradient, which is 64 KiB, with the nine positions of a 3x3
// kernel 144 KiB.
constexpr std::int64_t kSliceChannels = 128, kSliceChannelsOfTaps = 64;
// Pixels whose products are summed by themselves; the sums' order depends on it.
constexpr std::int64_t kSumPixels = 256;
// Pixels lie far apart where they have many channels, of which a slice is read: what fetches data
// ahead by itself does not guess them.
constexpr std::int64_t kPixelsAhead = 12;
// Parts of an image's gradient, so that threads have work when images and slices are few.
constexpr std::int64_t kMaxParts = 8, kPixelsPerPart = 2048;

/// Which pixel of the input each pixel of the output reads.
class Pixels {
 public:
  Pixels(const ConvGeometry& geometry, const Shape& in, const Shape& out)
      : geometry_(geometry), in_(in), out_(out) {}

  /// Whether every pixel reads the one at its own place.
  bool same() const { return geometry_.stride_h == 1 && geometry_.stride_w == 1; }
  std::int64_t input(std::int64_t output) const { return same() ? output : input(output, 0); }
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
  /// body(pixel) for the pixels of the input that this one of the output stands for: those from its
  /// own up to the next one's.
  template <class Body>
  void for_each_input(std::int64_t output, const Body& body) const {
    const std::int64_t first = input(output);
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
        slice_(taps_ == 1 ? kSliceChannels : kSliceChannelsOfTaps),
        gradient_(geometry, Slices(geometry.out_channels, slice_),
                  Slices(geometry.in_channels, slice_),
                  std::clamp<std::int64_t>(image_pixels_ / kPixelsPerPart, 1, kMaxParts),
                  input.batch(), threads) {}

  void prepare(ConvPass) override {}
  std::size_t scratch_bytes(ConvPass pass, bool) const override {
    const std::int64_t floats =
        pass == ConvPass::kBackwardWeights
            ? gradient_.scratch_floats(sum_floats())
            : in_ * out_ + threads_ * kBlockRows * (apart(in_) + apart(out_));
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  void forward(const Tensor& x, const float* weight, const float* bias, const Tensor& y,
               void* scratch, const RowsDone& done) override {
    check(ConvPass::kForward);
    const Pixels pixels(geometry_, x.shape, y.shape);
    const auto input = [&](std::int64_t row) {
      return x.floats() + pixels.input(row) * x.row_stride;
    };
    const auto finish = [&](std::int64_t begin, std::int64_t end, const ConstRows& sums) {
      for (std::int64_t r = begin; r < end; ++r) {
        float* to = y.floats() + r * y.row_stride;
        const float* from = sums.data + (r - begin) * sums.stride;
        if (from != to) copy_channels(from, y.shape.channels(), y.shape.channels(), to);
        for (std::int64_t c = 0; bias != nullptr && c < y.shape.channels(); ++c) to[c] += bias[c];
      }
      if (done) done(begin, end);
    };
    const Operands operands{geometry_.in_channels, geometry_.out_channels,
                            pixels.same() ? x.row_stride : 0, y.row_stride, y.floats()};
    multiply(y.shape.rows(), operands, WeightOrder::kOutputByInput, weight, input, finish,
             static_cast<float*>(scratch));
  }

  void backward_data(const Tensor& grad_y, const float* weight, const Tensor& grad_x,
                     void* scratch) override {
    check(ConvPass::kBackwardData);
    const Pixels pixels(geometry_, grad_x.shape, grad_y.shape);
    const auto input = [&](std::int64_t row) { return grad_y.floats() + row * grad_y.row_stride; };
    const auto finish = [&](std::int64_t begin, std::int64_t end, const ConstRows& sums) {
      for (std::int64_t r = begin; r < end; ++r) {
        const float* from = sums.data + (r - begin) * sums.stride;
        pixels.for_each_input(r, [&](std::int64_t pixel) {
          float* to = grad_x.floats() + pixel * grad_x.row_stride;
          if (pixel != pixels.input(r)) {
            std::fill_n(to, grad_x.shape.channels(), 0.0F);
          } else if (from != to) {
            copy_channels(from, grad_x.shape.channels(), grad_x.shape.channels(), to);
          }
        });
      }
    };
    const Operands operands{geometry_.out_channels, geometry_.in_channels, grad_y.row_stride,
                            grad_x.row_stride, pixels.same() ? grad_x.floats() : nullptr};
    multiply(grad_y.shape.rows(), operands, WeightOrder::kInputByOutput, weight, input, finish,
             static_cast<float*>(scratch));
  }

  void backward_weights(const Tensor& x, const Tensor& grad_y, float* grad_weight,
                        void* scratch) override {
    if (x.shape.batch() == 0) return;
    const Sum sum{*this, x, grad_y, Pixels(geometry_, x.shape, grad_y.shape)};
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
    std::int64_t depth, columns;  // channels
    std::int64_t from_stride;     // of rows of the left factor; 0: they do not follow one another
    std::int64_t to_stride;
    float* to;  // rows of the result; null: they do not follow one another
  };

  /// The rows times the weights, by blocks: row r of the left factor is at input(r); finish(begin,
  /// end, sums) gets the result of a block, which lies where it belongs if it can.
  template <class Input, class Finish>
  void multiply(std::int64_t rows, const Operands& operands, WeightOrder order, const float* weight,
                const Input& input, const Finish& finish, float* scratch) const {
    const std::int64_t depth = padded(operands.depth), columns = padded(operands.columns);
    float* packed = scratch;
    float* blocks = scratch + in_ * out_;
    const std::int64_t count = (rows + kBlockRows - 1) / kBlockRows;
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
    {
#pragma omp for schedule(static)
      for (std::int64_t first = 0; first < columns; first += Products::kPanel) {
        pack(weight, order, first, packed);
      }
#pragma omp for schedule(dynamic)
      for (std::int64_t block = 0; block < count; ++block) {
        float* memory = blocks + omp_get_thread_num() * kBlockRows * (apart(in_) + apart(out_));
        const std::int64_t begin = block * kBlockRows;
        const std::int64_t size = std::min(kBlockRows, rows - begin);
        const bool whole = size % Products::kRows == 0;
        ConstRows from{input(begin), operands.from_stride};
        if (!whole || operands.from_stride == 0 || depth != operands.depth ||
            operands.from_stride % kSetStride == 0) {
          from = {memory, apart(depth)};
          for (std::int64_t r = 0; r < size; ++r) {
            copy_channels(input(begin + r), operands.depth, depth, memory + r * from.stride);
          }
          std::fill(memory + size * from.stride, memory + whole_rows(size) * from.stride, 0.0F);
        }
        Rows to{memory + kBlockRows * apart(depth), columns};
        if (whole && operands.to != nullptr && columns == operands.columns) {
          to = {operands.to + begin * operands.to_stride, operands.to_stride};
        }
        Products::multiply(from, packed, to, {whole_rows(size), depth, columns});
        finish(begin, begin + size, ConstRows{to.data, to.stride});
      }
    }
  }

  static std::int64_t whole_rows(std::int64_t rows) {
    return (rows + Products::kRows - 1) / Products::kRows * Products::kRows;
  }

  /// The panel of columns from `first` on.
  void pack(const float* weight, WeightOrder order, std::int64_t first, float* packed) const {
    const std::int64_t in = geometry_.in_channels, out = geometry_.out_channels;
    const bool by_input = order == WeightOrder::kOutputByInput;
    const std::int64_t depth = by_input ? in : out, channels = by_input ? out : in;
    const std::int64_t width = std::min(Products::kPanel, padded(channels) - first);
    float* to = packed + first * padded(depth);
    std::fill_n(to, padded(depth) * width, 0.0F);
    const std::int64_t count = std::min(width, channels - first);
    if (!by_input) {
      for (std::int64_t k = 0; k < depth; ++k) {
        copy_channels(weight + k * in + first, count, count, to + k * width);
      }
      return;
    }
    for (std::int64_t n = 0; n < count; n += 8) {
      for (std::int64_t k = 0; k < depth; k += 8) {
        pack_transposed(weight + (first + n) * in + k, std::min<std::int64_t>(8, count - n),
                        std::min<std::int64_t>(8, depth - k), to + k * width + n, width);
      }
    }
  }

  /// Up to eight columns of up to eight values of depth.
  void pack_transposed(const float* from, std::int64_t columns, std::int64_t depth, float* to,
                       std::int64_t width) const {
    Vec8 rows[8] = {};
    for (std::int64_t n = 0; n < columns; ++n) {
      rows[n] = load_partial<8>(from + n * geometry_.in_channels, depth);
    }
    transpose(rows);
    for (std::int64_t k = 0; k < depth; ++k) store<8>(to + k * width, rows[k]);
  }

  std::int64_t sum_floats() const { return (2 * kSumPixels + taps_ * slice_) * slice_; }

  /// The sums of the weights' gradient: grad_y^T x of the pixels.
  struct Sum {
    const MatmulConvolution& convolution;
    const Tensor& x;
    const Tensor& grad_y;
    const Pixels pixels;

    void operator()(const SumTask& task, bool add, float* to, float* memory) const {
      const std::int64_t all = convolution.image_pixels_;
      const std::int64_t parts = convolution.gradient_.parts();
      const std::int64_t first = task.image * all + all * task.part / parts;
      const std::int64_t end = task.image * all + all * (task.part + 1) / parts;
      // Blocks are summed by themselves before they are added to another image's.
      const bool alone = add && end - first > kSumPixels;
      float* values = alone ? memory + 2 * kSumPixels * convolution.slice_ : to;
      for (std::int64_t p = first; p < end; p += kSumPixels) {
        const bool onto = p > first || (add && !alone);
        multiply(task, p, std::min(kSumPixels, end - p), onto, values, memory);
      }
      if (alone) add_values(values, task.out.count * convolution.taps_ * task.in.padded, to);
    }

    void multiply(const SumTask& task, std::int64_t first, std::int64_t count, bool add,
                  float* values, float* memory) const {
      const Slice &out = task.out, &in = task.in;
      const std::int64_t taps = convolution.taps_;
      float* inputs = memory + kSumPixels * convolution.slice_;
      pack(
          grad_y.channel_range(out.begin, out.count), count, kChannelUnit,
          [&](std::int64_t pixel) { return first + pixel; }, memory);
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        pack(
            x.channel_range(in.begin, in.count), count, Products::kPanel,
            [&](std::int64_t pixel) {
              return taps == 1 ? pixels.input(first + pixel) : pixels.input(first + pixel, tap);
            },
            inputs);
        float* sums = values + tap * in.padded;
        for (std::int64_t n = 0; n < in.padded; n += Products::kPanel) {
          const std::int64_t width = std::min(Products::kPanel, in.padded - n);
          for (std::int64_t m = 0; m < out.padded; m += kChannelUnit) {
            Products::multiply_transposed({memory + m * count, kChannelUnit},
                                          {inputs + n * count, width},
                                          {sums + m * taps * in.padded + n, taps * in.padded},
                                          {kChannelUnit, count, width}, add);
          }
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
          float* unit = to + n * count + p * panel + c - n;
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
  const std::int64_t taps_, slice_;  // positions of the kernel, channels of a sum
  const WeightGradient gradient_;
};

}  // namespace

bool matmul_supports(const ConvGeometry& geometry, ConvPass pass) {
  const bool one_pixel = geometry.kernel_h == 1 && geometry.kernel_w == 1 &&
                         geometry.padding_h == 0 && geometry.padding_w == 0;
  return geometry.groups == 1 && (one_pixel || pass == ConvPass::kBackwardWeights);
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
