#include "data/normalize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "core/words.h"
#include "data/for_each_sample.h"
#include "io/raw_pixels.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"

namespace lockstep {
namespace {

const std::vector<float>& default_mean() {
  static const std::vector<float> mean = PixelOptions().mean;
  return mean;
}

/// What two passes over a channel's values come to, band after band.
struct ChannelSums {
  std::uint64_t sum = 0, squares = 0, count = 0;  // of integers, which are exact
  std::uint32_t least = UINT32_MAX, most = 0;
  PixelMoments moments;  // of floats
  double total = 0;

  PixelMoments of_integers() const {
    // What is subtracted has more than 64 bits.
    using Wide = unsigned __int128;
    const Wide spread = Wide{count} * squares - Wide{sum} * sum;
    const auto n = static_cast<double>(count);
    return {n, static_cast<double>(sum) / n, static_cast<double>(spread) / n,
            static_cast<double>(least), static_cast<double>(most)};
  }
};

template <typename Value>
void add_values(const std::vector<Value>& values, std::vector<ChannelSums>& sums) {
  const std::size_t channels = sums.size();
  for (std::size_t i = 0; i < values.size(); i += channels) {
    for (std::size_t c = 0; c < channels; ++c) {
      const std::uint64_t value = values[i + c];
      sums[c].sum += value;
      sums[c].squares += value * value;
      sums[c].least = std::min<std::uint32_t>(sums[c].least, values[i + c]);
      sums[c].most = std::max<std::uint32_t>(sums[c].most, values[i + c]);
    }
  }
  for (ChannelSums& of : sums) of.count += values.size() / channels;
}

template <typename Use>
void each_there(const std::vector<float>& values, std::size_t channel, std::size_t channels,
                const Use& use) {
  for (std::size_t i = channel; i < values.size(); i += channels) {
    const auto value = static_cast<double>(values[i]);
    if (!std::isnan(value)) use(value);
  }
}

void add_values(const std::vector<float>& values, std::vector<ChannelSums>& sums) {
  for (std::size_t c = 0; c < sums.size(); ++c) {
    PixelMoments& moments = sums[c].moments;
    each_there(values, c, sums.size(), [&](double value) {
      const bool first = moments.count == 0;
      ++moments.count;
      sums[c].total += value;
      moments.least = first ? value : std::min(moments.least, value);
      moments.most = first ? value : std::max(moments.most, value);
    });
  }
}

void add_distances(const std::vector<float>& values, std::vector<ChannelSums>& sums) {
  for (std::size_t c = 0; c < sums.size(); ++c) {
    PixelMoments& moments = sums[c].moments;
    each_there(values, c, sums.size(), [&](double value) {
      moments.m2 += (value - moments.mean) * (value - moments.mean);
    });
  }
}

using Scale = ImagePreparation::Scale;

Scale by_deviation(const PixelMoments& moments) {
  const double deviation = moments.deviation();
  return {static_cast<float>(moments.mean),
          deviation > 0 ? static_cast<float>(1 / deviation) : 0.0F};
}

void scale_channels(const std::vector<Scale>& scales, bool cut_off, Image& image) {
  make_floats(image);
  for (std::size_t i = 0; i < image.floats.size(); ++i) {
    const Scale& scale = scales[i % scales.size()];
    const float value = (image.floats[i] - scale.shift) * scale.factor;
    // Written so that NaN stays.
    image.floats[i] = cut_off && value < 0 ? 0 : cut_off && value > 1 ? 1 : value;
  }
}

// Where no pixel is there, any will do: what is not there stays so.
std::vector<Scale> scales_by_moments(const ImageBands& bands) {
  std::vector<Scale> scales;
  for (const PixelMoments& moments : moments_of(bands)) scales.push_back(by_deviation(moments));
  return scales;
}

std::vector<Scale> scales_by_percentiles(const PixelOptions& options, const ImageBands& bands) {
  std::vector<int> channels(static_cast<std::size_t>(options.channels));
  std::iota(channels.begin(), channels.end(), 0);
  std::vector<Scale> scales;
  for (const std::vector<float>& ends : percentiles_of(bands, channels, options.percentiles)) {
    const float width = ends[1] - ends[0];
    scales.push_back({ends[0], width > 0 ? 1 / width : 0});
  }
  return scales;
}

std::string listed(const std::vector<float>& values) {
  constexpr std::size_t kShown = 8;
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(values.size(), kShown); ++i)
    text += concat(i == 0 ? "" : ", ", values[i]);
  return text + (values.size() > kShown ? ", ...]" : "]");
}

/// Of the first image that has a header. Whoever needs the images says what is wrong with the
/// others.
std::optional<PixelType> first_type(const Dataset& dataset) {
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    try {
      return dataset.pixel_type(i);
    } catch (const DataError&) {
    }
  }
  return std::nullopt;
}

