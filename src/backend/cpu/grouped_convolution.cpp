#include "backend/cpu/grouped_convolution.h"

#include <omp.h>

#include <algorithm>
#include <utility>

#include "backend/cpu/matmul/products.h"
#include "backend/cpu/matmul/slices.h"
#include "backend/cpu/matmul/vec.h"
#include "backend/cpu/matmul/weight_gradient.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using namespace matmul;

// Rows of an output that a thread computes, a slice of channels after the other: what a slice reads
// stays in a second-level cache.
constexpr std::int64_t kStripRows = 16;
// Channels of a slice: some lines of a pixel that follow one another.
constexpr std::int64_t kSliceChannels = 64;
// Parts of an image's gradient, so that threads have work when images and slices are few.
constexpr std::int64_t kMaxParts = 8, kRowsPerPart = 16;
// Pixels that are summed at once: as many independent sums hide the latency of the products.
template <std::int64_t kLanes>
constexpr int kPixels = kLanes == 16 ? 8 : 6;
// Lines that are fetched while eight pixels are summed: more than eight, since a strip reads more
// rows than it makes.
constexpr int kLinesAheadOfEight = 11;

/// One direction of a convolution: which input an output reads under a position of the kernel.
struct Axis {
  std::int64_t kernel, stride, padding, dilation;
  std::int64_t inputs, outputs;

  std::int64_t input(std::int64_t output, std::int64_t tap) const {
    return output * stride + tap * dilation - padding;
  }
  bool inside(std::int64_t input) const { return input >= 0 && input < inputs; }
  /// Whether three pixels that follow one another are read, and by the next output those from the
  /// second one on.
  bool neighbours() const { return kernel == 3 && stride == 1 && dilation == 1; }
};

/// What a convolution reads of an image.
struct Axes {
  Axis rows, columns;

  static Axes forward(const ConvGeometry& g, const Shape& in) {
    const Shape out = g.output_shape(in);
    return {{g.kernel_h, g.stride_h, g.padding_h, g.dilation_h, in.height(), out.height()},
            {g.kernel_w, g.stride_w, g.padding_w, g.dilation_w, in.width(), out.width()}};
  }
  /// The gradient of the input, of stride 1: the convolution with kernels turned by 180 degrees.
  static Axes backward_data(const ConvGeometry& g, const Shape& in) {
    const Shape out = g.output_shape(in);
    const auto turned = [](std::int64_t kernel, std::int64_t padding, std::int64_t dilation,
                           std::int64_t inputs, std::int64_t outputs) {
      return Axis{kernel, 1, dilation * (kernel - 1) - padding, dilation, inputs, outputs};
    };
    return {turned(g.kernel_h, g.padding_h, g.dilation_h, out.height(), in.height()),
            turned(g.kernel_w, g.padding_w, g.dilation_w, out.width(), in.width())};
  }
};

/// A row of pixels, at a channel; pixels outside of it are zero.
class Line {
 public:
  Line(const float* first, std::int64_t stride, std::int64_t pixels)
      : first_(first), stride_(stride), pixels_(pixels) {}

  const float* pixel(std::int64_t index) const {
    alignas(64) static constexpr float kZeros[kChannelUnit] = {};
    return index >= 0 && index < pixels_ ? first_ + index * stride_ : kZeros;
  }

 private:
  const float* first_;
  std::int64_t stride_, pixels_;
};

/// An image of a tensor.
struct Image {
  float* data;
  std::int64_t stride;  // of pixels
  std::int64_t width;

  Image(const Tensor& tensor, std::int64_t image)
      : data(tensor.floats() + image * tensor.shape.rows_per_sample() * tensor.row_stride),
        stride(tensor.row_stride),
        width(tensor.shape.width()) {}

  float* row(std::int64_t y) const { return data + y * width * stride; }
  Line line(std::int64_t y, std::int64_t channel) const {
    return {row(y) + channel, stride, width};
  }
};

