#include "data/augment.h"

#include <algorithm>
#include <cmath>

#include "core/rng.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr float kMaxBrightness = 32;
constexpr float kMaxHue = 18;

std::uint8_t to_byte(float value) {
  return static_cast<std::uint8_t>(std::clamp(value, 0.0F, 255.0F) + 0.5F);
}

int scaled_extent(int extent, float scale) {
  return std::max(
      1, static_cast<int>(std::lround(static_cast<double>(extent) * static_cast<double>(scale))));
}

// One of 0..room. Not Rng::below, which may draw more than once.
int position(int room, float uniform) {
  return static_cast<int>(uniform * static_cast<float>(room + 1));
}

template <std::size_t channels>
void flip_columns(int height, int width, std::uint8_t* pixels) {
  for (int y = 0; y < height; ++y) {
    std::uint8_t* left =
        pixels + static_cast<std::size_t>(y) * static_cast<std::size_t>(width) * channels;
    std::uint8_t* right = left + static_cast<std::size_t>(width - 1) * channels;
    for (; left < right; left += channels, right -= channels)
      std::swap_ranges(left, left + channels, right);
  }
}

}  // namespace

void expose(const ExposureOptions& options, std::uint64_t seed, Split split, std::int64_t index,
            Image& image) {
  Rng rng(seed, RngPurpose::kExposure, static_cast<std::uint64_t>(index),
          static_cast<std::uint32_t>(split));
  const float gain = std::exp(rng.uniform(std::log(options.lo), 0.0F));
  const float offset = rng.uniform(0.0F, options.offset) * (1 - gain);
  std::array<std::uint8_t, 256> table{};
  for (std::size_t value = 0; value < table.size(); ++value) {
    table[value] = to_byte(static_cast<float>(value) * gain + offset);
  }
  for (std::uint8_t& pixel : image.pixels) pixel = table[pixel];
}

Normalizer::Normalizer(const DataOptions& options) : table_{} {
  for (std::size_t c = 0; c < 3; ++c) {
    if (!(options.std[c] > 0))
      throw ConfigError(concat("data.std has ", options.std[c], ": expected > 0"));
    for (std::size_t value = 0; value < 256; ++value) {
      table_[c][value] = (static_cast<float>(value) / 255.0F - options.mean[c]) / options.std[c];
    }
  }
}

void Normalizer::apply(const Image& image, Size padded, float* result) const {
  LOCKSTEP_CHECK(image.height <= padded.height && image.width <= padded.width, "an image of ",
                 image.height, "x", image.width, " does not fit ", padded.height, "x",
                 padded.width);
  const std::uint8_t* in = image.pixels.data();
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      for (std::size_t c = 0; c < 3; ++c) *result++ = table_[c][*in++];
    }
    result = std::fill_n(result, (padded.width - image.width) * 3, 0.0F);
  }
  std::fill_n(result, static_cast<std::size_t>(padded.height - image.height) * padded.width * 3,
              0.0F);
}

void pad_labels(const LabelMap& labels, Size padded, int ignore_index, std::uint8_t* result) {
  const auto ignore = static_cast<std::uint8_t>(ignore_index);
  const std::uint8_t* in = labels.pixels.data();
  for (int y = 0; y < labels.height; ++y, in += labels.width) {
    result = std::copy(in, in + labels.width, result);
    result = std::fill_n(result, padded.width - labels.width, ignore);
  }
  std::fill_n(result, static_cast<std::size_t>(padded.height - labels.height) * padded.width,
              ignore);
}

AugmentDraw draw_augment(const AugmentOptions& options, Size image, std::uint64_t seed,
                         std::int64_t sample, std::int64_t epoch) {
  Rng rng(seed, RngPurpose::kAugment, static_cast<std::uint64_t>(sample),
          static_cast<std::uint32_t>(epoch));
  AugmentDraw draw;
  const float scale = rng.uniform(options.scale_lo, options.scale_hi);
  draw.scaled = {scaled_extent(image.height, scale), scaled_extent(image.width, scale)};
  const Size crop = options.crop.value_or(draw.scaled);
  draw.window.size = {std::min(crop.height, draw.scaled.height),
                      std::min(crop.width, draw.scaled.width)};
  draw.window.top = position(draw.scaled.height - draw.window.size.height, rng.uniform());
  draw.window.left = position(draw.scaled.width - draw.window.size.width, rng.uniform());
  draw.flip = rng.uniform() < options.hflip;
  draw.brightness = rng.uniform() < 0.5F;
  draw.brightness_shift = rng.uniform(-kMaxBrightness, kMaxBrightness);
  draw.contrast = rng.uniform() < 0.5F;
  draw.contrast_factor = rng.uniform(0.5F, 1.5F);
  draw.contrast_last = rng.uniform() < 0.5F;
  draw.saturation = rng.uniform() < 0.5F;
  draw.saturation_factor = rng.uniform(0.5F, 1.5F);
  draw.hue = rng.uniform() < 0.5F;
  draw.hue_shift = rng.uniform(-kMaxHue, kMaxHue);
  return draw;
}

Augmenter::Augmenter(const DataOptions& options, std::uint64_t seed, Size size)
    : options_(options.augment.value_or(AugmentOptions{})),
      ignore_index_(options.ignore_index),
      seed_(seed),
      size_(size),
      normalizer_(options) {}

void Augmenter::apply(const Sample& sample, std::int64_t index, std::int64_t epoch, float* image,
                      std::uint8_t* labels) {
  const Size whole{sample.image.height, sample.image.width};
  const AugmentDraw draw = draw_augment(options_, whole, seed_, index, epoch);
  resizer_.resize(sample.image, draw.scaled, draw.window, image_);
  resizer_.resize(sample.labels, draw.scaled, draw.window, labels_);
  if (draw.flip) {
    flip_columns<3>(image_.height, image_.width, image_.pixels.data());
    flip_columns<1>(labels_.height, labels_.width, labels_.pixels.data());
  }
  if (options_.photometric) distort_colors(draw, image_);
  normalizer_.apply(image_, size_, image);
  pad_labels(labels_, size_, ignore_index_, labels);
}

}  // namespace lockstep