/// Merged in the order of the samples, whoever has read them.
std::vector<PixelMoments> measure(const Dataset& dataset, const DataOptions& options,
                                  PixelType type) {
  const auto size = static_cast<std::size_t>(dataset.size());
  std::vector<std::vector<PixelMoments>> each(size);
  std::vector<std::string> trouble(size);
  LongWork work("measuring mean and deviation", "images", dataset.size());
  for_each_sample(dataset, options.workers,
                  [&](std::int64_t index, const Sample* sample, const DataError* error) {
                    const auto place = static_cast<std::size_t>(index);
                    if (error != nullptr) {
                      trouble[place] = error->what();
                    } else if (const PixelType own = sample->image.type; own != type) {
                      trouble[place] =
                          several_types(dataset.describe(index), own, dataset.describe(0), type);
                    } else {
                      each[place] = moments_of(sample->image);
                    }
                    work.advance();
                  });
  for (const std::string& text : trouble) {
    if (!text.empty()) throw DataError(text);
  }
  std::vector<PixelMoments> all(static_cast<std::size_t>(options.channels));
  for (const std::vector<PixelMoments>& of_image : each) {
    for (std::size_t c = 0; c < all.size(); ++c) all[c].add(of_image.at(c));
  }
  std::vector<double> counts;
  for (const PixelMoments& channel : all) counts.push_back(channel.count);
  check_pixels(counts, dataset.describe(0));
  return all;
}

/// Measures, and says what came out.
std::string use_measured(DataOptions& options, const Dataset& dataset, PixelType type) {
  const double unit = type == PixelType::kUint8 ? 255 : 1;
  const std::vector<PixelMoments> moments = measure(dataset, options, type);
  options.mean.clear();
  options.std.clear();
  for (const PixelMoments& channel : moments) {
    options.mean.push_back(static_cast<float>(channel.mean / unit));
    // A channel that is the same everywhere says nothing, and is 0.
    options.std.push_back(channel.m2 > 0 ? static_cast<float>(channel.deviation() / unit) : 1);
  }
  options.pixels = type;
  return concat("data.normalize = \"dataset\": ", dataset.size(), " images of ", to_string(type),
                " have mean = ", listed(options.mean), ", std = ", listed(options.std));
}

}  // namespace

double PixelMoments::deviation() const { return count > 0 ? std::sqrt(m2 / count) : 0; }

// Chan, Golub and LeVeque 1979.
void PixelMoments::add(const PixelMoments& other) {
  if (other.count == 0) return;
  if (count == 0) {
    *this = other;
    return;
  }
  const double both = count + other.count, distance = other.mean - mean;
  m2 += other.m2 + distance * distance * count * other.count / both;
  mean += distance * other.count / both;
  count = both;
  least = std::min(least, other.least);
  most = std::max(most, other.most);
}

std::vector<PixelMoments> moments_of(const ImageBands& bands) {
  std::vector<ChannelSums> sums;
  bool floats = false;
  bands([&](const Image& band) {
    sums.resize(static_cast<std::size_t>(band.channels));
    floats = !band.floats.empty();
    with_values(band, [&](const auto& values) { add_values(values, sums); });
  });
  std::vector<PixelMoments> moments;
  for (ChannelSums& of : sums) {
    if (of.moments.count > 0) of.moments.mean = of.total / of.moments.count;
  }
  // Twice over the values: sums of squares of large values would lose what differs.
  if (floats) bands([&](const Image& band) { add_distances(band.floats, sums); });
  for (const ChannelSums& of : sums) moments.push_back(floats ? of.moments : of.of_integers());
  return moments;
}

std::string several_types(const std::string& a, PixelType of_a, const std::string& b,
                          PixelType of_b) {
  return concat(a, " (", to_string(of_a), ") and ", b, " (", to_string(of_b),
                "): the images of a set must be of one type, since one mean and one deviation ",
                "cannot be of both; convert one, or write data.normalize = \"image\"");
}

bool normalizes_by_image(const PixelOptions& options) {
  return options.normalize == Normalization::kImage ||
         options.normalize == Normalization::kPercentile;
}

bool normalizes_as_given(const PixelOptions& options, PixelType type) {
  if (options.normalize) return options.normalize == Normalization::kGiven;
  return options.mean != default_mean() || (type == PixelType::kUint8 && options.channels == 3);
}

