#include "data/augment.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "data/fixtures.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// A sample whose colour says its label, so that a test sees whether labels follow the image.
Sample telling_sample(Size size) {
  Sample sample;
  sample.labels = random_labels(size, 10, 7);
  sample.image = {size.height, size.width, {}};
  for (const Label label : sample.labels.pixels) {
    sample.image.pixels.insert(sample.image.pixels.end(), 3, static_cast<std::uint8_t>(label * 20));
  }
  return sample;
}

DataOptions plain_options() {
  DataOptions options;
  options.mean = {0, 0, 0};
  options.std = {1, 1, 1};
  options.num_classes = 11;
  options.ignore_index = 77;
  return options;
}

struct Result {
  std::vector<float> image;
  std::vector<Label> labels;
};

Result augment(const DataOptions& options, const Sample& sample, Size size, std::int64_t index = 0,
               std::int64_t epoch = 0, std::uint64_t seed = 1) {
  const auto pixels = static_cast<std::size_t>(size.height * size.width);
  Result result{std::vector<float>(pixels * 3, -9), std::vector<Label>(pixels, 99)};
  Augmenter(options, seed, size)
      .apply(sample, index, epoch, result.image.data(), result.labels.data());
  return result;
}

TEST_CASE("without augmentation a sample is normalised and nothing else") {
  DataOptions options = plain_options();
  options.mean = {0.5F, 0.25F, 0};
  options.std = {0.5F, 2, 1};
  const Sample sample{random_image({3, 4}, 1), random_labels({3, 4}, 3, 1)};
  const Result result = augment(options, sample, {3, 4});
  CHECK(result.labels == sample.labels.pixels);
  for (std::size_t i = 0; i < result.image.size(); ++i) {
    const double x = sample.image.pixels[i] / 255.0;
    const double expected = i % 3 == 0 ? (x - 0.5) / 0.5 : i % 3 == 1 ? (x - 0.25) / 2 : x;
    CHECK(std::abs(static_cast<double>(result.image[i]) - expected) < 1e-6);
  }
}

TEST_CASE("labels follow the image through crop and flip") {
  DataOptions options = plain_options();
  options.augment = AugmentOptions{.crop = Size{5, 6}, .hflip = 0.5F};
  const Sample sample = telling_sample({9, 11});
  for (std::int64_t index = 0; index < 30; ++index) {
    const Result result = augment(options, sample, {5, 6}, index);
    for (std::size_t i = 0; i < result.labels.size(); ++i) {
      CHECK(std::lround(result.image[i * 3] * 255) == result.labels[i] * 20);
    }
  }
}

TEST_CASE("a flip mirrors the columns") {
  DataOptions options = plain_options();
  options.augment = AugmentOptions{.hflip = 1};
  const Sample sample{random_image({2, 5}, 3), random_labels({2, 5}, 9, 3)};
  const Result result = augment(options, sample, {2, 5});
  for (std::size_t y = 0; y < 2; ++y) {
    for (std::size_t x = 0; x < 5; ++x) {
      CHECK(result.labels[y * 5 + x] == sample.labels.pixels[y * 5 + 4 - x]);
      for (std::size_t c = 0; c < 3; ++c) {
        const std::uint8_t expected = sample.image.pixels[(y * 5 + 4 - x) * 3 + c];
        CHECK(std::lround(result.image[(y * 5 + x) * 3 + c] * 255) == expected);
      }
    }
  }
}

TEST_CASE("labels follow the image through scaling: large areas stay together") {
  DataOptions options = plain_options();
  options.augment =
      AugmentOptions{.crop = Size{20, 20}, .scale_lo = 0.6F, .scale_hi = 2, .hflip = 0.5F};
  Sample sample;
  sample.image = {24, 32, std::vector<std::uint8_t>(24 * 32 * 3)};
  sample.labels = {24, 32, std::vector<Label>(24 * 32)};
  for (std::size_t i = 0; i < sample.labels.pixels.size(); ++i) {
    const bool right = i % 32 >= 16;
    sample.labels.pixels[i] = right;
    for (std::size_t c = 0; c < 3; ++c) sample.image.pixels[i * 3 + c] = right ? 200 : 0;
  }
  for (std::int64_t index = 0; index < 30; ++index) {
    const Result result = augment(options, sample, {20, 20}, index);
    for (std::size_t i = 0; i < result.labels.size(); ++i) {
      const float value = result.image[i * 3] * 255;
      if (result.labels[i] == 77 || std::abs(value - 100) < 2) continue;  // padded, or on the edge
      const bool bright = value > 100;
      CHECK(bright == (result.labels[i] == 1));
    }
  }
}

