#include "data/augment.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/rng.h"
#include "data/normalize.h"
#include "io/exif.h"
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

Rng stream_of(RngPurpose purpose, std::uint64_t seed, std::int64_t sample, std::int64_t epoch) {
  return {seed, purpose, static_cast<std::uint64_t>(sample), static_cast<std::uint32_t>(epoch)};
}

/// A part of an image: its size.
Size draw_part(const AugmentOptions& options, Size image, std::uint64_t seed, std::int64_t sample,
               std::int64_t epoch) {
  constexpr int kTries = 10;
  Rng rng = stream_of(RngPurpose::kResizedCrop, seed, sample, epoch);
  const auto [smallest, largest] = *options.crop_area;
  const auto [narrowest, widest] = options.crop_aspect;
  const auto pixels = static_cast<float>(image.height) * static_cast<float>(image.width);
  for (int i = 0; i < kTries; ++i) {
    const float area = pixels * rng.uniform(smallest, largest);
    const float aspect = std::exp(rng.uniform(std::log(narrowest), std::log(widest)));
    const Size part{static_cast<int>(std::lround(std::sqrt(area / aspect))),
                    static_cast<int>(std::lround(std::sqrt(area * aspect)))};
    if (part.height >= 1 && part.width >= 1 && part.height <= image.height &&
        part.width <= image.width) {
      return part;
    }
  }
  const float own = static_cast<float>(image.width) / static_cast<float>(image.height);
  const float aspect = std::clamp(own, narrowest, widest);
  if (own < aspect) {
    return {std::max(1, static_cast<int>(static_cast<float>(image.width) / aspect)), image.width};
  }
  return {image.height, std::max(1, static_cast<int>(static_cast<float>(image.height) * aspect))};
}

/// The extent of the whole image when `part` of it becomes `crop`.
int resized_extent(int extent, int part, int crop) {
  return std::max(crop, scaled_extent(extent, static_cast<float>(crop) / static_cast<float>(part)));
}

/// `fixed`: the number of channels where it is known while compiling, or 0.
template <std::size_t fixed, typename Value>
void flip_columns(int height, int width, std::size_t channels, Value* pixels) {
  if constexpr (fixed != 0) channels = fixed;
  for (int y = 0; y < height; ++y) {
    Value* left = pixels + static_cast<std::size_t>(y) * static_cast<std::size_t>(width) * channels;
    Value* right = left + static_cast<std::size_t>(width - 1) * channels;
    for (; left < right; left += channels, right -= channels)
      std::swap_ranges(left, left + channels, right);
  }
}

void flip_columns(LabelMap& labels) {
  flip_columns<1>(labels.height, labels.width, 1, labels.pixels.data());
}

template <typename Map>
void apply_symmetry(const AugmentDraw& draw, Map& map) {
  const bool transposed = draw.transpose;
  if (transposed || draw.vflip) {
    return turn({.rows_reversed = transposed ? draw.flip : draw.vflip,
                 .columns_reversed = transposed ? draw.vflip : draw.flip,
                 .transposed = transposed},
                map);
  }
  if (draw.flip) flip_columns(map);
}

/// Quarter turns, counted to the left, are a transposition and flips; those of flips come behind.
void draw_symmetry(const AugmentOptions& options, Rng rng, AugmentDraw& draw) {
  const bool vflip = rng.uniform() < options.vflip;
  const std::uint32_t turns = options.rotate90 ? rng.next_u32() >> 30 : 0;
  draw.transpose = turns % 2 == 1;
  draw.flip = draw.flip != (turns >= 2);
  draw.vflip = vflip != (turns == 1 || turns == 2);
}

/// Where in the labels a pixel of AugmentOptions::class_crops is; none: there is no such class.
std::optional<std::int64_t> draw_class_pixel(const AugmentOptions& options, const LabelMap& labels,
                                             Label ignored, Rng& rng) {
  std::vector<std::uint32_t> counts;
  for (const Label label : labels.pixels) {
    if (label == ignored) continue;
    if (label >= counts.size()) counts.resize(label + std::size_t{1});
    ++counts[label];
  }
  const std::vector<int>& of = options.class_crops_of;
  std::vector<Label> present;
  for (std::size_t c = 0; c < counts.size(); ++c) {
    const bool wanted = of.empty() ? c > 0 : std::ranges::find(of, static_cast<int>(c)) != of.end();
    if (wanted && counts[c] > 0) present.push_back(static_cast<Label>(c));
  }
  if (present.empty()) return std::nullopt;
  const Label chosen = present[rng.below(static_cast<std::uint32_t>(present.size()))];
  std::uint32_t before = rng.below(counts[chosen]);
  const auto pixel = std::ranges::find_if(
      labels.pixels, [&](Label label) { return label == chosen && before-- == 0; });
  return pixel - labels.pixels.begin();
}

