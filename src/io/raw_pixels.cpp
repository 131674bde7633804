#include "io/raw_pixels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "io/weight_files.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// Half a float's bits, which no type of C++20 is.
struct Half {
  std::uint16_t bits = 0;
};

template <typename Number>
float float_of(Number value) {
  return static_cast<float>(value);
}
float float_of(Half value) { return from_float16(value.bits); }

/// What `use` returns of a value of the type.
template <typename Use>
decltype(auto) with_type(PixelType type, const Use& use) {
  switch (type) {
    case PixelType::kUint8:
      return use(std::uint8_t{});
    case PixelType::kInt8:
      return use(std::int8_t{});
    case PixelType::kUint16:
      return use(std::uint16_t{});
    case PixelType::kInt16:
      return use(std::int16_t{});
    case PixelType::kUint32:
      return use(std::uint32_t{});
    case PixelType::kInt32:
      return use(std::int32_t{});
    case PixelType::kUint64:
      return use(std::uint64_t{});
    case PixelType::kInt64:
      return use(std::int64_t{});
    case PixelType::kFloat16:
      return use(Half{});
    case PixelType::kFloat32:
      return use(float{});
    case PixelType::kFloat64:
      break;
  }
  return use(double{});
}

template <typename Number>
Number value_at(const RawPixels& raw, std::size_t index) {
  Number value{};
  std::memcpy(&value, raw.bytes.data() + index * sizeof(Number), sizeof(Number));
  return value;
}

template <typename Number>
std::vector<float> floats_of(const RawPixels& raw) {
  std::vector<float> floats(raw.bytes.size() / sizeof(Number));
  for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = float_of(value_at<Number>(raw, i));
  return floats;
}

template <typename Number>
std::string text_of(Number value) {
  std::array<char, 64> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}
std::string text_of(Half value) { return text_of(float_of(value)); }

template <typename Number>
bool is_whole(Number value) {
  if constexpr (std::is_same_v<Number, Half>) return is_whole(float_of(value));
  if constexpr (std::is_floating_point_v<Number>) return std::floor(value) == value;
  return true;
}

template <typename Number>
bool is_label(Number value) {
  if constexpr (std::is_same_v<Number, Half>) {
    return is_label(float_of(value));
  } else if constexpr (std::is_floating_point_v<Number>) {
    return value >= 0 && value <= Number{65535};
  } else {
    return std::in_range<Label>(value);
  }
}

template <typename Number>
void put_labels_of(const RawPixels& raw, const std::string& name, bool objects, LabelMap& labels) {
  for (std::size_t i = 0; i < labels.pixels.size(); ++i) {
    const auto value = value_at<Number>(raw, i);
    const bool whole = is_whole(value);
    const auto width = static_cast<std::size_t>(raw.size.width);
    if (!whole || (!objects && !is_label(value))) {
      throw DataError(concat(name, ": label ", text_of(value), " at row ", i / width, ", column ",
                             i % width,
                             whole ? "; expected 0..65535"
                                   : "; expected whole numbers (were the labels resampled with "
                                     "interpolation?)"));
    }
    const float as_float = float_of(value);
    labels.pixels[i] = objects ? Label{as_float != 0} : static_cast<Label>(as_float);
  }
}

std::string list_of(const std::vector<int>& numbers) {
  std::string text = "[";
  for (const int number : numbers) text += concat(text.size() == 1 ? "" : ", ", number);
  return text + "]";
}

template <typename Value>
void append_values(std::vector<Value>& values, std::size_t channels,
                   const std::vector<Value>& others, std::size_t more) {
  std::vector<Value> all;
  all.reserve(values.size() + others.size());
  for (std::size_t i = 0; i < values.size() / channels; ++i) {
    all.insert(all.end(), &values[i * channels], &values[i * channels] + channels);
    all.insert(all.end(), &others[i * more], &others[i * more] + more);
  }
  values = std::move(all);
}

/// Some bits of a float's key, which grows as the float does.
struct Digit {
  unsigned shift, bits;
};
constexpr Digit kDigits[] = {{21, 11}, {10, 11}, {0, 10}};

std::uint64_t key_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0F);  // of zeros there is one
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

/// A percentile of a channel, which is found from its key's highest digit down.
struct Sought {
  int channel = 0;
  float percent = 0;
  std::uint64_t found = 0;                 // the digits so far
  std::uint64_t rank = 0;                  // among the values that begin with these
  bool any = true;                         // value is there
  std::vector<std::uint64_t> counts = {};  // [next digit]

  float value() const {
    const auto key = static_cast<std::uint32_t>(found);
    return any ? std::bit_cast<float>((key >> 31) != 0 ? key & 0x7FFFFFFFU : ~key)
               : std::numeric_limits<float>::quiet_NaN();
  }
};

