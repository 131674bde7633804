#include "data/data_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "data/for_each_sample.h"
#include "data/formats/file_dataset.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"

namespace lockstep {
namespace {

// A class that is in one image of ten is missed by 64 images once in a thousand times; in a set of
// many classes some are rarer.
constexpr std::int64_t kSamplesPerClass = 4;
constexpr std::int64_t kMostPixels = std::int64_t{1} << 25;
constexpr std::size_t kNamed = 3;
// Crops somewhat larger than the smaller images are common practice.
constexpr double kLeastFilled = 0.5;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// What one sample adds, before it is added under a lock.
struct SampleSums {
  std::vector<std::int64_t> class_labels;
  std::int64_t labels = 0, ignored = 0;
  std::array<std::uint64_t, 3> sum{}, squares{};  // of 0..255
  std::uint64_t hash = 0;
};

std::uint64_t hash_of(const Image& image) {
  const std::string_view bytes(reinterpret_cast<const char*>(image.pixels.data()),
                               image.pixels.size());
  const std::uint64_t hash = std::hash<std::string_view>{}(bytes) + at(image.width);
  return hash == 0 ? 1 : hash;
}

SampleSums sum_of(const Sample& sample, int classes) {
  SampleSums sums;
  sums.class_labels.assign(at(classes), 0);
  for (const Label label : sample.labels.pixels) {
    label < classes ? ++sums.class_labels[label] : ++sums.ignored;
  }
  sums.labels =
      std::accumulate(sums.class_labels.begin(), sums.class_labels.end(), std::int64_t{0});
  const std::vector<std::uint8_t>& pixels = sample.image.pixels;
  for (std::size_t i = 0; i + 2 < pixels.size(); i += 3) {
    for (std::size_t c = 0; c < 3; ++c) {
      const std::uint64_t value = pixels[i + c];
      sums.sum[c] += value;
      sums.squares[c] += value * value;
    }
  }
  sums.hash = hash_of(sample.image);
  return sums;
}

// The sums of all samples: integers, so that the order of adding does not matter.
class Sums {
 public:
  Sums(const Dataset& dataset, int classes) : dataset_(dataset), classes_(classes) {
    const auto count = at(classes);
    report.class_labels.assign(count, 0);
    report.class_images.assign(count, 0);
    report.beside_class.assign(count, 0);
    report.images = dataset.size();
    report.hashes.assign(at(dataset.size()), 0);
  }

  void add(std::int64_t index, const Sample& sample) {
    const SampleSums sums = sum_of(sample, classes_);
    const std::lock_guard lock(mutex_);
    ++report.examined;
    ++report.sizes[{sample.image.height, sample.image.width}];
    report.hashes[at(index)] = sums.hash;
    report.labels += sums.labels;
    report.ignored += sums.ignored;
    if (sums.labels == 0) without_labels_.push_back(index);
    for (std::size_t c = 0; c < sums.class_labels.size(); ++c) {
      report.class_labels[c] += sums.class_labels[c];
      if (sums.class_labels[c] == 0) continue;
      ++report.class_images[c];
      report.beside_class[c] += sums.labels;
    }
    pixels_ += sample.image.pixels.size() / 3;
    for (std::size_t c = 0; c < 3; ++c) {
      sum_[c] += sums.sum[c];
      squares_[c] += sums.squares[c];
    }
  }

  void add_broken(std::int64_t index, const std::string& message) {
    const std::lock_guard lock(mutex_);
    ++report.examined;
    broken_[index] = message;
  }

  void finish() {
    std::sort(without_labels_.begin(), without_labels_.end());
    for (const std::int64_t index : without_labels_)
      report.without_labels.push_back(dataset_.describe(index));
    for (const auto& [index, message] : broken_) report.broken.push_back(message);
    const auto count = static_cast<double>(std::max<std::uint64_t>(pixels_, 1));
    for (std::size_t c = 0; c < 3; ++c) {
      const double mean = static_cast<double>(sum_[c]) / count;
      const double variance = static_cast<double>(squares_[c]) / count - mean * mean;
      report.mean[c] = mean / 255;
      report.std[c] = std::sqrt(std::max(variance, 0.0)) / 255;
    }
  }