void center_on_class(const AugmentOptions& options, const LabelMap& labels, Label ignored, Rng rng,
                     AugmentDraw& draw) {
  if (!(rng.uniform() < options.class_crops)) return;
  const std::optional<std::int64_t> pixel = draw_class_pixel(options, labels, ignored, rng);
  if (!pixel) return;
  const auto begin = [](std::int64_t middle, int extent, int scaled, int crop) {
    const std::int64_t at = (2 * middle + 1) * scaled / (2 * std::int64_t{extent}) - crop / 2;
    return static_cast<int>(std::clamp<std::int64_t>(at, 0, scaled - crop));
  };
  auto& [top, left, size] = draw.window;
  top = begin(*pixel / labels.width, labels.height, draw.scaled.height, size.height);
  left = begin(*pixel % labels.width, labels.width, draw.scaled.width, size.width);
}

/// One number for each channel.
std::vector<float> for_channels(std::vector<float> values, std::size_t channels) {
  values.resize(channels, values.empty() ? 0 : values.front());
  return values;
}

/// Else there is nothing to do, and zeros keep their signs.
bool changes_values(const AugmentOptions& options) {
  return options.gain != std::array{1.0F, 1.0F} || options.shift != 0 || options.noise != 0;
}

}  // namespace

void flip_columns(Image& image) {
  with_values(image, [&](auto& values) {
    const auto channels = static_cast<std::size_t>(image.channels);
    if (channels == 3) return flip_columns<3>(image.height, image.width, 3, values.data());
    flip_columns<0>(image.height, image.width, channels, values.data());
  });
}

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

Normalizer::Normalizer(const PixelOptions& options)
    : by_image_(normalizes_by_image(options)),
      channels_(static_cast<std::size_t>(options.channels)),
      mean_(for_channels(options.mean, channels_)),
      std_(for_channels(options.std, channels_)),
      table_(channels_) {
  check_normalization(options);
  for (std::size_t c = 0; c < channels_; ++c) {
    if (!(std_[c] > 0)) throw ConfigError(concat("data.std has ", std_[c], ": expected > 0"));
    for (std::size_t value = 0; value < 256; ++value)
      table_[c][value] = (static_cast<float>(value) / 255.0F - mean_[c]) / std_[c];
  }
}

template <std::size_t fixed, typename Value, typename Normalize>
void Normalizer::fill(const Image& image, const std::vector<Value>& values, Size padded,
                      const Normalize& normalize, float* result) const {
  const std::size_t channels = fixed == 0 ? channels_ : fixed;
  const Value* in = values.data();
  const auto right = static_cast<std::size_t>(padded.width - image.width) * channels;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      for (std::size_t c = 0; c < channels; ++c) *result++ = normalize(c, *in++);
    }
    result = std::fill_n(result, right, 0.0F);
  }
  std::fill_n(result,
              static_cast<std::size_t>(padded.height - image.height) *
                  static_cast<std::size_t>(padded.width) * channels,
              0.0F);
}

void Normalizer::apply(const Image& image, Size padded, float* result) const {
  LOCKSTEP_CHECK(image.height <= padded.height && image.width <= padded.width, "an image of ",
                 to_string(Size{image.height, image.width}), " does not fit ", to_string(padded));
  LOCKSTEP_CHECK(image.channels == static_cast<int>(channels_), "an image of ", image.channels,
                 " channels, expected ", channels_);
  const float unit = image.type == PixelType::kUint8 ? 255.0F : 1.0F;
  const auto scaled = [&](std::size_t c, auto value) {
    const float normal = (static_cast<float>(value) / unit - mean_[c]) / std_[c];
    return std::isnan(normal) ? 0.0F : normal;
  };
  if (by_image_) {
    const auto there = [](std::size_t, float value) { return std::isnan(value) ? 0.0F : value; };
    fill<0>(image, image.floats, padded, there, result);
  } else if (!image.floats.empty()) {
    fill<0>(image, image.floats, padded, scaled, result);
  } else if (!image.words.empty()) {
    fill<0>(image, image.words, padded, scaled, result);
  } else {
    const auto looked_up = [&](std::size_t c, std::uint8_t value) { return table_[c][value]; };
    if (channels_ == 3) return fill<3>(image, image.pixels, padded, looked_up, result);
    fill<0>(image, image.pixels, padded, looked_up, result);
  }
}