/// Value `index` of each group, for all output channels of the group.
template <std::int64_t kLanes, std::int64_t kGroup, int kIndex>
[[gnu::always_inline]] inline Vec<kLanes> spread(Vec<kLanes> values) {
  return [&]<int... kLane>(std::integer_sequence<int, kLane...>) __attribute__((always_inline)) {
    constexpr int group = kGroup;
    return __builtin_shufflevector(values, values, (kLane / group * group + kIndex)...);
  }
  (std::make_integer_sequence<int, kLanes>());
}
/// body(i, value i) for the values of a group.
template <std::int64_t kGroup, class Body>
[[gnu::always_inline]] inline void for_each_value(const Body& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, kIndex>()), ...);
  }
  (std::make_integer_sequence<int, kGroup>());
}

/// With vectors of kLanes floats, and groups of kGroup channels.
template <std::int64_t kLanes, std::int64_t kGroup>
class GroupedConvolution final : public Convolution {
 public:
  GroupedConvolution(const ConvGeometry& geometry, const Shape& input, int threads)
      : geometry_(geometry),
        threads_(threads),
        taps_(geometry.kernel_h * geometry.kernel_w),
        forward_(Axes::forward(geometry, input)),
        data_(Axes::backward_data(geometry, input)),
        gradient_(geometry, Slices(geometry.out_channels, kSliceChannels),
                  Slices(kGroup, kSliceChannels),
                  std::clamp<std::int64_t>(forward_.rows.outputs / kRowsPerPart, 1, kMaxParts),
                  input.batch(), threads) {}

