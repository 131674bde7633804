// Our convolutions by themselves (the backend chooses by the clock): against loops in double, their
// accuracy against a direct convolution in fp32, and bits that depend neither on threads nor on the
// width of vectors.

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <string>

#include "backend/cpu/conv/matmul.h"
#include "backend/cpu/conv/winograd.h"
#include "backend/operand.h"

namespace lockstep::test {
namespace {

ConvGeometry conv_3x3(std::int64_t in, std::int64_t out, std::int64_t padding_h,
                      std::int64_t padding_w) {
  ConvGeometry g;
  g.in_channels = in;
  g.out_channels = out;
  g.kernel_h = g.kernel_w = 3;
  g.padding_h = padding_h;
  g.padding_w = padding_w;
  return g;
}

ConvGeometry dilated_3x3(std::int64_t in, std::int64_t out, std::int64_t dilation_h,
                         std::int64_t dilation_w, std::int64_t paddings = 1) {
  ConvGeometry g = conv_3x3(in, out, paddings * dilation_h, paddings * dilation_w);
  g.dilation_h = dilation_h;
  g.dilation_w = dilation_w;
  return g;
}

ConvGeometry conv_1x1(std::int64_t in, std::int64_t out, std::int64_t stride_h = 1,
                      std::int64_t stride_w = 1) {
  ConvGeometry g;
  g.in_channels = in;
  g.out_channels = out;
  g.stride_h = stride_h;
  g.stride_w = stride_w;
  return g;
}

/// Calls visit(x index, weight index, y index) for every product of a convolution of one group.
template <typename Visit>
void for_each_product(const ConvGeometry& g, const Shape& in, const Visit& visit) {
  const Shape out = g.output_shape(in);
  const std::int64_t taps = g.kernel_h * g.kernel_w;
  for (std::int64_t pixel = 0; pixel < out.rows(); ++pixel) {
    const std::int64_t n = pixel / (out.height() * out.width());
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const std::int64_t y = pixel / out.width() % out.height() * g.stride_h +
                             tap / g.kernel_w * g.dilation_h - g.padding_h;
      const std::int64_t x =
          pixel % out.width() * g.stride_w + tap % g.kernel_w * g.dilation_w - g.padding_w;
      if (y < 0 || y >= in.height() || x < 0 || x >= in.width()) continue;
      const std::int64_t row = (n * in.height() + y) * in.width() + x;
      for (std::int64_t o = 0; o < g.out_channels; ++o) {
        for (std::int64_t i = 0; i < g.in_channels; ++i) {
          visit(static_cast<std::size_t>(row * g.in_channels + i),
                static_cast<std::size_t>((o * g.in_channels + i) * taps + tap),
                static_cast<std::size_t>(pixel * g.out_channels + o));
        }
      }
    }
  }
}

/// The three results of a convolution, from random operands.
template <typename Number>
struct ConvResults {
  std::vector<Number> y, grad_x, grad_weight;
  friend bool operator==(const ConvResults&, const ConvResults&) = default;
};

/// Tiles of Winograd's, and the type of tensors.
struct WinogradKind {
  int tile = 2;
  DType dtype = DType::kFloat32;
};
constexpr WinogradKind kWinogradKinds[] = {
    {2, DType::kFloat32}, {4, DType::kFloat32}, {4, DType::kBFloat16}};

struct ConvProblem {
  ConvGeometry geometry;
  Shape in;
  Margins margins = {};  // of x, y and their gradients
  bool with_bias = false;
  bool by_position = false;
  WinogradKind kind = {};
  Shape out = geometry.output_shape(in);
  Values x = stored_values(kind.dtype, random_values(in, 1));
  Values weight = random_values(geometry.weight_shape(), 2, 0.1F);
  Values bias = random_values({1, geometry.out_channels}, 3);
  Values grad_y = stored_values(kind.dtype, random_values(out, 4));
  Values grad_weight = random_values(geometry.weight_shape(), 5);  // is added to
};

/// By loops, every sum in Number.
template <typename Number>
ConvResults<Number> by_loops(const ConvProblem& p) {
  ConvResults<Number> results{std::vector<Number>(p.grad_y.size()), std::vector<Number>(p.x.size()),
                              std::vector<Number>(p.grad_weight.begin(), p.grad_weight.end())};
  for (std::size_t i = 0; i < p.grad_y.size() && p.with_bias; ++i) {
    results.y[i] = static_cast<Number>(p.bias[i % p.bias.size()]);
  }
  for_each_product(p.geometry, p.in, [&](std::size_t x, std::size_t w, std::size_t y) {
    const auto vx = static_cast<Number>(p.x[x]), vw = static_cast<Number>(p.weight[w]),
               vg = static_cast<Number>(p.grad_y[y]);
    results.y[y] += vx * vw;
    results.grad_x[x] += vg * vw;
    results.grad_weight[w] += vg * vx;
  });
  return results;
}

/// Memory that ends where the convolution said it would; filled with NaN, so that nothing can rely
/// on zeros.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes)
      : floats_(bytes / sizeof(float)),
        data_(static_cast<float*>(
            std::aligned_alloc(64, (floats_ * sizeof(float) + 4 * 64) / 64 * 64))) {
    std::fill(data_, data_ + floats_, std::nanf(""));
    std::fill(data_ + floats_, data_ + floats_ + kGuard, kMarker);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }
  void* data() const { return data_; }
  bool guard_untouched() const {
    return std::all_of(data_ + floats_, data_ + floats_ + kGuard,
                       [](float value) { return value == kMarker; });
  }