TEST_CASE(
    "a crop larger than the image pads right and bottom with the mean colour and ignore_index") {
  DataOptions options = plain_options();
  options.mean = {0.4F, 0.4F, 0.4F};
  options.augment = AugmentOptions{.crop = Size{5, 7}, .hflip = 1};
  const Sample sample = telling_sample({3, 4});
  const Result result = augment(options, sample, {5, 7});
  for (std::size_t y = 0; y < 5; ++y) {
    for (std::size_t x = 0; x < 7; ++x) {
      const bool inside = y < 3 && x < 4;
      CHECK((result.labels[y * 7 + x] == 77) == !inside);
      if (!inside) CHECK(result.image[(y * 7 + x) * 3 + 1] == 0.0F);
    }
  }
}

TEST_CASE("draws stay in their ranges, spread over them, and depend on sample, epoch and seed") {
  const AugmentOptions options{
      .crop = Size{50, 60}, .scale_lo = 0.5F, .scale_hi = 2, .hflip = 0.25F};
  int flips = 0;
  int top = 0;
  int bottom = 0;
  double scale_sum = 0;
  constexpr int kCount = 2000;
  for (int i = 0; i < kCount; ++i) {
    const AugmentDraw draw = draw_augment(options, {100, 100}, 5, i, 0);
    flips += draw.flip;
    CHECK(draw.scaled.height == draw.scaled.width);
    CHECK(draw.scaled.height >= 50);
    CHECK(draw.scaled.height <= 200);
    CHECK(draw.window.size == Size{50, std::min(60, draw.scaled.width)});
    CHECK(draw.window.top + 50 <= draw.scaled.height);
    CHECK(draw.window.left >= 0);
    CHECK(std::abs(draw.hue_shift) <= 18);
    CHECK(std::abs(draw.brightness_shift) <= 32);
    scale_sum += draw.scaled.height / 100.0;
    top += draw.window.top == 0;
    bottom += draw.window.top == draw.scaled.height - 50;
  }
  CHECK(std::abs(flips / double{kCount} - 0.25) < 0.03);
  CHECK(std::abs(scale_sum / kCount - 1.25) < 0.04);
  CHECK(top > 10);
  CHECK(bottom > 10);
  const auto left = [&](std::uint64_t seed, std::int64_t sample, std::int64_t epoch) {
    const AugmentDraw draw = draw_augment(options, {1000, 1000}, seed, sample, epoch);
    return std::pair(draw.window.left, draw.scaled.height);
  };
  CHECK(left(1, 2, 3) == left(1, 2, 3));
  CHECK(left(1, 2, 3) != left(2, 2, 3));
  CHECK(left(1, 2, 3) != left(1, 3, 3));
  CHECK(left(1, 2, 3) != left(1, 2, 4));
}

TEST_CASE("switching one augmentation on leaves the others' numbers alone") {
  AugmentOptions options{.crop = Size{50, 60}, .hflip = 0.5F};
  const AugmentDraw plain = draw_augment(options, {100, 100}, 5, 9, 1);
  options.photometric = options.rotate90 = true;
  options.hflip = options.vflip = 1;
  const AugmentDraw more = draw_augment(options, {100, 100}, 5, 9, 1);
  CHECK(plain.window.top == more.window.top);
  CHECK(plain.window.left == more.window.left);
  CHECK(plain.hue_shift == more.hue_shift);
}

// The numbers are those of Philox in another program.
TEST_CASE("a draw of every seed, sample and epoch is what it was in the first version") {
  AugmentOptions options{.crop = Size{50, 60}, .scale_lo = 0.5F, .scale_hi = 2, .hflip = 0.5F};
  for (const float vflip : {0.0F, 1.0F}) {
    options.vflip = vflip;
    const AugmentDraw draw = draw_augment(options, {1000, 2000}, 5, 10, 1);
    CHECK(draw.scaled == Size{1703, 3406});
    CHECK(draw.window.top == 724);
    CHECK(draw.window.left == 3234);
    CHECK(draw.flip);
    CHECK(draw.vflip == (vflip == 1));
    CHECK(draw.hue_shift == doctest::Approx(-10.0632792));
  }
}

/// [row, column] turned to the left, as numpy.rot90 does.
std::vector<Label> turned(const std::vector<Label>& labels, std::size_t side, int times) {
  std::vector<Label> now = labels;
  for (int t = 0; t < times; ++t) {
    const std::vector<Label> before = now;
    for (std::size_t y = 0; y < side; ++y) {
      for (std::size_t x = 0; x < side; ++x) now[y * side + x] = before[x * side + side - 1 - y];
    }
  }
  return now;
}