  SplitReport report;

 private:
  const Dataset& dataset_;
  int classes_;
  std::mutex mutex_;  // guards all that add changes
  std::vector<std::int64_t> without_labels_;
  std::map<std::int64_t, std::string> broken_;
  std::uint64_t pixels_ = 0;
  std::array<std::uint64_t, 3> sum_{}, squares_{};
};

std::string part_of(const SplitReport& split) {
  if (split.examined == split.images) return concat("the ", split.images, " images");
  return concat("the ", split.examined, " images looked at, of ", split.images);
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamed); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kNamed ? concat(text, " and ", names.size() - kNamed, " more") : text;
}

std::vector<std::string> missing_classes(const SplitReport& split, const DataOptions& options) {
  const std::vector<std::string> names = class_names(options);
  std::vector<std::string> missing;
  for (std::size_t c = 0; c < names.size(); ++c) {
    if (split.class_images[c] == 0 && static_cast<int>(c) != options.ignore_index)
      missing.push_back(concat(c, " (", names[c], ")"));
  }
  return missing;
}

bool segments(const DataOptions& options) {
  return find_layout(options).task == Task::kSegmentation;
}

// Only class 0 and what is ignored: what is left of black and white when 255 is ignore_index.
bool looks_binary(const SplitReport& split, const DataOptions& options) {
  return segments(options) && options.mask_values == MaskValues::kClasses &&
         options.ignore_index == 255 && split.class_labels.size() > 1 &&
         split.class_labels[0] > 0 && split.ignored > 0 && split.class_labels[0] == split.labels;
}

// The most of a training crop that is image, of images of the sizes seen: 1 where one fills it.
double largest_filled_share(const SplitReport& split, const DataOptions& options) {
  const Size crop = *options.augment->crop;
  const double scale = options.augment->scale_hi;
  double most = 0;
  for (const auto& [size, images] : split.sizes) {
    const Size image = options.resize.value_or(Size{size.first, size.second});
    const double height = std::min(scale * image.height, static_cast<double>(crop.height));
    const double width = std::min(scale * image.width, static_cast<double>(crop.width));
    most = std::max(most, height * width / (static_cast<double>(crop.height) * crop.width));
  }
  return most;
}

bool crops_at_fixed_size(const SplitReport& split, const DataOptions& options) {
  return split.name == options.train && !split.sizes.empty() && options.augment &&
         options.augment->crop && !options.augment->crop_area;
}

}  // namespace

SplitReport examine_split(const Dataset& dataset, const DataOptions& options, Split split,
                          std::span<const std::int64_t> samples, int workers) {
  Sums sums(dataset, class_count(options));
  const std::string name = split_name(options, split);
  LongWork work("looking at " + name, "images", static_cast<std::int64_t>(samples.size()));
  for_each_sample(dataset, samples, workers,
                  [&](std::int64_t index, const Sample* sample, const DataError* error) {
                    if (sample != nullptr) {
                      sums.add(index, *sample);
                    } else {
                      sums.add_broken(index, error->what());
                    }
                    work.advance();
                  });
  sums.finish();
  sums.report.name = name;
  return std::move(sums.report);
}

std::vector<std::int64_t> sample_evenly(const Dataset& dataset, std::int64_t count) {
  const Size size = dataset.image_size(0);
  const std::int64_t pixels = std::int64_t{size.height} * size.width;
  count = std::clamp<std::int64_t>(kMostPixels / std::max<std::int64_t>(pixels, 1), 1, count);
  count = std::min(count, dataset.size());
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < count; ++i) samples.push_back(i * dataset.size() / count);
  return samples;
}