void count_digits(const Image& band, Digit digit, Sought& sought) {
  with_values(band, [&](const auto& values) {
    const auto channels = static_cast<std::size_t>(band.channels);
    for (auto i = static_cast<std::size_t>(sought.channel); i < values.size(); i += channels) {
      const auto value = static_cast<float>(values[i]);
      if (!std::isfinite(value)) continue;
      const std::uint64_t digits = key_of(value) >> digit.shift;
      if (digits >> digit.bits == sought.found)
        ++sought.counts[digits & (sought.counts.size() - 1)];
    }
  });
}

void choose_digit(Digit digit, Sought& sought) {
  if (digit.shift == kDigits[0].shift) {
    const auto total =
        std::accumulate(sought.counts.begin(), sought.counts.end(), std::uint64_t{0});
    const double share = static_cast<double>(sought.percent) / 100 * static_cast<double>(total);
    sought.rank = static_cast<std::uint64_t>(std::max(std::llround(std::ceil(share)) - 1, 0LL));
    sought.any = total > 0;
  }
  std::size_t next = 0;
  for (; sought.any && sought.rank >= sought.counts[next]; ++next)
    sought.rank -= sought.counts[next];
  sought.found = sought.found << digit.bits | next;
}

std::string counted(int count, const char* what) {
  return concat(count, " ", what, count == 1 ? "" : "s");
}

[[noreturn]] void throw_unfit(const FileChannels& file, int channels, const std::string& name) {
  if (file.pages > 1 && file.count % channels == 0 && file.count > channels) {
    throw DataError(concat(name, ": ", file.pages, " pages of ",
                           counted(file.count / file.pages, "channel"), " each, ",
                           "but data.channels = ", channels,
                           ": a stack of slices? Pages are read as channels; write them as images, "
                           "or data.channels = ",
                           file.count));
  }
  const std::string where =
      file.pages > 1 ? concat("its ", file.pages, " pages have ") : std::string("it has ");
  throw DataError(
      concat(name, ": expected ", counted(channels, "channel"), " (data.channels), but ", where,
             file.count, "; write data.channels = ", file.count,
             file.count > channels ? concat(", or data.bands = ", list_of(first_channels(channels)))
                                   : ""));
}

}  // namespace

std::size_t bytes_of(PixelType type) {
  return with_type(type, [](auto value) { return sizeof(value); });
}

void put_image(RawPixels&& raw, std::optional<double> nodata, Image& image) {
  image.height = raw.size.height;
  image.width = raw.size.width;
  image.channels = raw.channels;
  image.type = raw.type;
  image.pixels.clear();
  image.words.clear();
  image.floats.clear();
  if (raw.type == PixelType::kUint8) {
    image.pixels = std::move(raw.bytes);
  } else if (raw.type == PixelType::kUint16) {
    image.words.resize(raw.bytes.size() / 2);
    std::memcpy(image.words.data(), raw.bytes.data(), raw.bytes.size());
  } else {
    image.floats = with_type(raw.type, [&](auto value) { return floats_of<decltype(value)>(raw); });
  }
  mark_missing(nodata, image);
}

std::span<std::uint8_t> room_for(Size size, int channels, PixelType type, Image& image) {
  image.height = size.height;
  image.width = size.width;
  image.channels = channels;
  image.type = type;
  const std::size_t values = static_cast<std::size_t>(size.height) *
                             static_cast<std::size_t>(size.width) *
                             static_cast<std::size_t>(channels);
  image.pixels.resize(type == PixelType::kUint8 ? values : 0);
  image.words.resize(type == PixelType::kUint16 ? values : 0);
  image.floats.resize(type == PixelType::kFloat32 ? values : 0);
  if (type == PixelType::kUint8) return image.pixels;
  return with_values(image, [](auto& own) {
    return std::span(reinterpret_cast<std::uint8_t*>(own.data()), own.size() * sizeof(own.front()));
  });
}

void mark_missing(std::optional<double> nodata, Image& image) {
  constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();
  for (float& value : image.floats) value = std::isfinite(value) ? value : kMissing;
  if (!nodata) return;
  with_values(image, [&](auto& values) {
    // As floats, for the values may be: -3.4e38 in a text is the least float in a file.
    const auto gap = static_cast<float>(*nodata);
    const auto missing = [&](auto value) { return static_cast<float>(value) == gap; };
    if (std::none_of(values.begin(), values.end(), missing)) return;
    std::vector<float> floats(values.size(), kMissing);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!missing(values[i])) floats[i] = static_cast<float>(values[i]);
    }
    values.clear();
    image.floats = std::move(floats);
  });
}