TEST_CASE("images are turned by each of four angles equally often, and labels follow") {
  DataOptions options = plain_options();
  options.augment = AugmentOptions{.rotate90 = true};
  const Sample sample = telling_sample({3, 3});
  std::vector<int> times(4, 0);
  constexpr int kCount = 800;
  for (std::int64_t index = 0; index < kCount; ++index) {
    const Result result = augment(options, sample, {3, 3}, index);
    for (int turns = 0; turns < 4; ++turns)
      times[static_cast<std::size_t>(turns)] +=
          result.labels == turned(sample.labels.pixels, 3, turns);
    for (std::size_t i = 0; i < result.labels.size(); ++i)
      CHECK(std::lround(result.image[i * 3] * 255) == result.labels[i] * 20);
  }
  CHECK(times[0] + times[1] + times[2] + times[3] == kCount);
  for (const int count : times) CHECK(std::abs(count - kCount / 4) < 50);
}

TEST_CASE("an image that is not square is turned within a square, and a vertical flip mirrors it") {
  DataOptions options = plain_options();
  options.augment = AugmentOptions{.vflip = 1, .rotate90 = true};
  const Sample sample = telling_sample({2, 3});
  int lying = 0;
  for (std::int64_t index = 0; index < 100; ++index) {
    const Result result = augment(options, sample, {3, 3}, index);
    const bool lies = result.labels[6] == 77;
    lying += lies;
    CHECK((result.labels[2] == 77) == !lies);
    for (std::size_t i = 0; i < result.labels.size(); ++i) {
      if (result.labels[i] != 77)
        CHECK(std::lround(result.image[i * 3] * 255) == result.labels[i] * 20);
    }
  }
  CHECK(std::abs(lying - 50) < 20);
  options.augment = AugmentOptions{.vflip = 1};
  const Result flipped = augment(options, sample, {2, 3});
  const std::vector<Label>& labels = sample.labels.pixels;
  CHECK(flipped.labels ==
        std::vector<Label>{labels[3], labels[4], labels[5], labels[0], labels[1], labels[2]});
}

TEST_CASE("gain, shift and noise are of values that are there, and leave all other draws alone") {
  DataOptions options = plain_options();
  options.pixels = PixelType::kFloat32;
  options.channels = 1;
  options.mean = {0};
  options.std = {1};
  Sample sample;
  sample.image = {40, 50, {}, 1, PixelType::kFloat32, {}, std::vector<float>(2000, 3)};
  sample.labels = {40, 50, std::vector<Label>(2000, 1)};
  for (std::size_t i = 0; i < 2000; i += 4) sample.image.floats[i] = std::nanf("");
  const auto varied = [&](const AugmentOptions& augmentation, std::int64_t index) {
    options.augment = augmentation;
    Result result = augment(options, sample, {48, 50}, index);
    for (std::size_t i = 0; i < 48 * 50; ++i) {
      if (i % 4 == 0 || i >= 2000) CHECK(result.image[i] == 0);
    }
    return result.image;
  };
  CHECK(varied({}, 0)[1] == 3);
  const float scaled = varied({.gain = {0.5F, 2}}, 0)[1];
  CHECK(scaled != 3);
  CHECK(scaled > 1.5F);
  CHECK(scaled < 6);
  const std::vector<float> shifted = varied({.gain = {0.5F, 2}, .shift = 0.1F}, 0);
  CHECK(std::abs(shifted[1] - scaled) < 0.1F);
  CHECK(shifted[1] != scaled);
  CHECK(shifted[1] == shifted[1999]);
  CHECK(varied({.shift = 0.1F}, 1)[1] != varied({.shift = 0.1F}, 2)[1]);
  const std::vector<float> noisy = varied({.gain = {0.5F, 2}, .shift = 0.1F, .noise = 0.2F}, 0);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < 2000; ++i) {
    const auto noise = static_cast<double>(noisy[i] - shifted[i]);
    sum += noise, squares += noise * noise;
  }
  CHECK(std::abs(sum / 1500) < 0.02);
  CHECK(std::abs(std::sqrt(squares / 1500) - 0.2) < 0.02);
}

double share_with(const DataOptions& options, const Sample& sample, Size crop, Label label) {
  constexpr int kCount = 4000;
  int with = 0;
  for (std::int64_t epoch = 0; epoch < kCount; ++epoch) {
    const std::vector<Label> labels = augment(options, sample, crop, 0, epoch).labels;
    with += std::count(labels.begin(), labels.end(), label) > 0;
  }
  return static_cast<double>(with) / kCount;
}

TEST_CASE("a crop that looks for a class has its only pixel as often as it is asked to") {
  DataOptions options = plain_options();
  const Size image{200, 200}, crop{32, 32};
  Sample sample{random_image(image, 1), {200, 200, std::vector<Label>(40000, 0)}};
  sample.labels.pixels[57 * 200 + 140] = 1;
  options.augment = AugmentOptions{.crop = crop};
  CHECK(std::abs(share_with(options, sample, crop, 1) - 0.0359) < 0.03);
  options.augment->class_crops = 0.33F;
  CHECK(std::abs(share_with(options, sample, crop, 1) - 0.354) < 0.03);
  options.augment->class_crops_of = {2};  // of which there is none
  const double ordinary = share_with(options, sample, crop, 1);
  options.augment->class_crops = 0;
  CHECK(share_with(options, sample, crop, 1) == ordinary);
}