Size padded_size(Size size, int divisor) {
  const auto up = [divisor](int extent) { return (extent + divisor - 1) / divisor * divisor; };
  return {up(size.height), up(size.width)};
}

void pad_labels(const LabelMap& labels, Size padded, Label ignored, Label* result) {
  const Label* in = labels.pixels.data();
  for (int y = 0; y < labels.height; ++y, in += labels.width) {
    result = std::copy(in, in + labels.width, result);
    result = std::fill_n(result, padded.width - labels.width, ignored);
  }
  std::fill_n(result, static_cast<std::size_t>(padded.height - labels.height) * padded.width,
              ignored);
}

AugmentDraw draw_augment(const AugmentOptions& options, Size image, std::uint64_t seed,
                         std::int64_t sample, std::int64_t epoch) {
  Rng rng = stream_of(RngPurpose::kAugment, seed, sample, epoch);
  AugmentDraw draw;
  const float scale = rng.uniform(options.scale_lo, options.scale_hi);
  draw.scaled = {scaled_extent(image.height, scale), scaled_extent(image.width, scale)};
  if (options.crop_area) {
    const Size part = draw_part(options, image, seed, sample, epoch);
    draw.scaled = {resized_extent(image.height, part.height, options.crop->height),
                   resized_extent(image.width, part.width, options.crop->width)};
  }
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
  draw_symmetry(options, stream_of(RngPurpose::kSymmetry, seed, sample, epoch), draw);
  return draw;
}

Augmenter::Augmenter(const DataOptions& options, std::uint64_t seed, Size size)
    : options_(options.augment.value_or(AugmentOptions{})),
      task_(find_layout(options).task),
      ignored_(ignored_label(options)),
      seed_(seed),
      size_(size),
      normalizer_(options) {}

ImagePart Augmenter::part_needed(Size image, std::int64_t index, std::int64_t epoch) {
  const AugmentDraw draw = draw_augment(options_, image, seed_, index, epoch);
  return resizer_.source_of(image, draw.scaled, draw.window);
}

void Augmenter::apply(const SamplePart& part, std::int64_t index, std::int64_t epoch, float* image,
                      Label* labels) {
  AugmentDraw draw = draw_augment(options_, part.whole.size, seed_, index, epoch);
  center_on_class(options_, part.sample.labels, ignored_,
                  stream_of(RngPurpose::kClassCrop, seed_, index, epoch), draw);
  resizer_.resize(part.sample.image, part.whole, draw.scaled, draw.window, image_);
  apply_symmetry(draw, image_);
  if (options_.photometric) distort_colors(draw, image_);
  normalizer_.apply(image_, size_, image);
  if (changes_values(options_)) {
    vary_values(options_, stream_of(RngPurpose::kValues, seed_, index, epoch), image_, size_,
                image);
  }
  if (task_ == Task::kClassification) {
    *labels = part.sample.labels.pixels.front();
  } else {
    apply_to_labels(part, draw, labels);
  }
}

void Augmenter::apply_to_labels(const SamplePart& part, const AugmentDraw& draw, Label* result) {
  resizer_.resize(part.sample.labels, part.whole, draw.scaled, draw.window, labels_);
  apply_symmetry(draw, labels_);
  pad_labels(labels_, size_, ignored_, result);
}

Image denormalize(const Batch& batch, std::size_t place, const PixelOptions& options) {
  const auto channels = static_cast<std::size_t>(options.channels);
  const bool eight_bits = options.pixels.value_or(PixelType::kUint8) == PixelType::kUint8;
  Image image{batch.size.height, batch.size.width, {}, options.channels};
  const std::size_t values =
      static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width) * channels;
  const float* normalised = batch.images.data() + place * values;
  if (!eight_bits || channels != 3 || normalizes_by_image(options)) {
    image.type = PixelType::kFloat32;
    image.floats.assign(normalised, normalised + values);
    return picture_of(image, options.display);
  }
  image.pixels.resize(values);
  const std::vector<float> mean = for_channels(options.mean, channels);
  const std::vector<float> std = for_channels(options.std, channels);
  for (std::size_t i = 0; i < values; ++i) {
    const float value = (normalised[i] * std[i % 3] + mean[i % 3]) * 255;
    image.pixels[i] = static_cast<std::uint8_t>(std::lround(std::clamp(value, 0.F, 255.F)));
  }
  return image;
}

}  // namespace lockstep
