// Evaluations of large images in windows.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "lockstep/lockstep.h"
#include "step/replica.h"

namespace lockstep {
namespace {

constexpr Size kImage{24, 20};
constexpr std::int64_t kClasses = 3;

/// Two 3x3 convolutions: an output looks two pixels around itself.
Outputs near_sighted(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  x = net.conv2d(x, "a", {.out_channels = 6, .kernel = 3, .padding = 1});
  x = norm(net, x, "bn", {.relu = true});
  return {{"out", net.conv2d(x, "head",
                             {.out_channels = kClasses, .kernel = 3, .padding = 1, .bias = true})}};
}

/// Two images, whose last row and column fill them up.
Batch batch_of(std::int64_t index) {
  std::mt19937 random(static_cast<unsigned>(index));
  std::normal_distribution<float> normal;
  Batch batch;
  batch.samples = {2 * index, 2 * index + 1};
  batch.size = kImage;
  batch.image = {kImage.height - 1, kImage.width - 1};
  for (int n = 0; n < 2; ++n) {
    for (int y = 0; y < kImage.height; ++y) {
      for (int x = 0; x < kImage.width; ++x) {
        const bool fills = y == batch.image.height || x == batch.image.width;
        for (int c = 0; c < 3; ++c) batch.images.push_back(fills ? 0 : normal(random));
        batch.labels.push_back(fills ? 255 : static_cast<Label>(random() % kClasses));
      }
    }
  }
  return batch;
}

DataParallel trained(const NormLayer& norm, const char* devices) {
  DataParallel net({.devices = parse_devices(devices),
                    .model = near_sighted,
                    .norm = norm,
                    .input = {2, kImage.height, kImage.width, 3},
                    .losses = {{"out", CrossEntropyLoss{}}},
                    .optimizer = Sgd{.lr = 0.1F},
                    .placement_invariant = true});
  for (int step = 0; step < 4; ++step) net.train_step(batch_of(step), step);
  return net;
}

DataParallel::EvalResult evaluate(DataParallel& net, const WindowOptions& windows,
                                  EvalNormalizer by = EvalNormalizer::kRunning) {
  return net.evaluate(5, [](std::int64_t index) { return batch_of(10 + index); }, {by, windows});
}

}  // namespace

TEST_CASE("windows: one as large as the image is the evaluation in one piece") {
  DataParallel net = trained(SyncBatchNorm(), "cpu:1");
  const auto whole = evaluate(net, {});
  const auto window = evaluate(net, {.window = kImage, .divisor = 4});
  CHECK(window.confusion == whole.confusion);
  CHECK(window.loss == doctest::Approx(whole.loss).epsilon(1e-5));
  CHECK(window.mismatch.pixels == 0);
  CHECK(whole.mismatch.pixels == 0);
}

TEST_CASE("windows: cropped ones of running statistics give the map of one piece") {
  DataParallel net = trained(SyncBatchNorm(), "cpu:1");
  const auto whole = evaluate(net, {});
  for (const int divisor : {2, 4}) {
    const auto near = evaluate(net, {.window = {12, 8}, .overlap = 0.5, .divisor = divisor});
    CHECK(near.confusion == whole.confusion);
    CHECK(near.loss == doctest::Approx(whole.loss).epsilon(1e-5));
    CHECK(near.mismatch.pixels > 0);
    CHECK(near.mismatch.difference > 0);  // at the borders of windows, which are cut off
  }
  // Without an overlap borders are left, and a mean of all keeps them.
  CHECK(evaluate(net, {.window = {12, 8}, .overlap = 0, .divisor = 4}).confusion !=
        whole.confusion);
  const WindowOptions flat{.window = {12, 8}, .overlap = 0.5, .blend = Blend::kFlat, .divisor = 4};
  CHECK(evaluate(net, flat).loss != doctest::Approx(whole.loss).epsilon(1e-5));
}

TEST_CASE("windows: no blending gives the map of one piece where images normalise themselves") {
  DataParallel net = trained(SyncBatchNorm(), "cpu:1");
  const auto whole = evaluate(net, {}, EvalNormalizer::kOwn);
  for (const Blend blend : {Blend::kCrop, Blend::kGaussian, Blend::kFlat}) {
    const WindowOptions windows{.window = {12, 8}, .overlap = 0.5, .blend = blend, .divisor = 4};
    CHECK(evaluate(net, windows, EvalNormalizer::kOwn).confusion != whole.confusion);
  }
}

TEST_CASE("windows: devices change no bit") {
  DataParallel one = trained(SyncBatchNorm(), "cpu:1"), three = trained(SyncBatchNorm(), "cpu:3");
  for (const Blend blend : {Blend::kCrop, Blend::kGaussian, Blend::kFlat}) {
    const WindowOptions windows{.window = {12, 8}, .overlap = 0.5, .blend = blend, .divisor = 4};
    const auto a = evaluate(one, windows), b = evaluate(three, windows);
    CHECK(a.confusion == b.confusion);
    CHECK(a.loss == b.loss);
    CHECK(a.mismatch.difference == b.mismatch.difference);
    CHECK(a.mismatch.other_class == b.mismatch.other_class);
  }
}

TEST_CASE("windows: what does not fit is said, and the next evaluation may be right") {
  DataParallel net = trained(SyncBatchNorm(), "cpu:1");
  const auto load = [](std::int64_t index) {
    Batch batch = batch_of(index);
    batch.size = {12, 20};
    batch.image = {};
    batch.images.resize(batch.images.size() / 2);
    batch.labels.resize(batch.labels.size() / 2);
    return batch;
  };
  CHECK_THROWS_AS(net.evaluate(1, load, {.windows = {.window = {8, 8}, .divisor = 8}}), Error);
  CHECK_THROWS_AS(net.evaluate(1, load, {.windows = {.window = {4, 4}, .divisor = 8}}),
                  ConfigError);
  CHECK(evaluate(net, {.window = {12, 8}}).mismatch.pixels > 0);
}

TEST_CASE("windows: a batch without all of its images is refused, as it is in one piece") {
  DataParallel net = trained(SyncBatchNorm(), "cpu:1");
  const auto load = [](std::int64_t index) {
    Batch batch = batch_of(index);
    batch.images.resize(10);
    return batch;
  };
  for (const WindowOptions& windows : {WindowOptions{}, WindowOptions{.window = {12, 8}}}) {
    CHECK_THROWS_WITH_AS(net.evaluate(1, load, {.windows = windows}),
                         doctest::Contains("expected 2880 values of images"), Error);
  }
}

TEST_CASE("windows: a class that is ignored is in no confusion matrix, as it is in one piece") {
  DataParallel net({.devices = parse_devices("cpu:2"),
                    .model = near_sighted,
                    .norm = SyncBatchNorm(),
                    .input = {2, kImage.height, kImage.width, 3},
                    .losses = {{"out", CrossEntropyLoss{.ignore_index = 1}}}});
  const auto load = [](std::int64_t index) {
    Batch batch = batch_of(index);
    std::ranges::replace(batch.labels, Label{255}, Label{1});
    return batch;
  };
  const auto whole = net.evaluate(3, load);
  const auto windows = net.evaluate(3, load, {.windows = {.window = kImage, .divisor = 4}});
  CHECK(whole.confusion == windows.confusion);
  CHECK(whole.confusion[0] + whole.confusion[1] + whole.confusion[2] > 0);
  for (int predicted = 0; predicted < 3; ++predicted) CHECK(whole.confusion[3 + predicted] == 0);
}

namespace {

/// How far from the middle pixel outputs change with it: both ways, along both sides.
std::int64_t measured_radius(const Model& model, const TensorMap& weights, int side) {
  Predictor predictor(model, weights);
  const Shape shape{1, side, side, 3};
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> images(static_cast<std::size_t>(shape.elements()));
  for (float& value : images) value = normal(random);
  const Prediction said = predictor.predict(images, shape);
  const std::vector<float> before(said.logits.begin(), said.logits.end());
  const std::int64_t classes = said.shape.channels();
  std::int64_t radius = 0;
  for (int shift = 0; shift < 8; ++shift) {  // a stride treats neighbours differently
    const std::int64_t y = side / 2 + shift, x = side / 2 - shift;
    std::vector<float> changed = images;
    for (int c = 0; c < 3; ++c) changed[static_cast<std::size_t>((y * side + x) * 3 + c)] += 100;
    const Prediction now = predictor.predict(changed, shape);
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (now.logits[i] == before[i]) continue;
      const std::int64_t pixel = static_cast<std::int64_t>(i) / classes;
      radius = std::max({radius, std::abs(pixel / side - y), std::abs(pixel % side - x)});
    }
  }
  return radius;
}

}  // namespace