TEST_CASE("a class is looked for as often as another, however small, and never what is ignored") {
  DataOptions options = plain_options();
  const Size crop{1, 1};
  Sample sample{random_image({40, 40}, 1), {40, 40, std::vector<Label>(1600, 0)}};
  for (std::size_t i = 0; i < 800; ++i) sample.labels.pixels[i] = i < 700 ? 3 : 77;
  sample.labels.pixels[1000] = 5;
  options.augment = AugmentOptions{.crop = crop, .class_crops = 1};
  CHECK(std::abs(share_with(options, sample, crop, 3) - 0.5) < 0.03);
  CHECK(std::abs(share_with(options, sample, crop, 5) - 0.5) < 0.03);
  options.augment->class_crops_of = {0, 5, 7};
  CHECK(std::abs(share_with(options, sample, crop, 0) - 0.5) < 0.03);
  CHECK(std::abs(share_with(options, sample, crop, 5) - 0.5) < 0.03);
  options.augment->scale_lo = options.augment->scale_hi = 3;  // the middle follows the scale
  CHECK(std::abs(share_with(options, sample, crop, 5) - 0.5) < 0.03);
}

TEST_CASE("photometric steps do what their names say") {
  const auto distorted = [](const AugmentDraw& draw, std::vector<std::uint8_t> pixel) {
    Image image{1, 1, std::move(pixel)};
    distort_colors(draw, image);
    return image.pixels;
  };
  using Bytes = std::vector<std::uint8_t>;
  AugmentDraw draw;
  CHECK(distorted(draw, {10, 200, 90}) == Bytes{10, 200, 90});
  draw.brightness = true;
  draw.brightness_shift = 30;
  CHECK(distorted(draw, {10, 240, 90}) == Bytes{40, 255, 120});
  draw = {};
  draw.contrast = true;
  draw.contrast_factor = 1.5F;
  CHECK(distorted(draw, {10, 200, 90}) == Bytes{15, 255, 135});
  draw = {};
  draw.saturation = true;
  draw.saturation_factor = 0.5F;
  CHECK(distorted(draw, {200, 100, 60}) == Bytes{200, 150, 130});
  CHECK(distorted(draw, {80, 80, 80}) == Bytes{80, 80, 80});
  draw.saturation_factor = 1.5F;
  CHECK(distorted(draw, {200, 20, 100}) == Bytes{200, 0, 89});
  draw = {};
  draw.hue = true;
  draw.hue_shift = 120;
  CHECK(distorted(draw, {200, 100, 60}) == Bytes{60, 200, 100});
  draw.hue_shift = -120;
  CHECK(distorted(draw, {200, 100, 60}) == Bytes{100, 60, 200});
  draw.hue_shift = 18;
  CHECK(distorted(draw, {200, 100, 100}) == Bytes{200, 130, 100});
}

TEST_CASE("exposure is x*g + o*(1-g) per image, a function of seed, split and sample") {
  const ExposureOptions options{0.15F, 80};
  Image ramp{1, 2, {0, 0, 0, 255, 255, 255}};
  double log_sum = 0;
  double offset_sum = 0;
  constexpr int kCount = 1000;
  for (int i = 0; i < kCount; ++i) {
    Image image = ramp;
    expose(options, 3, Split::kTrain, i, image);
    const double gain = (image.pixels[3] - image.pixels[0]) / 255.0;
    CHECK(gain > 0.15 - 0.005);
    CHECK(gain <= 1);
    CHECK(image.pixels[0] <= 80 * (1 - gain) + 1);
    log_sum += std::log(gain);
    if (gain < 0.9) offset_sum += image.pixels[0] / (1 - gain) / kCount;
  }
  CHECK(std::abs(log_sum / kCount - std::log(0.15) / 2) < 0.06);
  CHECK(std::abs(offset_sum - 40 * 0.944) < 3);
  const auto exposed = [&](std::uint64_t seed, Split split, std::int64_t index) {
    Image image = ramp;
    expose(options, seed, split, index, image);
    return image.pixels;
  };
  CHECK(exposed(1, Split::kTrain, 2) == exposed(1, Split::kTrain, 2));
  CHECK(exposed(1, Split::kTrain, 2) != exposed(1, Split::kVal, 2));
  CHECK(exposed(1, Split::kTrain, 2) != exposed(2, Split::kTrain, 2));
  CHECK(exposed(1, Split::kTrain, 2) != exposed(1, Split::kTrain, 3));
}

}  // namespace
}  // namespace lockstep