bool is_missing(const Image& image, std::size_t pixel) {
  const auto channels = static_cast<std::size_t>(image.channels);
  const auto first = image.floats.begin() + static_cast<std::ptrdiff_t>(pixel * channels);
  return std::all_of(first, first + image.channels, [](float value) { return std::isnan(value); });
}

void ignore_missing(const Image& image, Label ignored, LabelMap& labels) {
  if (image.floats.empty() ||
      labels.pixels.size() * static_cast<std::size_t>(image.channels) != image.floats.size()) {
    return;
  }
  for (std::size_t i = 0; i < labels.pixels.size(); ++i) {
    if (is_missing(image, i)) labels.pixels[i] = ignored;
  }
}

void put_labels(const RawPixels& raw, const std::string& name, const LabelRule& rule,
                LabelMap& labels) {
  LOCKSTEP_CHECK(raw.channels == 1, "labels of ", raw.channels, " channels");
  labels.height = raw.size.height;
  labels.width = raw.size.width;
  labels.pixels.resize(raw.bytes.size() / bytes_of(raw.type));
  with_type(raw.type,
            [&](auto value) { put_labels_of<decltype(value)>(raw, name, rule.objects, labels); });
}

std::vector<int> first_channels(int count) {
  std::vector<int> channels(static_cast<std::size_t>(count));
  std::iota(channels.begin(), channels.end(), 0);
  return channels;
}

std::vector<int> chosen_channels(const FileChannels& file, const ImageRule& rule,
                                 const std::string& name) {
  if (!rule.bands.empty()) {
    const int last = *std::max_element(rule.bands.begin(), rule.bands.end());
    if (last < file.count) return rule.bands;
    throw DataError(concat(name, ": data.bands = ", list_of(rule.bands), " asks for channel ", last,
                           ", but it has ", file.count, ", counted from 0"));
  }
  if (file.count == rule.channels) return first_channels(file.count);
  const bool alpha_only = file.alpha && file.count == rule.channels + 1;
  if (alpha_only && (rule.channels == 1 || rule.channels == 3)) {
    return first_channels(rule.channels);
  }
  throw_unfit(file, rule.channels, name);
}

void take_channels(const std::vector<int>& channels, Image& image) {
  if (channels == first_channels(image.channels)) return;
  with_values(image, [&](auto& values) {
    const auto stride = static_cast<std::size_t>(image.channels);
    std::remove_cvref_t<decltype(values)> kept(values.size() / stride * channels.size());
    auto out = kept.begin();
    for (std::size_t pixel = 0; pixel < values.size(); pixel += stride) {
      for (const int channel : channels) *out++ = values[pixel + static_cast<std::size_t>(channel)];
    }
    values = std::move(kept);
  });
  image.channels = static_cast<int>(channels.size());
}

void make_floats(Image& image) {
  with_values(image, [&](auto& values) {
    if constexpr (!std::is_same_v<decltype(values), std::vector<float>&>) {
      image.floats.assign(values.begin(), values.end());
      values.clear();
    }
  });
}

std::vector<std::vector<float>> percentiles_of(const ImageBands& bands,
                                               std::span<const int> channels,
                                               std::span<const float> percents) {
  std::vector<Sought> all;
  for (const int channel : channels) {
    for (const float percent : percents) all.push_back({.channel = channel, .percent = percent});
  }
  for (const Digit digit : kDigits) {
    for (Sought& sought : all) sought.counts.assign(std::size_t{1} << digit.bits, 0);
    bands([&](const Image& band) {
      for (Sought& sought : all) count_digits(band, digit, sought);
    });
    for (Sought& sought : all) choose_digit(digit, sought);
  }
  std::vector<std::vector<float>> found(channels.size());
  for (std::size_t i = 0; i < all.size(); ++i) found[i / percents.size()].push_back(all[i].value());
  return found;
}

void append_channels(Image&& part, const std::string& name, Image& image) {
  const Size size{image.height, image.width}, own{part.height, part.width};
  if (size != own || image.type != part.type) {
    throw DataError(concat(name, ": the files of an image must be of one size and type, but this ",
                           "one is ", size != own ? to_string(own) : "of another type",
                           ", and the first one ", size != own ? to_string(size) : "is not"));
  }
  if (image.floats.empty() != part.floats.empty()) {
    make_floats(image);
    make_floats(part);
  }
  const auto channels = static_cast<std::size_t>(image.channels);
  const auto more = static_cast<std::size_t>(part.channels);
  append_values(image.pixels, channels, part.pixels, more);
  append_values(image.words, channels, part.words, more);
  append_values(image.floats, channels, part.floats, more);
  image.channels += part.channels;
}

}  // namespace lockstep