TEST_CASE("windows: how far a network looks is what its outputs show") {
  const auto conv = [](NetworkBuilder& net, Value* x, const char* name, Conv2dOptions options) {
    options.out_channels = 3;  // so few channels are computed pixel by pixel
    return net.conv2d(x, name, options);
  };
  const auto model = [&](auto body) -> Model {
    return [=](NetworkBuilder& net, Value* x, const NormLayer& norm) -> Outputs {
      return {
          {"out", conv(net, norm(net, body(net, x), "bn"), "head", {.kernel = 1, .bias = true})}};
    };
  };
  struct Case {
    Model model;
    std::int64_t radius, divisor;
  };
  const Case cases[] = {
      {model([&](NetworkBuilder& net, Value* x) {
         return conv(net, x, "a", {.kernel = 3, .padding = 1});
       }),
       1, 1},
      {model([&](NetworkBuilder& net, Value* x) {
         return conv(net, x, "a", {.kernel = 5, .padding = 6, .dilation = 3});
       }),
       6, 1},
      {model([&](NetworkBuilder& net, Value* x) {
         Value* half = conv(net, x, "a", {.kernel = 3, .stride = 2, .padding = 1});
         half = conv(net, half, "b", {.kernel = 3, .padding = 1});
         return net.add(x, net.upsample_bilinear(half, x, false));
       }),
       5, 2},
      {model([&](NetworkBuilder& net, Value* x) {
         Value* half =
             net.max_pool2d(x, {.kernel_h = 3, .kernel_w = 3, .padding_h = 1, .padding_w = 1});
         return net.conv_transpose2d(half, "up",
                                     {.out_channels = 3, .kernel = 4, .stride = 2, .padding = 1});
       }),
       3, 2}};
  for (const Case& one : cases) {
    DataParallel net({.devices = parse_devices("cpu:1"),
                      .model = one.model,
                      .norm = BatchNorm2d(),
                      .input = {1, 48, 48, 3},
                      .losses = {{"out", CrossEntropyLoss{}}},
                      .optimizer = Sgd{}});
    const Network& network = net.replica(0).network();
    CHECK(network.receptive_radius(0, one.divisor) == one.radius);
    CHECK(measured_radius(one.model, net.state_dict(), 48) == one.radius);
  }
}

TEST_CASE("windows: who pools or normalises the image looks at all of it") {
  const auto radius = [](const Model& model, const NormLayer& norm) {
    DataParallel net({.devices = parse_devices("cpu:1"),
                      .model = model,
                      .norm = norm,
                      .input = {1, 16, 16, 3},
                      .losses = {{"out", CrossEntropyLoss{}}},
                      .optimizer = Sgd{}});
    return net.replica(0).network().receptive_radius(0, 1);
  };
  const auto pooled = [](NetworkBuilder& net, Value* x, const NormLayer&) -> Outputs {
    x = net.conv2d(x, "a", {.out_channels = 3, .kernel = 1});
    return {{"out", net.add(x, net.adaptive_avg_pool2d(x, 1, 1))}};
  };
  CHECK_FALSE(radius(pooled, BatchNorm2d()).has_value());
  CHECK_FALSE(radius(near_sighted, InstanceNorm()).has_value());
  CHECK(radius(near_sighted, SyncBatchNorm()) == 2);
}

}  // namespace lockstep