 private:
  static constexpr std::size_t kGuard = 32;
  static constexpr float kMarker = 54321.0F;
  std::size_t floats_;
  float* data_;
};

std::size_t scratch_bytes(const Convolution& convolution) {
  std::size_t most = 0;
  for (const ConvPass pass :
       {ConvPass::kForward, ConvPass::kBackwardData, ConvPass::kBackwardWeights}) {
    most = std::max(most, convolution.scratch_bytes(pass, true));
  }
  return most;
}

/// Winograd's where it can, unless a product for each position of the kernel is wanted.
std::unique_ptr<Convolution> make_own(const ConvProblem& p, int threads, int lanes) {
  return p.by_position || !winograd_supports(p.geometry)
             ? make_matmul_convolution(p.geometry, p.in, threads, lanes)
             : make_winograd_convolution(p.geometry, p.in, threads, lanes, p.kind.tile,
                                         p.kind.dtype);
}

ConvResults<float> computed(const ConvProblem& p, int threads, int lanes) {
  const auto backend = make_backend(Device{}, 1);
  const TypedBackend on(*backend, p.kind.dtype);
  const auto convolution = make_own(p, threads, lanes);
  const Scratch scratch(scratch_bytes(*convolution));
  const Operand x(on, p.in, p.x, p.margins), y(on, p.out, p.margins);
  const Operand grad_y(on, p.out, p.grad_y, p.margins), grad_x(on, p.in, p.margins);
  Values grad_weight = p.grad_weight;
  convolution->forward(x.tensor(), p.weight.data(), p.with_bias ? p.bias.data() : nullptr,
                       y.tensor(), scratch.data());
  convolution->backward_data(grad_y.tensor(), p.weight.data(), grad_x.tensor(), scratch.data());
  convolution->backward_weights(x.tensor(), grad_y.tensor(), grad_weight.data(), scratch.data());
  CHECK(y.margins_untouched());
  CHECK(grad_x.margins_untouched());
  CHECK(scratch.guard_untouched());
  return {y.get(), grad_x.get(), grad_weight};
}

/// The results in either width: the same bits, near those of loops in double, but for the rounding
/// to the tensors' type.
void check_against_loops(const ConvProblem& p, int threads) {
  const ConvResults<double> expected = by_loops<double>(p);
  const ConvResults<float> results = computed(p, threads, 8);
  const double limit = p.kind.tile == 2 ? 2e-6 : 8e-6;
  CHECK(relative_error(results.y, expected.y, p.kind.dtype) < limit);
  CHECK(relative_error(results.grad_x, expected.grad_x, p.kind.dtype) < limit);
  CHECK(relative_error(results.grad_weight, expected.grad_weight) < limit);
  const ConvResults<float> wide = computed(p, threads, 16);
  CHECK(wide.y == results.y);
  CHECK(wide.grad_x == results.grad_x);
  CHECK(wide.grad_weight == results.grad_weight);
}