  void prepare(ConvPass) override {}
  std::size_t scratch_bytes(ConvPass pass, bool) const override {
    const std::int64_t floats = pass == ConvPass::kBackwardWeights
                                    ? gradient_.scratch_floats(weights_of(kSliceChannels))
                                    : weights_of(geometry_.out_channels);
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  void forward(const Tensor& x, const float* weight, const float* bias, const Tensor& y,
               void* scratch, const RowsDone& done) override {
    convolve(forward_, x, {weight, false}, bias, y, static_cast<float*>(scratch), done);
  }
  void backward_data(const Tensor& grad_y, const float* weight, const Tensor& grad_x,
                     void* scratch) override {
    LOCKSTEP_CHECK(grouped_supports(geometry_, ConvPass::kBackwardData),
                   "no direct sums for the gradient of the input of a ", to_string(geometry_));
    convolve(data_, grad_y, {weight, true}, nullptr, grad_x, static_cast<float*>(scratch), nullptr);
  }
  void backward_weights(const Tensor& x, const Tensor& grad_y, float* grad_weight,
                        void* scratch) override {
    if (x.shape.batch() == 0) return;
    const auto sum = [&](const SumTask& task, bool add, float* to, float* memory) {
      sum_part(task, x, grad_y, add, to, memory);
    };
    gradient_.add(x.shape.batch(), sum, weights_of(kSliceChannels), grad_weight,
                  static_cast<float*>(scratch));
  }

 private:
  using Vec = matmul::Vec<kLanes>;

  std::int64_t weights_of(std::int64_t out_channels) const { return out_channels * taps_ * kGroup; }

  /// `turned`: for the gradient of the input, whose outputs are the input's channels.
  struct Weights {
    const float* data;
    bool turned;
  };
  /// Those of output channels [first, first + kLanes): [taps, kGroup, kLanes].
  void pack(const Weights& weights, std::int64_t first, float* to) const {
    for (std::int64_t tap = 0; tap < taps_; ++tap) {
      for (std::int64_t i = 0; i < kGroup; ++i) {
        for (std::int64_t own = first; own < first + kLanes; ++own) {
          const std::int64_t other = own / kGroup * kGroup + i;
          *to++ = weights.turned
                      ? weights.data[(other * kGroup + own % kGroup) * taps_ + taps_ - 1 - tap]
                      : weights.data[(own * kGroup + i) * taps_ + tap];
        }
      }
    }
  }

  void convolve(const Axes& axes, const Tensor& x, const Weights& weights, const float* bias,
                const Tensor& y, float* packed, const RowsDone& done) const {
    const std::int64_t channels = y.shape.channels(), rows = axes.rows.outputs;
    const std::int64_t strips = (rows + kStripRows - 1) / kStripRows;
    const Task task{axes, x, y, bias, packed};
#pragma omp parallel num_threads(threads_) if (threads_ > 1)
    {
#pragma omp for schedule(static)
      for (std::int64_t c = 0; c < channels; c += kLanes) {
        pack(weights, c, packed + weights_of(c));
      }
#pragma omp for schedule(dynamic)
      for (std::int64_t strip = 0; strip < y.shape.batch() * strips; ++strip) {
        const std::int64_t image = strip / strips, first = strip % strips * kStripRows;
        const std::int64_t end = std::min(rows, first + kStripRows);
        sum_strip(task, image, first, end);
        const std::int64_t columns = axes.columns.outputs;
        if (done) done((image * rows + first) * columns, (image * rows + end) * columns);
      }
    }
  }

  struct Task {
    const Axes& axes;
    const Tensor& x;
    const Tensor& y;
    const float* bias;
    const float* packed;
  };
  /// Rows [first, end) of an image's output.
  void sum_strip(const Task& task, std::int64_t image, std::int64_t first, std::int64_t end) const {
    const Image from(task.x, image), to(task.y, image);
    const std::int64_t channels = task.y.shape.channels();
    for (std::int64_t slice = 0; slice < channels; slice += kSliceChannels) {
      const std::int64_t next = std::min(channels, slice + kSliceChannels);
      Ahead ahead = inputs_of_rows(task.axes, from, first, end, next, channels);
      for (std::int64_t row = first; row < end; ++row) {
        for (std::int64_t c = slice; c < next; c += kLanes) {
          sum_row(task, from, to, row, c, ahead);
        }
      }
    }
  }
  /// What rows [first, end) of an output read of the slice that begins at a channel.
  static Ahead inputs_of_rows(const Axes& axes, const Image& x, std::int64_t first,
                              std::int64_t end, std::int64_t channel, std::int64_t channels) {
    const std::int64_t top = std::max<std::int64_t>(0, axes.rows.input(first, 0));
    const std::int64_t bottom =
        std::min(axes.rows.inputs, axes.rows.input(end - 1, axes.rows.kernel - 1) + 1);
    if (channel >= channels) return {};
    return {x.row(top) + channel, x.stride, (bottom - top) * x.width,
            std::min(channels - channel, kSliceChannels)};
  }

  /// Channels [c, c + kLanes) of a row.
  void sum_row(const Task& task, const Image& from, const Image& to, std::int64_t row,
               std::int64_t c, Ahead& ahead) const {
    const std::int64_t width = task.axes.columns.outputs;
    const auto sum = [&](auto count, std::int64_t column) {
      sum_pixels<decltype(count)::value>(task, from, to, row, column, c);
      for (int i = 0; i < decltype(count)::value * kLinesAheadOfEight / 8; ++i) ahead.fetch_line();
    };
    // What is left over is computed with pixels before it, once more.
    std::int64_t column = 0;
    for (; column < width && width >= kPixels<kLanes>; column += kPixels<kLanes>) {
      sum(std::integral_constant<int, kPixels<kLanes>>(),
          std::min(column, width - kPixels<kLanes>));
    }
    for (; column < width; ++column) sum(std::integral_constant<int, 1>(), column);
  }

  /// kCount pixels of a row, from `column` on.
  template <int kCount>
  void sum_pixels(const Task& task, const Image& from, const Image& to, std::int64_t row,
                  std::int64_t column, std::int64_t c) const {
    const Axis &rows = task.axes.rows, &columns = task.axes.columns;
    const std::int64_t taps_of_row = columns.kernel * kGroup * kLanes;
    Vec sums[kCount] = {};
    for (std::int64_t r = 0; r < rows.kernel; ++r) {
      const std::int64_t y = rows.input(row, r);
      if (!rows.inside(y)) continue;
      const Line line = from.line(y, c);
      const float* weights = task.packed + weights_of(c) + r * taps_of_row;
      if (columns.neighbours()) {
        add_taps<3>(line, columns.input(column, 0), 1, weights, sums);
        continue;
      }
      for (std::int64_t tap = 0; tap < columns.kernel; ++tap) {
        add_taps<1>(line, columns.input(column, tap), columns.stride,
                    weights + tap * kGroup * kLanes, sums);
      }
    }
    const Vec bias = task.bias == nullptr ? Vec{} : load<kLanes>(task.bias + c);
    float* pixel = to.row(row) + column * to.stride + c;
    unrolled<kCount>([&](int p) __attribute__((always_inline)) {
      store<kLanes>(pixel + p * to.stride, sums[p] + bias);
    });
  }
  /// Of kTaps positions of the kernel that follow one another. A pixel is spread once for all.
  template <int kTaps, int kCount>
  [[gnu::always_inline]] static void add_taps(const Line& line, std::int64_t x, std::int64_t step,
                                              const float* weights, Vec (&sums)[kCount]) {
    unrolled<kCount + kTaps - 1>([&](int n) __attribute__((always_inline)) {
      const Vec values = load<kLanes>(line.pixel(x + n * step));
      for_each_value<kGroup>([&](auto i) __attribute__((always_inline)) {
        const Vec value = spread<kLanes, kGroup, i>(values);
        unrolled<kTaps>([&](int tap) __attribute__((always_inline)) {
          if (n < tap || n - tap >= kCount) return;
          sums[n - tap] += value * load<kLanes>(weights + (tap * kGroup + i) * kLanes);
        });
      });
    });
  }

  /// Values [out channels, taps, in.padded] of a part of an image; `sums`: memory for as many.
  void sum_part(const SumTask& task, const Tensor& x, const Tensor& grad_y, bool add, float* to,
                float* sums) const {
    const Axis& rows = forward_.rows;
    const Slice& out = task.out;
    const Image from(x, task.image), gradient(grad_y, task.image);
    std::fill_n(sums, weights_of(out.count), 0.0F);
    const std::int64_t begin = rows.outputs * task.part / gradient_.parts();
    const std::int64_t end = rows.outputs * (task.part + 1) / gradient_.parts();
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t next = std::min(row + 1, end - 1);
      const std::int64_t lowest = std::min(rows.input(next, rows.kernel - 1), rows.inputs - 1);
      Ahead x_ahead(from.row(std::max<std::int64_t>(lowest, 0)) + out.begin, from.stride,
                    from.width, out.count);
      Ahead y_ahead(gradient.row(next) + out.begin, gradient.stride, gradient.width, out.count);
      for (std::int64_t c = 0; c < out.count; c += kLanes) {
        add_row(from, gradient, row, out.begin + c, sums + weights_of(c),
                x_ahead.done() ? y_ahead : x_ahead);
      }
    }
    for (std::int64_t o = 0; o < out.count; ++o) {
      const float* sum = sums + weights_of(o / kLanes * kLanes) + o % kLanes;
      for (std::int64_t tap = 0; tap < taps_; ++tap, to += task.in.padded) {
        if (!add) std::fill_n(to, task.in.padded, 0.0F);
        for (std::int64_t i = 0; i < kGroup; ++i) to[i] += sum[(tap * kGroup + i) * kLanes];
      }
    }
  }

