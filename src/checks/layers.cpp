// What layers and losses compute, against plain loops in double. (Gradients are compared with
// differences of the layer itself, which a layer that computes something else would pass.)

#include <algorithm>
#include <cmath>
#include <limits>

#include "checks/probe.h"
#include "core/rng.h"
#include "lockstep/core/check.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

/// A few roundings of fp32, as in BatchNorm's checks.
constexpr double kLayerTolerance =
    64.0 * static_cast<double>(std::numeric_limits<float>::epsilon());

/// [N, H, W, C] in double. What is outside an image is 0.
struct Image {
  std::int64_t n = 0, h = 0, w = 0, c = 0;
  Doubles values = {};

  Image(std::int64_t images, std::int64_t height, std::int64_t width, std::int64_t channels)
      : n(images),
        h(height),
        w(width),
        c(channels),
        values(static_cast<std::size_t>(n * h * w * c)) {}
  bool contains(std::int64_t y, std::int64_t x) const { return y >= 0 && y < h && x >= 0 && x < w; }
  double& at(std::int64_t i, std::int64_t y, std::int64_t x, std::int64_t k) {
    return values[static_cast<std::size_t>(((i * h + y) * w + x) * c + k)];
  }
  double at(std::int64_t i, std::int64_t y, std::int64_t x, std::int64_t k) const {
    return values[static_cast<std::size_t>(((i * h + y) * w + x) * c + k)];
  }
  /// Every element is `element(image, y, x, channel)`.
  template <typename Element>
  const Image& fill(const Element& element) {
    std::size_t to = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t y = 0; y < h; ++y) {
        for (std::int64_t x = 0; x < w; ++x) {
          for (std::int64_t k = 0; k < c; ++k) values[to++] = element(i, y, x, k);
        }
      }
    }
    return *this;
  }
};

using Reference = std::function<Image(const Image& x, const NamedFloats& parameters)>;

struct LayerCase {
  std::string name;
  Shape input;
  std::function<Value*(NetworkBuilder& net, Value* x)> describe;
  Reference reference;
};

Measured check_output(const LayerCase& c, const std::vector<Device>& devices) {
  const Model model = [&c](NetworkBuilder& net, Value* x, const NormLayer&) -> Outputs {
    return {{"out", c.describe(net, x)}};
  };
  Probe probe({.devices = devices, .model = model, .input = c.input});
  const Floats input = normal_floats(c.input.elements(), 1);
  Image x(c.input.batch(), c.input.height(), c.input.width(), c.input.channels());
  x.values = widen(input);
  const Image expected = c.reference(x, probe.random_parameters());
  return difference(std::span<const float>(probe.forward(input)), expected.values);
}

Image convolve(const Image& x, const Conv2dOptions& o, const NamedFloats& parameters) {
  const Floats& weight = parameters.at("conv.weight");  // [out, in / groups, kernel, kernel]
  const std::int64_t reach = o.dilation * (o.kernel - 1);
  const std::int64_t in = x.c / o.groups, out = o.out_channels / o.groups;
  Image y(x.n, (x.h + 2 * o.padding - reach - 1) / o.stride + 1,
          (x.w + 2 * o.padding - reach - 1) / o.stride + 1, o.out_channels);
  return y.fill([&](std::int64_t i, std::int64_t row, std::int64_t column, std::int64_t k) {
    double sum =
        o.bias ? static_cast<double>(parameters.at("conv.bias")[static_cast<std::size_t>(k)]) : 0;
    for (std::int64_t c = 0; c < in; ++c) {
      for (std::int64_t p = 0; p < o.kernel * o.kernel; ++p) {
        const std::int64_t from_y = row * o.stride - o.padding + p / o.kernel * o.dilation;
        const std::int64_t from_x = column * o.stride - o.padding + p % o.kernel * o.dilation;
        if (!x.contains(from_y, from_x)) continue;
        const auto at = static_cast<std::size_t>((k * in + c) * o.kernel * o.kernel + p);
        sum += static_cast<double>(weight[at]) * x.at(i, from_y, from_x, k / out * in + c);
      }
    }
    return sum;
  });
}

LayerCase convolution(const std::string& name, const Shape& input, const Conv2dOptions& options) {
  return {"conv2d, " + name, input,
          [options](NetworkBuilder& net, Value* x) { return net.conv2d(x, "conv", options); },
          [options](const Image& x, const NamedFloats& parameters) {
            return convolve(x, options, parameters);
          }};
}