TEST_CASE("Winograd convolutions match loops in double at every size") {
  const std::vector<Shape> inputs = {{2, 1, 1, 16}, {1, 1, 2, 16},   {3, 3, 5, 16},
                                     {2, 7, 7, 32}, {1, 22, 30, 48}, {2, 2, 17, 24},
                                     {1, 5, 4, 7},  {2, 6, 9, 1},    {1, 6, 6, 96}};
  for (const Shape& in : inputs) {
    for (const std::int64_t out_channels : {1, 16, 21, 48, 64}) {
      for (const bool strided : {false, true}) {
        CAPTURE(to_string(in));
        CAPTURE(out_channels);
        CAPTURE(strided);
        for (const WinogradKind& kind : kWinogradKinds) {
          CAPTURE(kind.tile);
          CAPTURE(to_string(kind.dtype));
          const ConvProblem p{.geometry = conv_3x3(in.channels(), out_channels, 1, 1),
                              .in = in,
                              .margins = strided ? Margins{3, 2} : Margins{},
                              .with_bias = strided,
                              .kind = kind};
          check_against_loops(p, 1);
        }
      }
    }
  }
}

TEST_CASE("Winograd convolutions with other paddings match loops in double") {
  for (const auto& [h, w] : {std::pair{0, 0}, {2, 2}, {0, 2}, {1, 0}}) {
    for (const Shape& in : {Shape{2, 7, 6, 16}, Shape{1, 3, 8, 16}}) {
      CAPTURE(h);
      CAPTURE(w);
      for (const WinogradKind& kind : kWinogradKinds) {
        CAPTURE(kind.tile);
        CAPTURE(to_string(kind.dtype));
        check_against_loops({.geometry = conv_3x3(16, 16, h, w), .in = in, .kind = kind}, 1);
      }
    }
  }
}

TEST_CASE("dilated Winograd convolutions match loops in double, sub-grids of any size") {
  // Extents below, above and no multiple of the dilation; a sub-grid of one pixel and of none.
  for (const auto& [h, w] : {std::pair{2, 2}, {4, 4}, {1, 3}, {3, 2}}) {
    for (const Shape& in : {Shape{2, 16, 16, 16}, Shape{1, 7, 9, 20}, Shape{2, 3, 2, 16},
                            Shape{1, 1, 5, 16}, Shape{1, 11, 6, 7}}) {
      CAPTURE(h);
      CAPTURE(w);
      CAPTURE(to_string(in));
      for (const bool strided : {false, true}) {
        for (const WinogradKind& kind : kWinogradKinds) {
          CAPTURE(kind.tile);
          CAPTURE(to_string(kind.dtype));
          const ConvProblem p{.geometry = dilated_3x3(in.channels(), 21, h, w),
                              .in = in,
                              .margins = strided ? Margins{3, 2} : Margins{},
                              .with_bias = strided,
                              .kind = kind};
          check_against_loops(p, 2);
        }
      }
    }
  }
  for (const std::int64_t paddings : {0, 2}) {
    CAPTURE(paddings);
    check_against_loops({dilated_3x3(16, 16, 2, 3, paddings), {2, 9, 10, 16}, {}}, 2);
  }
}

TEST_CASE("1x1 convolutions by matrix products match loops in double at every size") {
  for (const Shape& in :
       {Shape{2, 1, 1, 16}, Shape{3, 3, 5, 16}, Shape{2, 7, 7, 32}, Shape{1, 22, 30, 48},
        Shape{1, 5, 4, 7}, Shape{2, 6, 9, 1}, Shape{1, 2, 3, 1040}, Shape{2, 4, 14, 16}}) {
    for (const std::int64_t out_channels : {1, 16, 21, 48, 64}) {
      for (const auto& [h, w] : {std::pair{1, 1}, {2, 2}, {3, 1}}) {
        for (const bool strided : {false, true}) {
          CAPTURE(to_string(in));
          CAPTURE(out_channels);
          CAPTURE(h);
          CAPTURE(strided);
          const ConvProblem p{conv_1x1(in.channels(), out_channels, h, w), in,
                              strided ? Margins{3, 2} : Margins{}, strided};
          check_against_loops(p, 1);
        }
      }
    }
  }
}

