#include "data/data_check.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <mutex>
#include <numeric>
#include <span>
#include <string_view>

#include "data/for_each_sample.h"
#include "data/formats/file_dataset.h"
#include "data/normalize.h"
#include "io/image_io.h"
#include "io/raw_pixels.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMostPixels = std::int64_t{1} << 25;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// What one sample adds, before it is added under a lock.
struct SampleSums {
  std::vector<std::int64_t> class_labels;
  std::int64_t labels = 0, ignored = 0;
  std::vector<PixelMoments> moments;  // [channel]
  std::uint64_t hash = 0;
  bool alpha_dropped = false, white_is_zero = false;
  std::vector<Color> palette;  // of the mask
};

std::uint64_t hash_of(const Image& image) {
  const std::string_view bytes = with_values(image, [](const auto& values) {
    return std::string_view(reinterpret_cast<const char*>(values.data()),
                            values.size() * sizeof(values.front()));
  });
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
  sums.moments = moments_of(sample.image);
  const bool there = std::any_of(sums.moments.begin(), sums.moments.end(),
                                 [](const PixelMoments& channel) { return channel.count > 0; });
  sums.hash = there ? hash_of(sample.image) : 0;  // of nothing there are no copies
  return sums;
}

// What the files say beside the pixels that are learnt from.
void look_at_files(const std::vector<std::string>& files, const DataOptions& options,
                   SampleSums& sums) {
  if (!files.empty()) {
    const ImageInfo info = read_image_info(files.front(), image_rule(options));
    sums.alpha_dropped = info.alpha && options.bands.empty() && options.channels != info.channels;
    sums.white_is_zero = info.white_is_zero;
  }
  if (files.size() > 1) sums.palette = read_palette(files[1]);
}

// The sums of all samples: integers, so that the order of adding does not matter.
class Sums {
 public:
  Sums(const Dataset& dataset, const DataOptions& options)
      : dataset_(dataset), options_(options), classes_(class_count(options)) {
    const auto count = at(classes_);
    moments_.resize(at(dataset.size()));
    report.class_labels.assign(count, 0);
    report.class_images.assign(count, 0);
    report.beside_class.assign(count, 0);
    report.images = dataset.size();
    report.hashes.assign(at(dataset.size()), 0);
  }

  void add(std::int64_t index, const Sample& sample) {
    SampleSums sums = sum_of(sample, classes_);
    const auto files = dataset_.files(index);
    if (!is_record(files, index)) look_at_files(files, options_, sums);
    const std::lock_guard lock(mutex_);
    ++report.examined;
    ++report.sizes[{sample.image.height, sample.image.width}];
    report.hashes[at(index)] = sums.hash;
    report.labels += sums.labels;
    report.ignored += sums.ignored;
    if (sums.labels == 0) without_labels_.push_back(index);
    add_mask(index, sums);
    for (std::size_t c = 0; c < sums.class_labels.size(); ++c) {
      report.class_labels[c] += sums.class_labels[c];
      if (sums.class_labels[c] == 0) continue;
      ++report.class_images[c];
      report.beside_class[c] += sums.labels;
      if (c < sums.palette.size()) report.colors[static_cast<int>(c)][sums.palette[c]].add(index);
    }
    report.types[sample.image.type].add(index);
    if (sums.alpha_dropped) report.alpha.add(index);
    if (sums.white_is_zero) report.white_is_zero.add(index);
    moments_[at(index)] = std::move(sums.moments);
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
    for (Found* found : {&report.only_first_class, &report.only_classes,
                         &report.classes_and_ignored, &report.alpha, &report.white_is_zero})
      name(*found);
    for (auto& [type, found] : report.types) name(found);
    for (auto& [label, colors] : report.colors) {
      for (auto& [color, found] : colors) name(found);
    }
    add_up_moments();
  }

  SplitReport report;

 private:
  void add_mask(std::int64_t index, const SampleSums& sums) {
    const bool first = !sums.class_labels.empty() && sums.class_labels[0] > 0;
    const bool others = !sums.class_labels.empty() && sums.class_labels[0] < sums.labels;
    const bool ignored = sums.ignored > 0;
    if (first && ignored && !others) report.only_first_class.add(index);
    if (others && !ignored) report.only_classes.add(index);
    if (others && ignored) report.classes_and_ignored.add(index);
  }
  // In the samples' order, whoever looked at them first.
  void add_up_moments() {
    std::vector<PixelMoments> all(at(options_.channels));
    for (const std::vector<PixelMoments>& of_image : moments_) {
      for (std::size_t c = 0; c < std::min(all.size(), of_image.size()); ++c)
        all[c].add(of_image[c]);
    }
    const bool bytes = report.types.size() == 1 && report.types.contains(PixelType::kUint8);
    const double unit = bytes ? 255 : 1;
    for (const PixelMoments& channel : all) {
      report.pixels.push_back(channel.count);
      report.mean.push_back(channel.mean / unit);
      report.std.push_back(channel.deviation() / unit);
      report.least.push_back(channel.least / unit);
      report.most.push_back(channel.most / unit);
    }
  }
  // Of a file of many samples, no image's.
  bool is_record(const std::vector<std::string>& files, std::int64_t index) const {
    return files.empty() || files.front() != dataset_.describe(index);
  }
  void name(Found& found) const {
    if (found.images > 0) found.example = dataset_.describe(found.first);
  }

  const Dataset& dataset_;
  const DataOptions& options_;
  int classes_;
  std::mutex mutex_;  // guards all that add changes
  std::vector<std::int64_t> without_labels_;
  std::map<std::int64_t, std::string> broken_;
  std::vector<std::vector<PixelMoments>> moments_;  // [sample][channel]
};

/// Of the first image that has a header; what is wrong with the others is found later.
Size first_size(const Dataset& dataset) {
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    try {
      return dataset.image_size(i);
    } catch (const DataError&) {
    }
  }
  return {};
}

}  // namespace

SplitReport examine_split(const Dataset& dataset, const DataOptions& options, Split split,
                          std::span<const std::int64_t> samples, int workers) {
  Sums sums(dataset, options);
  const std::string name = split_name(options, split);
  const Label ignored = ignored_label(options);
  const bool masks = find_layout(options).task == Task::kSegmentation;
  LongWork work("looking at " + name, "images", static_cast<std::int64_t>(samples.size()));
  for_each_sample(dataset, samples, workers,
                  [&](std::int64_t index, Sample* sample, const DataError* error) {
                    if (sample != nullptr) {
                      if (masks) ignore_missing(sample->image, ignored, sample->labels);
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
  if (count == 0) {
    std::vector<std::int64_t> all(at(dataset.size()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  const Size size = first_size(dataset);
  const std::int64_t pixels = std::int64_t{size.height} * size.width;
  count = std::clamp<std::int64_t>(kMostPixels / std::max<std::int64_t>(pixels, 1), 1, count);
  count = std::min(count, dataset.size());
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < count; ++i) samples.push_back(i * dataset.size() / count);
  return samples;
}

std::vector<double> median_frequency_weights(const SplitReport& split) {
  std::vector<double> weights(split.class_labels.size(), 0);
  std::vector<double> frequencies;
  const bool one_label_each = split.labels + split.ignored <= split.examined;
  for (std::size_t c = 0; c < weights.size(); ++c) {
    if (split.class_labels[c] == 0) continue;
    const std::int64_t among = one_label_each ? split.labels : split.beside_class[c];
    weights[c] = static_cast<double>(split.class_labels[c]) / static_cast<double>(among);
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

}  // namespace lockstep
