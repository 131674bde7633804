#include "train/inference/views.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "data/augment.h"
#include "data/resize.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr double kLargestScale = 16;

int scaled(int extent, double scale) {
  return std::max(1, static_cast<int>(std::lround(extent * scale)));
}

double parse_scale(const std::string& word, const std::string& text) {
  double scale = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, scale);
  if (error != std::errc() || stop != end || !(scale >= 1 / kLargestScale) ||
      scale > kLargestScale) {
    throw ConfigError(concat("--scales: expected numbers of 0.0625 to 16 such as 0.5,1,1.5, got \"",
                             word, "\" in \"", text, "\""));
  }
  return scale;
}

std::vector<double> parse_scales(const std::string& text) {
  std::vector<double> scales;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const double scale = parse_scale(text.substr(begin, end - begin), text);
    if (std::find(scales.begin(), scales.end(), scale) != scales.end()) {
      throw ConfigError(concat("--scales: ", scale, " is there twice in \"", text, "\""));
    }
    scales.push_back(scale);
    begin = end + 1;
  }
  return scales;
}

}  // namespace

TestTimeAugmentation augmentation_of(bool flip, const std::string& scales) {
  TestTimeAugmentation augmentation{.flip = flip};
  if (!scales.empty()) augmentation.scales = parse_scales(scales);
  return augmentation;
}

std::string to_string(const TestTimeAugmentation& augmentation) {
  std::string text = augmentation.flip ? "flip" : "";
  if (augmentation.scales == std::vector<double>{1}) return text;
  const char* before = text.empty() ? "scales " : ", scales ";
  for (const double scale : augmentation.scales) {
    text += concat(before, scale);
    before = ", ";
  }
  return text;
}

Views::Views(const DataOptions& data, std::int64_t divisor, TestTimeAugmentation augmentation)
    : normalizer_(data),
      divisor_(static_cast<int>(divisor)),
      augmentation_(std::move(augmentation)) {}

std::vector<View> Views::of(const Image& image) const {
  std::vector<View> views;
  for (std::size_t i = 0; i < augmentation_.scales.size(); ++i) views.push_back(view(image, i));
  return views;
}

View Views::view(const Image& image, std::size_t scale) const {
  const double factor = augmentation_.scales[scale];
  View view;
  view.scale = scale;
  view.size = {scaled(image.height, factor), scaled(image.width, factor)};
  Image shown;
  Resizer().resize(image, view.size, {0, 0, view.size}, shown);
  const Size padded = padded_size(view.size, divisor_);
  view.shape = {augmentation_.flip ? 2 : 1, padded.height, padded.width, shown.channels};
  view.images.resize(static_cast<std::size_t>(view.shape.elements()));
  normalizer_.apply(shown, padded, view.images.data());
  if (augmentation_.flip) {
    flip_columns(shown);
    normalizer_.apply(shown, padded, view.images.data() + view.images.size() / 2);
  }
  return view;
}

}  // namespace lockstep