TEST_CASE("a 1x1 convolution's gradient of the weights is cut and merged right in every plan") {
  // Several slices of both channels, blocks and parts of an image's pixels, and groups of images.
  const std::vector<std::pair<Shape, std::int64_t>> cases = {
      {{1, 4, 6, 272}, 144}, {{7, 2, 2, 400}, 320}, {{3, 20, 31, 16}, 20}, {{2, 66, 67, 16}, 8}};
  for (const auto& [in, out_channels] : cases) {
    CAPTURE(to_string(in));
    const ConvProblem p{conv_1x1(in.channels(), out_channels), in, {}, true};
    const ConvResults<float> expected = computed(p, 1, 8);
    check_against_loops(p, 2);
    for (const int threads : {2, 3, 16}) {
      for (const int lanes : {8, 16}) CHECK(computed(p, threads, lanes) == expected);
    }
  }
}

TEST_CASE("a product for each position of the kernel matches loops in double") {
  const auto with = [](ConvGeometry g, const auto& change) {
    change(g);
    return g;
  };
  const ConvGeometry same = conv_3x3(20, 24, 1, 1);
  const std::vector<ConvGeometry> geometries = {
      same,
      conv_3x3(16, 33, 0, 2),                                             // nothing is padded above
      with(same, [](auto& g) { g.stride_h = g.stride_w = 2; }),           // as a ResNet's
      with(same, [](auto& g) { g.stride_h = 3, g.padding_w = 0; }),       // uneven
      dilated_3x3(17, 16, 6, 4),                                          // some pixels
      dilated_3x3(16, 40, 12, 24),                                        // the middle row alone
      dilated_3x3(8, 16, 40, 40),                                         // the middle alone
      with(dilated_3x3(8, 16, 40, 40), [](auto& g) { g.stride_w = 2; }),  // of some pixels
      with(conv_1x1(16, 20), [](auto& g) { g.padding_h = 2; }),           // rows of bias alone
      with(conv_1x1(16, 20, 2, 3), [](auto& g) { g.padding_w = 1; }),
      with(same, [](auto& g) { g.kernel_w = 1, g.padding_w = 0; }),
      with(same, [](auto& g) { g.kernel_h = 2, g.kernel_w = 4; })};
  for (const ConvGeometry& g : geometries) {
    for (const auto& [images, height, width] : {std::array{2, 13, 14}, {1, 16, 16}, {5, 3, 5}}) {
      for (const bool strided : {false, true}) {
        CAPTURE(to_string(g));
        CAPTURE(height);
        CAPTURE(strided);
        const ConvProblem p{.geometry = g,
                            .in = {images, height, width, g.in_channels},
                            .margins = strided ? Margins{3, 2} : Margins{},
                            .with_bias = strided,
                            .by_position = true};
        check_against_loops(p, 1);
        CHECK(computed(p, 3, 8) == computed(p, 1, 8));
      }
    }
  }
}

TEST_CASE("padding is skipped where half of the products would be of it") {
  CHECK(matmul_skips_padding(dilated_3x3(16, 16, 12, 12), {8, 16, 16, 16}));
  CHECK(matmul_skips_padding(dilated_3x3(16, 16, 36, 36), {8, 16, 16, 16}));
  CHECK_FALSE(matmul_skips_padding(dilated_3x3(16, 16, 4, 4), {8, 16, 16, 16}));
  CHECK_FALSE(matmul_skips_padding(conv_3x3(16, 16, 1, 1), {8, 16, 16, 16}));
}