std::vector<std::string> data_warnings(const SplitReport& split, const DataOptions& options) {
  std::vector<std::string> warnings;
  const std::string where = concat("data (", split.name, "): ");
  if (!split.broken.empty()) {
    warnings.push_back(concat(where, split.broken.size(),
                              " samples cannot be read: ", listed(split.broken),
                              "; mend them, or leave them out with data.skip_broken = true"));
  }
  if (looks_binary(split, options)) {
    warnings.push_back(concat(where, "the masks of ", part_of(split),
                              " hold only 0 and 255, and 255 is data.ignore_index: everything ",
                              "that counts is class 0. If they are black-and-white pictures, ",
                              "data.mask_values = \"binary\" reads 255 as class 1"));
    return warnings;
  }
  const std::vector<std::string> missing = missing_classes(split, options);
  const auto classes = static_cast<std::int64_t>(split.class_labels.size());
  const bool can_tell =
      split.examined == split.images || split.examined >= kSamplesPerClass * classes;
  if (!missing.empty() && can_tell) {
    warnings.push_back(concat(where, missing.size() == 1 ? "class " : "classes ", listed(missing),
                              missing.size() == 1 ? " does" : " do", " not occur in any of ",
                              part_of(split), "; check data.num_classes and the ",
                              segments(options) ? "masks" : "labels"));
  }
  if (!split.without_labels.empty()) {
    warnings.push_back(concat(where, split.without_labels.size(),
                              " images have no label that counts: ", listed(split.without_labels),
                              "; nothing is learnt from them"));
  }
  if (crops_at_fixed_size(split, options)) {
    const double filled = largest_filled_share(split, options);
    if (filled < kLeastFilled) {
      const Size crop = *options.augment->crop;
      warnings.push_back(concat(where, "data.augment.crop = [", crop.height, ", ", crop.width,
                                "] is larger than ", part_of(split), ": at most ",
                                std::lround(100 * filled), " % of a training sample is image, ",
                                "the rest is empty; choose a crop that the images fill"));
    }
  }
  return warnings;
}

std::vector<std::pair<std::int64_t, std::int64_t>> find_duplicates(const Dataset& train,
                                                                   const SplitReport& train_report,
                                                                   const Dataset& val,
                                                                   const SplitReport& val_report) {
  std::unordered_multimap<std::uint64_t, std::int64_t> known;
  for (std::int64_t i = 0; i < train.size(); ++i) {
    if (train_report.hashes[at(i)] != 0) known.emplace(train_report.hashes[at(i)], i);
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> duplicates;
  for (std::int64_t i = 0; i < val.size(); ++i) {
    if (val_report.hashes[at(i)] == 0) continue;
    const auto [first, last] = known.equal_range(val_report.hashes[at(i)]);
    for (auto match = first; match != last; ++match) {
      const Image a = train.load(match->second).image;
      const Image b = val.load(i).image;
      if (a.width == b.width && a.pixels == b.pixels) duplicates.emplace_back(match->second, i);
    }
  }
  std::sort(duplicates.begin(), duplicates.end());
  return duplicates;
}

std::vector<double> median_frequency_weights(const SplitReport& split) {
  std::vector<double> weights(split.class_labels.size(), 0);
  std::vector<double> frequencies;
  for (std::size_t c = 0; c < weights.size(); ++c) {
    if (split.class_labels[c] == 0) continue;
    weights[c] =
        static_cast<double>(split.class_labels[c]) / static_cast<double>(split.beside_class[c]);
    frequencies.push_back(weights[c]);
  }
  if (frequencies.empty()) return weights;
  std::sort(frequencies.begin(), frequencies.end());
  const std::size_t middle = frequencies.size() / 2;
  const double median = frequencies.size() % 2 == 1
                            ? frequencies[middle]
                            : (frequencies[middle - 1] + frequencies[middle]) / 2;
  for (double& weight : weights) weight = weight > 0 ? median / weight : 0;
  return weights;
}

void warn_of_skipped(const Dataset& dataset, std::vector<std::string>& warnings) {
  const std::vector<std::string> skipped = dataset.skipped();
  if (skipped.empty()) return;
  warnings.push_back(concat("data.skip_broken: ", skipped.size(), " of ",
                            dataset.size() + static_cast<std::int64_t>(skipped.size()),
                            " samples are left out"));
  for (const std::string& text : skipped) warnings.push_back(concat("left out: ", text));
}

}  // namespace lockstep