/// Over windows of 3x3 that begin at every second position, and one outside.
Image pool(const Image& x, bool maximum) {
  Image y(x.n, (x.h + 1) / 2, (x.w + 1) / 2, x.c);
  return y.fill([&](std::int64_t i, std::int64_t row, std::int64_t column, std::int64_t k) {
    double sum = 0, largest = -std::numeric_limits<double>::infinity();
    for (int p = 0; p < 9; ++p) {
      const std::int64_t from_y = 2 * row - 1 + p / 3, from_x = 2 * column - 1 + p % 3;
      if (!x.contains(from_y, from_x)) continue;
      sum += x.at(i, from_y, from_x, k);
      largest = std::max(largest, x.at(i, from_y, from_x, k));
    }
    return maximum ? largest : sum / 9;
  });
}

Image adaptive_average(const Image& x, std::int64_t h, std::int64_t w) {
  Image y(x.n, h, w, x.c);
  return y.fill([&](std::int64_t i, std::int64_t row, std::int64_t column, std::int64_t k) {
    const std::int64_t top = row * x.h / h, bottom = ((row + 1) * x.h + h - 1) / h;
    const std::int64_t left = column * x.w / w, right = ((column + 1) * x.w + w - 1) / w;
    double sum = 0;
    for (std::int64_t from_y = top; from_y < bottom; ++from_y) {
      for (std::int64_t from_x = left; from_x < right; ++from_x) sum += x.at(i, from_y, from_x, k);
    }
    return sum / static_cast<double>((bottom - top) * (right - left));
  });
}

/// Where output position `at` lies among the input's.
double source(std::int64_t at, std::int64_t input, std::int64_t output, bool align_corners) {
  if (align_corners) return static_cast<double>(at * (input - 1)) / static_cast<double>(output - 1);
  const double ratio = static_cast<double>(input) / static_cast<double>(output);
  return std::max(0.0, (static_cast<double>(at) + 0.5) * ratio - 0.5);
}

Image upsample(const Image& x, std::int64_t h, std::int64_t w, bool align_corners) {
  Image y(x.n, h, w, x.c);
  return y.fill([&](std::int64_t i, std::int64_t row, std::int64_t column, std::int64_t k) {
    const double from_y = source(row, x.h, h, align_corners);
    const double from_x = source(column, x.w, w, align_corners);
    const auto top = static_cast<std::int64_t>(from_y), left = static_cast<std::int64_t>(from_x);
    const std::int64_t bottom = std::min(top + 1, x.h - 1), right = std::min(left + 1, x.w - 1);
    const double below = from_y - static_cast<double>(top);
    const double beside = from_x - static_cast<double>(left);
    return (1 - below) * ((1 - beside) * x.at(i, top, left, k) + beside * x.at(i, top, right, k)) +
           below * ((1 - beside) * x.at(i, bottom, left, k) + beside * x.at(i, bottom, right, k));
  });
}

std::vector<LayerCase> layer_cases() {
  const auto upsampled = [](bool align) -> LayerCase {
    return {
        align ? "upsample_bilinear, align_corners" : "upsample_bilinear",
        {2, 5, 4, 3},
        [align](NetworkBuilder& net, Value* x) { return net.upsample_bilinear(x, 9, 11, align); },
        [align](const Image& x, const NamedFloats&) { return upsample(x, 9, 11, align); }};
  };
  const Shape odd{2, 7, 6, 4};
  return {
      convolution("3x3, 16 channels", {2, 13, 10, 16},
                  {.out_channels = 16, .kernel = 3, .padding = 1}),
      convolution("stride 2, bias", odd,
                  {.out_channels = 6, .kernel = 3, .stride = 2, .padding = 1, .bias = true}),
      convolution("dilation 2", odd, {.out_channels = 5, .kernel = 3, .padding = 2, .dilation = 2}),
      convolution("2 groups, bias", odd,
                  {.out_channels = 6, .kernel = 3, .padding = 1, .groups = 2, .bias = true}),
      convolution("1x1", odd, {.out_channels = 3}),
      {"max_pool2d",
       {2, 6, 7, 3},
       [](NetworkBuilder& net, Value* x) {
         return net.max_pool2d(x, {3, 3, 2, 2, 1, 1});
       },
       [](const Image& x, const NamedFloats&) { return pool(x, true); }},
      {"avg_pool2d",
       {2, 6, 7, 3},
       [](NetworkBuilder& net, Value* x) {
         return net.avg_pool2d(x, {3, 3, 2, 2, 1, 1});
       },
       [](const Image& x, const NamedFloats&) { return pool(x, false); }},
      {"adaptive_avg_pool2d, uneven bins",
       {2, 7, 5, 3},
       [](NetworkBuilder& net, Value* x) { return net.adaptive_avg_pool2d(x, 3, 2); },
       [](const Image& x, const NamedFloats&) { return adaptive_average(x, 3, 2); }},
      upsampled(true),
      upsampled(false),
  };
}