TEST_CASE("matrix products give the gradient of the weights of any kernel") {
  ConvGeometry strided = conv_3x3(20, 72, 1, 1), wide = conv_3x3(16, 33, 2, 3),
               dilated = dilated_3x3(80, 16, 3, 2);
  strided.stride_h = strided.stride_w = 2;
  wide.kernel_h = 5;
  wide.kernel_w = 7;
  wide.stride_w = 3;
  for (const ConvGeometry& g : {strided, wide, dilated}) {
    for (const auto& [images, height, width] : {std::array{2, 9, 8}, {7, 5, 11}, {1, 40, 37}}) {
      CAPTURE(to_string(g));
      CAPTURE(height);
      const ConvProblem p{g, Shape{images, height, width, g.in_channels}, Margins{3, 2}};
      const auto backend = make_backend(Device{}, 1);
      const Operand x(*backend, p.in, p.x, p.margins), grad_y(*backend, p.out, p.grad_y, p.margins);
      const auto gradient = [&](int threads, int lanes) {
        const auto convolution = make_matmul_convolution(g, p.in, threads, lanes);
        const Scratch scratch(convolution->scratch_bytes(ConvPass::kBackwardWeights, true));
        Values grad_weight = p.grad_weight;
        convolution->backward_weights(x.tensor(), grad_y.tensor(), grad_weight.data(),
                                      scratch.data());
        CHECK(scratch.guard_untouched());
        if (g.kernel_w == 7) {
          CHECK_THROWS_AS(convolution->forward(x.tensor(), p.weight.data(), nullptr,
                                               grad_y.tensor(), scratch.data()),
                          Error);
        }
        return grad_weight;
      };
      const Values one = gradient(1, 8);
      CHECK(relative_error(one, by_loops<double>(p).grad_weight) < 2e-6);
      for (const int threads : {2, 16}) CHECK(gradient(threads, 16) == one);
    }
  }
}

TEST_CASE("Winograd's gradient of the weights is cut and merged right in every plan") {
  // Several slices of both channels, several blocks, several partial sums of uneven parts, and
  // images that one task adds up.
  const std::vector<std::pair<Shape, std::int64_t>> cases = {
      {{1, 4, 6, 136}, 72}, {{7, 4, 4, 272}, 144}, {{2, 33, 47, 16}, 72}, {{3, 71, 61, 20}, 8}};
  for (const auto& [in, out_channels] : cases) {
    CAPTURE(to_string(in));
    for (const WinogradKind& kind : kWinogradKinds) {
      CAPTURE(kind.tile);
      CAPTURE(to_string(kind.dtype));
      check_against_loops(
          {.geometry = conv_3x3(in.channels(), out_channels, 1, 1), .in = in, .kind = kind}, 2);
    }
  }
}

TEST_CASE("Winograd's kernels are transformed some channels at a time where they are many") {
  // 36 points of 560 channels are 79 KiB for each of 1056: 80 MiB and one more part.
  const ConvProblem p{.geometry = conv_3x3(560, 1056, 1, 1),
                      .in = {1, 3, 4, 560},
                      .with_bias = true,
                      .kind = {4, DType::kBFloat16}};
  check_against_loops(p, 2);
  std::vector<std::int64_t> told(12);
  const auto backend = make_backend(Device{}, 1);
  const TypedBackend on(*backend, p.kind.dtype);
  const auto convolution = make_own(p, 1, 8);
  const Scratch scratch(scratch_bytes(*convolution));
  const Operand x(on, p.in, p.x), y(on, p.out);
  convolution->forward(x.tensor(), p.weight.data(), p.bias.data(), y.tensor(), scratch.data(),
                       [&](std::int64_t begin, std::int64_t end) {
                         for (std::int64_t row = begin; row < end; ++row) {
                           ++told[static_cast<std::size_t>(row)];
                         }
                       });
  // Of every pixel once, when all of its channels are complete.
  CHECK(told == std::vector<std::int64_t>(12, 1));
}