  /// Adds to the sums [taps, kGroup, kLanes] of output channels [c, c + kLanes) what a row
  /// contributes.
  void add_row(const Image& x, const Image& gradient, std::int64_t row, std::int64_t c, float* sums,
               Ahead& ahead) const {
    const Axis &rows = forward_.rows, &columns = forward_.columns;
    const Line gradients = gradient.line(row, c);
    for (std::int64_t r = 0; r < rows.kernel; ++r) {
      const std::int64_t y = rows.input(row, r);
      if (!rows.inside(y)) continue;
      const Line line = x.line(y, c);
      float* to = sums + r * columns.kernel * kGroup * kLanes;
      if (columns.neighbours()) {
        add_products<3>(line, 0, gradients, to, ahead);
        continue;
      }
      for (std::int64_t tap = 0; tap < columns.kernel; ++tap) {
        add_products<1>(line, tap, gradients, to + tap * kGroup * kLanes, ahead);
      }
    }
  }
  /// Of kTaps positions of the kernel that follow one another: a pixel is spread once for the
  /// gradients of all outputs that read it.
  template <int kTaps>
  void add_products(const Line& line, std::int64_t tap, const Line& gradients, float* to,
                    Ahead& fetched) const {
    const Axis& columns = forward_.columns;
    Ahead ahead = fetched;
    Vec sums[kTaps][kGroup] = {};
    Vec factors[kTaps] = {};
    for (std::int64_t n = 0; n < columns.outputs + kTaps - 1; ++n) {
      for (int t = kTaps - 1; t > 0; --t) factors[t] = factors[t - 1];
      factors[0] = load<kLanes>(gradients.pixel(n));
      const Vec values = load<kLanes>(line.pixel(columns.input(n, tap)));
      for_each_value<kGroup>([&](auto i) __attribute__((always_inline)) {
        const Vec value = spread<kLanes, kGroup, i>(values);
        unrolled<kTaps>([&](int t)
                            __attribute__((always_inline)) { sums[t][i] += value * factors[t]; });
      });
      ahead.fetch_line();
    }
    fetched = ahead;
    // A row by itself, and then to the rows before it: that rounds less than one long sum.
    unrolled<kTaps * kGroup>([&](int i) __attribute__((always_inline)) {
      float* sum = to + i * kLanes;
      store<kLanes>(sum, load<kLanes>(sum) + sums[i / kGroup][i % kGroup]);
    });
  }