// --- losses: of the input as it is, on devices that have other numbers of valid positions ---

constexpr std::int64_t kLayerSamples = 7, kLayerPositions = 6, kLayerClasses = 4;
constexpr int kLayerIgnored = 9;
constexpr float kLossWeight = 0.5F;  // of the loss in the sum of all

Outputs scaled(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  return {{"out", norm(net, x, "bn")}};
}

/// The logits: frozen BatchNorm as it begins divides by sqrt(1 + eps), and does nothing else.
double logit(float x) { return static_cast<double>(x) / std::sqrt(1.0 + 1e-5); }

Measured check_loss(const Loss& loss, const Batch& batch, double expected,
                    const std::vector<Device>& devices) {
  DataParallel net({.devices = devices,
                    .model = scaled,
                    .norm = FrozenBatchNorm(),
                    .input = {kLayerSamples, kLayerPositions, kLayerClasses},
                    .losses = {{"out", loss}}});
  const double weighted = static_cast<double>(kLossWeight) * expected;
  return difference(Doubles{net.train_step(batch, 0, 0.0F).loss}, Doubles{weighted});
}

Batch logits_batch() {
  Batch batch;
  batch.images = normal_floats(kLayerSamples * kLayerPositions * kLayerClasses, 1);
  for (std::int64_t n = 0; n < kLayerSamples; ++n) batch.samples.push_back(n);
  return batch;
}

Measured check_cross_entropy(const std::vector<Device>& devices) {
  const CrossEntropyLoss loss{
      .weight = kLossWeight, .class_weight = {0.5F, 2, 1, 1.5F}, .ignore_index = kLayerIgnored};
  Batch batch = logits_batch();
  Rng rng(5, RngPurpose::kTest, 0);
  double sum = 0, weights = 0;
  for (std::size_t i = 0; i < kLayerSamples * kLayerPositions; ++i) {
    // The more are ignored the higher a sample's number.
    const bool ignored = rng.below(kLayerSamples) < i / kLayerPositions;
    const std::uint32_t label = ignored ? kLayerIgnored : rng.below(kLayerClasses);
    batch.labels.push_back(static_cast<Label>(label));
    if (ignored) continue;
    const float* x = batch.images.data() + i * kLayerClasses;
    double exponentials = 0;
    for (std::int64_t c = 0; c < kLayerClasses; ++c) exponentials += std::exp(logit(x[c]));
    const auto weight = static_cast<double>(loss.class_weight[label]);
    sum += weight * (std::log(exponentials) - logit(x[label]));
    weights += weight;
  }
  return check_loss(loss, batch, sum / weights, devices);
}

Measured check_squared_error(const std::vector<Device>& devices) {
  Batch batch = logits_batch();
  Floats& targets = batch.targets["out"];
  targets = normal_floats(kLayerSamples * kLayerPositions * kLayerClasses, 2);
  double sum = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    sum += std::pow(logit(batch.images[i]) - static_cast<double>(targets[i]), 2);
  }
  return check_loss(MeanSquaredErrorLoss{.weight = kLossWeight}, batch,
                    sum / static_cast<double>(targets.size()), devices);
}

}  // namespace

SelftestChecks layer_checks(const SelftestDevices& devices) {
  const std::vector<Device> one = devices.replicas(1), several = devices.several();
  SelftestChecks checks;
  for (const LayerCase& c : layer_cases()) {
    checks.push_back({"layers", c.name, "outputs, plain loops in double", kLayerTolerance,
                      [c, one] { return check_output(c, one); }});
  }
  checks.push_back({"layers", "cross_entropy, class weights, ignored",
                    "loss, plain loops in double", kLayerTolerance,
                    [several] { return check_cross_entropy(several); }});
  checks.push_back({"layers", "mean squared error", "loss, plain loops in double", kLayerTolerance,
                    [several] { return check_squared_error(several); }});
  return checks;
}

}  // namespace lockstep