TEST_CASE("Winograd's bits depend on neither threads nor repetition") {
  // The last one has parts of images, of which some numbers of threads take images and some parts.
  for (const Shape& in : {Shape{3, 31, 37, 32}, Shape{1, 5, 7, 80}, Shape{9, 66, 65, 16}}) {
    for (const WinogradKind& kind : kWinogradKinds) {
      CAPTURE(kind.tile);
      CAPTURE(to_string(kind.dtype));
      const ConvProblem p{
          .geometry = conv_3x3(in.channels(), 72, 1, 1), .in = in, .with_bias = true, .kind = kind};
      const ConvResults<float> expected = computed(p, 1, 8);
      for (const int lanes : {8, 16}) {
        CAPTURE(lanes);
        for (const int threads : {1, 2, 5}) CHECK(computed(p, threads, lanes) == expected);
      }
    }
  }
}

TEST_CASE("a smaller batch through the same Winograd convolution is a prefix") {
  const ConvGeometry g = conv_3x3(16, 16, 1, 1);
  const Shape planned{4, 24, 40, 16}, in{1, 24, 40, 16};
  const ConvProblem p{g, in, {}};
  for (const int lanes : {8, 16}) {
    const auto convolution = make_winograd_convolution(g, planned, 2, lanes, 2);
    const Scratch scratch(scratch_bytes(*convolution));
    ConvResults<float> results{Values(p.grad_y.size()), Values(p.x.size()), p.grad_weight};
    ConvProblem copy = p;
    const Tensor x(copy.x.data(), in), grad_y(copy.grad_y.data(), in);
    convolution->forward(x, p.weight.data(), nullptr, Tensor(results.y.data(), in), scratch.data());
    convolution->backward_data(grad_y, p.weight.data(), Tensor(results.grad_x.data(), in),
                               scratch.data());
    convolution->backward_weights(x, grad_y, results.grad_weight.data(), scratch.data());
    CHECK(results == computed(p, 1, lanes));
    CHECK(scratch.guard_untouched());
  }
}

TEST_CASE("an empty batch of a Winograd convolution reads and writes nothing") {
  const ConvGeometry g = conv_3x3(16, 16, 1, 1);
  for (const int lanes : {8, 16}) {
    const auto convolution = make_winograd_convolution(g, {2, 8, 8, 16}, 2, lanes, 2);
    const Scratch scratch(scratch_bytes(*convolution));
    const Tensor empty(nullptr, {0, 8, 8, 16});
    const Values weight(static_cast<std::size_t>(g.weight_elements()), 1.0F);
    Values gradient = weight;
    convolution->forward(empty, weight.data(), nullptr, empty, scratch.data());
    convolution->backward_data(empty, weight.data(), empty, scratch.data());
    convolution->backward_weights(empty, empty, gradient.data(), scratch.data());
    CHECK(gradient == weight);
  }
}

/// Root of the mean square of the error, relative to that of the values.
template <typename Number>
double rms_error(const std::vector<Number>& values, const Doubles& reference) {
  double error = 0, square = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double difference = static_cast<double>(values[i]) - reference[i];
    error += difference * difference;
    square += reference[i] * reference[i];
  }
  return std::sqrt(error / square);
}

TEST_CASE("Winograd is about as accurate as a direct convolution in fp32") {
  for (const WinogradKind& kind : kWinogradKinds) {
    CAPTURE(kind.tile);
    CAPTURE(to_string(kind.dtype));
    ConvProblem p{.geometry = conv_3x3(32, 32, 1, 1), .in = {2, 44, 60, 32}, .kind = kind};
    for (float& value : p.x) value = std::max(value, 0.0F);  // as after a ReLU: sums do not cancel
    const ConvResults<double> exact = by_loops<double>(p);
    const ConvResults<float> direct = by_loops<float>(p);
    const ConvResults<float> results = computed(p, 2, 8);
    const auto check = [&](const Values& values, const Values& loops, const Doubles& expected) {
      CAPTURE(rms_error(loops, expected));
      CHECK(rms_error(values, expected) < (kind.tile == 2 ? 2 : 3) * rms_error(loops, expected));
    };
    check(results.grad_weight, direct.grad_weight, exact.grad_weight);
    if (kind.dtype == DType::kBFloat16) {  // what is stored in bf16 has its rounding, of 2^-9 at
                                           // most, and no other
      CHECK(rms_error(results.y, exact.y) < 0x1p-9);
      CHECK(rms_error(results.grad_x, exact.grad_x) < 0x1p-9);
      continue;
    }
    check(results.y, direct.y, exact.y);
    check(results.grad_x, direct.grad_x, exact.grad_x);
  }
}