  const ConvGeometry geometry_;
  const int threads_;
  const std::int64_t taps_;  // positions of the kernel
  const Axes forward_, data_;
  const WeightGradient gradient_;
};

template <std::int64_t kLanes>
std::unique_ptr<Convolution> make(const ConvGeometry& geometry, const Shape& input, int threads) {
  if (geometry.in_channels == 4 * geometry.groups) {
    return std::make_unique<GroupedConvolution<kLanes, 4>>(geometry, input, threads);
  }
  return std::make_unique<GroupedConvolution<kLanes, 8>>(geometry, input, threads);
}

}  // namespace

bool grouped_supports(const ConvGeometry& geometry, ConvPass pass) {
  const std::int64_t channels = geometry.in_channels;
  const bool small = channels == 4 * geometry.groups || channels == 8 * geometry.groups;
  const bool one = geometry.stride_h == 1 && geometry.stride_w == 1;
  return geometry.groups > 1 && small && geometry.out_channels == channels &&
         channels % kChannelUnit == 0 && (one || pass != ConvPass::kBackwardData);
}

std::unique_ptr<Convolution> make_grouped_convolution(const ConvGeometry& geometry,
                                                      const Shape& input, int threads, int lanes) {
  LOCKSTEP_CHECK(grouped_supports(geometry, ConvPass::kBackwardWeights), "no direct sums for a ",
                 to_string(geometry));
  LOCKSTEP_CHECK(lanes == 8 || lanes == 16, "no direct sums with vectors of ", lanes,
                 " floats; there are 8 and 16");
  return lanes == 16 ? make<16>(geometry, input, threads) : make<8>(geometry, input, threads);
}

}  // namespace lockstep