bool settle_type(PixelOptions& options, PixelType type) {
  const bool given = normalizes_as_given(options, type);
  if (given && type == PixelType::kUint8) return false;
  if (given && options.mean == default_mean()) {
    throw ConfigError(concat(
        "data.normalize = \"given\", but data.mean is the default, which is of 8-bit RGB, and ",
        "these hold ", to_string(type),
        "; write data.mean and data.std, or data.normalize = \"dataset\""));
  }
  options.normalize = given ? Normalization::kGiven : Normalization::kDataset;
  if (given) options.pixels = type;
  return !given;
}

void check_pixels(std::span<const double> counts, const std::string& first) {
  for (std::size_t c = 0; c < counts.size(); ++c) {
    if (counts[c] > 0) continue;
    throw DataError(concat(first, ": no pixel of it is there, nor of any other training image ",
                           "(all are NaN or data.nodata): channel ", c,
                           " has no mean; check the files and data.nodata"));
  }
}

ImageRule image_rule(const DataOptions& options) {
  return {.orientation = options.orientation,
          .channels = options.channels,
          .bands = options.bands,
          .channel_files = options.channel_files,
          .nodata = options.nodata};
}

ImagePreparation::ImagePreparation(const PixelOptions& options, std::string name,
                                   const ImageBands& bands)
    : options_(options), name_(std::move(name)) {
  if (options.normalize == Normalization::kDataset && !options.pixels) {
    throw ConfigError(
        "data.normalize = \"dataset\", but mean and std are not measured: a training "
        "measures them at its start, and its config.toml has them");
  }
  if (options.normalize == Normalization::kImage) {
    scales_ = scales_by_moments(bands);
  } else if (options.normalize == Normalization::kPercentile) {
    scales_ = scales_by_percentiles(options, bands);
  }
}

void ImagePreparation::apply(Image& band) const {
  if (!scales_.empty()) {
    return scale_channels(scales_, options_.normalize == Normalization::kPercentile, band);
  }
  const PixelType expected = options_.pixels.value_or(PixelType::kUint8);
  if (band.type == expected) return;
  throw DataError(concat(name_, ": holds ", to_string(band.type), ", but mean and std are of ",
                         to_string(expected),
                         "; convert it, or train with data.normalize = \"dataset\" or \"image\""));
}

void prepare_image(const PixelOptions& options, const std::string& name, Image& image) {
  if (image.channels != options.channels) {
    throw DataError(concat(name, ": has ", image.channels,
                           " channels, but data.channels = ", options.channels));
  }
  ImagePreparation(options, name, bands_of(image)).apply(image);
}

void check_channels(const PixelOptions& options) {
  const auto channels = static_cast<std::size_t>(options.channels);
  if (!options.bands.empty() && options.bands.size() != channels) {
    throw ConfigError(concat("data.bands picks ", options.bands.size(),
                             " channels, but data.channels = ", channels, "; make them equal"));
  }
  const std::vector<float>& percents = options.percentiles;
  if (percents.size() != 2 || percents[0] >= percents[1]) {
    throw ConfigError(concat("data.percentiles: expected [lo, hi], lo < hi, such as [1, 99], got [",
                             joined(percents), "]"));
  }
  shown_channels(options.channels, options.display);
}

void check_normalization(const PixelOptions& options) {
  check_channels(options);
  if (normalizes_by_image(options)) return;
  const auto channels = static_cast<std::size_t>(options.channels);
  const bool unsettled = !options.pixels && options.normalize != Normalization::kGiven;
  for (const auto& [key, values] :
       {std::pair{"mean", &options.mean}, std::pair{"std", &options.std}}) {
    if (values->size() == channels || values->size() == 1) continue;
    throw ConfigError(
        concat("data.", key, " has ", values->size(), " numbers, but data.channels = ", channels,
               unsettled ? "; data.normalize = \"dataset\" measures them at the start of a training"
                         : "; expected one for each channel, or one for all"));
  }
}

std::string settle_normalization(DataOptions& options, std::uint64_t seed) {
  if (options.pixels || normalizes_by_image(options) || find_layout(options).generated) return "";
  DataOptions all = options;
  all.skip_broken = false;  // which would read them
  std::unique_ptr<Dataset> dataset = make_dataset(all, Split::kTrain, seed);
  const std::optional<PixelType> first = first_type(*dataset);
  if (!first) return "";
  if (!settle_type(options, *first)) return "";
  if (options.skip_broken) dataset = make_dataset(options, Split::kTrain, seed);
  return use_measured(options, *dataset, *first);
}

}  // namespace lockstep