TEST_CASE("Winograd's gradients are the adjoints of its convolution") {
  // <conv(x, w), g> = <x, conv_data(g, w)> = <w, conv_weights(x, g)>
  ConvProblem p{conv_3x3(48, 16, 1, 1), {2, 33, 41, 48}, {}};
  std::fill(p.grad_weight.begin(), p.grad_weight.end(), 0.0F);
  const ConvResults<float> results = computed(p, 2, 8);
  const auto dot = [](const Values& a, const Values& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    }
    return sum;
  };
  const double scale = std::sqrt(dot(results.y, results.y) * dot(p.grad_y, p.grad_y));
  const double product = dot(results.y, p.grad_y);
  CHECK(std::abs(product - dot(p.x, results.grad_x)) < 1e-7 * scale);
  CHECK(std::abs(product - dot(p.weight, results.grad_weight)) < 1e-7 * scale);
}

TEST_CASE("geometries that Winograd cannot compute are refused") {
  const ConvGeometry good = conv_3x3(16, 16, 1, 1);
  CHECK(winograd_supports(good));
  const auto refused = [&](auto&& change) {
    ConvGeometry g = good;
    change(g);
    CHECK_FALSE(winograd_supports(g));
    CHECK_FALSE(winograd_pays(g));
    CHECK_THROWS_AS(make_winograd_convolution(g, {1, 16, 16, 16}, 1, 8, 2), Error);
  };
  refused([](ConvGeometry& g) { g.kernel_h = 1; });
  refused([](ConvGeometry& g) { g.kernel_w = 5; });
  refused([](ConvGeometry& g) { g.stride_w = 2; });
  refused([](ConvGeometry& g) { g.dilation_w = 0; });
  refused([](ConvGeometry& g) { g.dilation_h = 2; });  // of padding 1: sub-grids would mix
  refused([](ConvGeometry& g) { g.groups = 2; });
  refused([](ConvGeometry& g) { g.padding_h = 3; });
  CHECK_THROWS_AS(make_winograd_convolution(good, {1, 16, 16, 16}, 1, 4, 2), Error);
  CHECK_THROWS_AS(make_winograd_convolution(good, {1, 16, 16, 16}, 1, 8, 3), Error);
  CHECK_THROWS_AS(make_winograd_convolution(good, {1, 16, 16, 16}, 1, 8, 2, DType::kBFloat16),
                  Error);
  CHECK(winograd_pays(good));
  CHECK(winograd_pays(conv_3x3(48, 16, 1, 1)));
  CHECK_FALSE(winograd_pays(conv_3x3(3, 16, 1, 1)));
  CHECK_FALSE(winograd_pays(conv_3x3(17, 32, 1, 1)));
}

TEST_CASE("passes that are no matrix product are refused") {
  const ConvGeometry good = conv_1x1(16, 16, 2);
  CHECK(matmul_supports(good, ConvPass::kForward));
  const auto only_weights = [&](auto&& change) {
    ConvGeometry g = good;
    change(g);
    CHECK_FALSE(matmul_supports(g, ConvPass::kForward));
    CHECK_FALSE(matmul_supports(g, ConvPass::kBackwardData));
    CHECK(matmul_supports(g, ConvPass::kBackwardWeights));
  };
  only_weights([](ConvGeometry& g) { g.kernel_h = g.kernel_w = 4; });
  only_weights([](ConvGeometry& g) { g.kernel_w = 10; });
  ConvGeometry groups = good;
  groups.groups = 2;
  CHECK_FALSE(matmul_supports(groups, ConvPass::kBackwardWeights));
  CHECK_THROWS_AS(make_matmul_convolution(groups, {1, 16, 16, 16}, 1, 8), Error);
  CHECK_THROWS_AS(make_matmul_convolution(good, {1, 16, 16, 16}, 1, 4), Error);
}

}  // namespace
}  // namespace lockstep::test
