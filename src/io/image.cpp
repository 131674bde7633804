#include "lockstep/io/image.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "io/raw_pixels.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr Color kNoClass{224, 224, 192};

std::uint8_t blend(std::uint8_t under, std::uint8_t over, float opacity) {
  const float value =
      static_cast<float>(under) + opacity * (static_cast<float>(over) - static_cast<float>(under));
  return static_cast<std::uint8_t>(std::lround(value));
}

std::uint8_t to_byte(float value, const Picture::Range& range) {
  if (!std::isfinite(value)) return 0;
  const float width = range.high > range.low ? range.high - range.low : 1;
  return static_cast<std::uint8_t>(
      std::lround(255 * std::clamp((value - range.low) / width, 0.0F, 1.0F)));
}

}  // namespace

std::vector<int> shown_channels(int of_image, std::span<const int> display) {
  if (display.empty()) return of_image < 3 ? std::vector{0} : std::vector{0, 1, 2};
  const auto is_there = [&](int channel) { return channel >= 0 && channel < of_image; };
  if ((display.size() == 1 || display.size() == 3) &&
      std::all_of(display.begin(), display.end(), is_there)) {
    return {display.begin(), display.end()};
  }
  throw ConfigError(concat("data.display: expected one channel or three of those from 0 to ",
                           of_image - 1, ", of data.channels = ", of_image));
}

Picture::Picture(const Image& sample, const ImageBands& bands, std::span<const int> display)
    : channels_(shown_channels(sample.channels, display)), ranges_(channels_.size(), {0, 255}) {
  if (!sample.pixels.empty()) return;
  constexpr std::array kPercents{2.0F, 98.0F};
  const auto ends = percentiles_of(bands, channels_, kPercents);
  for (std::size_t i = 0; i < ends.size(); ++i)
    ranges_[i] = std::isnan(ends[i][0]) ? Range{} : Range{ends[i][0], ends[i][1]};
}

Image Picture::of(const Image& band) const {
  Image picture{band.height, band.width};
  const auto stride = static_cast<std::size_t>(band.channels);
  with_values(band, [&](const auto& values) {
    picture.pixels.resize(values.size() / stride * 3);
    for (std::size_t c = 0; c < 3; ++c) {
      const std::size_t shown = channels_.size() == 1 ? 0 : c;
      const auto from = static_cast<std::size_t>(channels_[shown]);
      for (std::size_t i = 0; i < values.size() / stride; ++i)
        picture.pixels[3 * i + c] =
            to_byte(static_cast<float>(values[i * stride + from]), ranges_[shown]);
    }
  });
  return picture;
}

Image picture_of(const Image& image, std::span<const int> display) {
  return Picture(image, bands_of(image), display).of(image);
}

Color voc_color(int label) {
  Color color{};
  for (int bit = 7; label > 0 && bit >= 0; --bit, label >>= 3) {
    for (int channel = 0; channel < 3; ++channel) {
      const int set = (label >> channel) & 1;
      color[static_cast<std::size_t>(channel)] |= static_cast<std::uint8_t>(set << bit);
    }
  }
  return color;
}

Color parse_color(const std::string& text) {
  std::uint32_t value = 0;
  const char* end = text.data() + text.size();
  const bool has_form = text.size() == 7 && text[0] == '#';
  if (!has_form || std::from_chars(text.data() + 1, end, value, 16).ptr != end) {
    throw ConfigError(concat("expected a colour such as \"#804080\", got \"", text, "\""));
  }
  return {static_cast<std::uint8_t>(value >> 16), static_cast<std::uint8_t>(value >> 8),
          static_cast<std::uint8_t>(value)};
}

std::string to_string(const Color& color) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "#";
  for (const std::uint8_t value : color) {
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text;
}

Image paint(const LabelMap& labels, std::span<const Color> colors) {
  Image image{labels.height, labels.width, {}};
  image.pixels.reserve(labels.pixels.size() * 3);
  for (const Label label : labels.pixels) {
    const Color& color = label < colors.size() ? colors[label] : kNoClass;
    image.pixels.insert(image.pixels.end(), color.begin(), color.end());
  }
  return image;
}

Image overlay(const Image& image, const LabelMap& labels, std::span<const Color> colors,
              float opacity) {
  LOCKSTEP_CHECK(image.height == labels.height && image.width == labels.width, "an image of ",
                 to_string(Size{image.height, image.width}), " and labels of ",
                 to_string(Size{labels.height, labels.width}));
  Image result = image;
  for (std::size_t i = 0; i < labels.pixels.size(); ++i) {
    if (labels.pixels[i] >= colors.size()) continue;
    for (std::size_t channel = 0; channel < 3; ++channel) {
      std::uint8_t& value = result.pixels[3 * i + channel];
      value = blend(value, colors[labels.pixels[i]][channel], opacity);
    }
  }
  return result;
}

}  // namespace lockstep
