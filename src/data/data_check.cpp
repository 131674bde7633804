#include "data/data_check.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <mutex>
#include <numeric>
#include <optional>
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

// A class that is in one image of ten is missed by 64 images once in a thousand times; in a set of
// many classes some are rarer.
constexpr std::int64_t kSamplesPerClass = 4;
constexpr std::int64_t kMostPixels = std::int64_t{1} << 25;
constexpr std::size_t kNamed = 3;
// Of two, one may have what the other has not.
constexpr std::int64_t kFewMasks = 3;
// Crops somewhat larger than the smaller images are common practice.
constexpr double kLeastFilled = 0.5;

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

void find(Found& found, std::int64_t index) {
  if (found.images++ == 0 || index < found.first) found.first = index;
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
      if (c < sums.palette.size()) find(report.colors[static_cast<int>(c)][sums.palette[c]], index);
    }
    find(report.types[sample.image.type], index);
    if (sums.alpha_dropped) find(report.alpha, index);
    if (sums.white_is_zero) find(report.white_is_zero, index);
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
    if (first && ignored && !others) find(report.only_first_class, index);
    if (others && !ignored) find(report.only_classes, index);
    if (others && ignored) find(report.classes_and_ignored, index);
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

std::string count_of_masks(const Found& found) {
  return concat(found.images, found.images == 1 ? " mask" : " masks", " (of ", found.example, ")");
}

// Some masks are black and white, others hold classes.
void warn_of_two_conventions(const SplitReport& split, const DataOptions& options,
                             const std::string& where, std::vector<std::string>& warnings) {
  const bool possible = segments(options) && options.mask_values == MaskValues::kClasses &&
                        options.ignore_index == 255;
  const std::int64_t black_and_white = split.only_first_class.images;
  const std::int64_t classes = split.only_classes.images;
  if (!possible || black_and_white == 0 || classes == 0 || black_and_white + classes < kFewMasks ||
      split.classes_and_ignored.images > 0) {
    return;
  }
  warnings.push_back(
      concat(where, "masks of two kinds: ", count_of_masks(split.only_first_class),
             " hold 0 and 255, ", count_of_masks(split.only_classes),
             " classes and no 255. If 255 is a class in the former, bring all masks ",
             "to one convention; where it is data.ignore_index, it does not count"));
}

// data.palette has the colours, but an index is a class whatever its colour.
bool warn_of_order(const SplitReport& split, const DataOptions& options, const std::string& where,
                   std::vector<std::string>& warnings) {
  const std::map<Color, Label> known = mask_rule(options).colors;
  for (const auto& [label, colors] : split.colors) {
    for (const auto& [color, found] : colors) {
      const auto meant = known.find(color);
      if (meant == known.end() || meant->second == label) continue;
      warnings.push_back(concat(
          where, "palettes of masks are not in the order of data.palette: class ", label, " is ",
          to_string(color), " in ", count_of_masks(found), ", the colour of ", meant->second,
          "; the index counts, not the colour. Save the masks as RGB, or with the palette in the ",
          "order of data.palette"));
      return true;
    }
  }
  return false;
}

// An index is a class whatever its colour: files of other palettes may mean others by it.
void warn_of_palettes(const SplitReport& split, const DataOptions& options,
                      const std::string& where, std::vector<std::string>& warnings) {
  if (split.colors.empty() || warn_of_order(split, options, where, warnings)) return;
  for (const auto& [label, colors] : split.colors) {
    if (colors.size() < 2) continue;
    const auto& [first, of_first] = *colors.begin();
    const auto& [other, of_other] = *std::next(colors.begin());
    warnings.push_back(concat(
        where, "palettes of masks differ: class ", label, " is ", to_string(first), " in ",
        count_of_masks(of_first), " and ", to_string(other), " in ", count_of_masks(of_other),
        "; the index counts, not the colour. If the colours are the classes, ",
        "save the masks as RGB and write data.palette"));
    return;
  }
}

void warn_of_types(const SplitReport& split, const DataOptions& options, const std::string& where,
                   std::vector<std::string>& warnings) {
  if (split.alpha.images > 0) {
    warnings.push_back(
        concat(where, split.alpha.images, " images (", split.alpha.example,
               ") have alpha, which is dropped: data.channels = ", options.channels + 1,
               options.channels == 3 ? " (of gray 2)" : "", " takes it for a channel"));
  }
  if (split.white_is_zero.images > 0) {
    warnings.push_back(concat(where, split.white_is_zero.images, " images (",
                              split.white_is_zero.example,
                              ") have 0 for white (TIFF, MinIsWhite), ",
                              "and their values are taken as they are; where other images have 0 ",
                              "for black, turn these round"));
  }
  if (split.types.size() > 1 && !normalizes_by_image(options)) {
    const auto& [first, of_first] = *split.types.begin();
    const auto& [other, of_other] = *std::next(split.types.begin());
    warnings.push_back(where + several_types(of_first.example, first, of_other.example, other));
  }
  for (std::size_t c = 0; c < split.most.size(); ++c) {
    const bool rgb = split.types.size() == 1 && split.types.contains(PixelType::kUint8) &&
                     split.most.size() == 3;
    if (rgb || split.most[c] > split.least[c] || split.types.empty()) continue;
    warnings.push_back(split.pixels[c] > 0
                           ? concat(where, "channel ", c, " is ", split.least[c], " everywhere")
                           : concat(where, "no pixel of channel ", c, " is there"));
  }
}

std::string text_of(double value) {
  std::array<char, 32> text{};
  return {text.data(),
          std::to_chars(text.data(), text.data() + text.size(), static_cast<float>(value)).ptr};
}

bool stands_for_nothing(double value, bool int16) {
  return value == -9999 || (int16 && value == -32768) || std::abs(value) >= 1e30;
}

// The end of a range in which measured values seldom lie.
void warn_of_undeclared_nodata(const SplitReport& split, const std::string& where,
                               std::vector<std::string>& warnings) {
  const bool int16 = split.types.contains(PixelType::kInt16);
  for (std::size_t c = 0; c < split.least.size(); ++c) {
    for (const double end : {split.least[c], split.most[c]}) {
      if (!stands_for_nothing(end, int16)) continue;
      warnings.push_back(concat(where, "channel ", c, " has values ", text_of(end),
                                ", which often stand for nothing and count here like any: if so, ",
                                "write data.nodata = ", text_of(end)));
      return;
    }
  }
}

// Nothing but 0 and 1, where 255 would be white.
void warn_of_dark(const SplitReport& split, const DataOptions& options, const std::string& where,
                  std::vector<std::string>& warnings) {
  const bool given = normalizes_as_given(options, PixelType::kUint8);
  const bool bytes = split.types.size() == 1 && split.types.contains(PixelType::kUint8);
  const double most =
      split.most.empty() ? 0 : 255 * *std::max_element(split.most.begin(), split.most.end());
  if (!given || !bytes || std::lround(most) != 1 || 255 * options.std.front() <= 1) return;
  warnings.push_back(
      concat(where, "the images hold only 0 and 1, but data.mean and data.std are ",
             "of 8 bits, 0 to 255: to the network all is black. Multiply the images ",
             "by 255, or write data.normalize = \"dataset\""));
}

bool same_pixels(const Image& a, const Image& b) {
  const auto same_floats = [](const std::vector<float>& x, const std::vector<float>& y) {
    return std::ranges::equal(std::as_bytes(std::span(x)), std::as_bytes(std::span(y)));
  };
  return a.width == b.width && a.pixels == b.pixels && a.words == b.words &&
         same_floats(a.floats, b.floats);
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
  Sums sums(dataset, options);
  const std::string name = split_name(options, split);
  const Label ignored = ignored_label(options);
  LongWork work("looking at " + name, "images", static_cast<std::int64_t>(samples.size()));
  for_each_sample(dataset, samples, workers,
                  [&](std::int64_t index, Sample* sample, const DataError* error) {
                    if (sample != nullptr) {
                      if (segments(options)) ignore_missing(sample->image, ignored, sample->labels);
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
                              split.broken.size() == 1 ? " sample" : " samples",
                              " cannot be read: ", listed(split.broken),
                              "; mend them, or leave them out with data.skip_broken = true"));
  }
  if (looks_binary(split, options)) {
    warnings.push_back(concat(where, "the masks of ", part_of(split),
                              " hold only 0 and 255, and 255 is data.ignore_index: everything ",
                              "that counts is class 0. If they are black-and-white pictures, ",
                              "data.mask_values = \"binary\" reads 255 as class 1"));
    return warnings;
  }
  warn_of_two_conventions(split, options, where, warnings);
  if (segments(options)) warn_of_palettes(split, options, where, warnings);
  warn_of_types(split, options, where, warnings);
  warn_of_undeclared_nodata(split, where, warnings);
  warn_of_dark(split, options, where, warnings);
  const std::vector<std::string> missing = missing_classes(split, options);
  const auto classes = static_cast<std::int64_t>(split.class_labels.size());
  const bool can_tell =
      split.examined == split.images || split.examined >= kSamplesPerClass * classes;
  if (!missing.empty() && can_tell && !split.sizes.empty()) {
    warnings.push_back(concat(where, missing.size() == 1 ? "class " : "classes ", listed(missing),
                              missing.size() == 1 ? " does" : " do", " not occur in any of ",
                              part_of(split), "; check data.num_classes and the ",
                              segments(options) ? "masks" : "labels"));
  }
  if (!split.without_labels.empty()) {
    warnings.push_back(concat(where, split.without_labels.size(),
                              split.without_labels.size() == 1 ? " image has" : " images have",
                              " no label that counts: ", listed(split.without_labels),
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
  using Hashed = std::pair<std::uint64_t, std::int64_t>;  // the image's hash, its sample
  std::vector<Hashed> known;
  for (std::int64_t i = 0; i < train.size(); ++i) {
    if (train_report.hashes[at(i)] != 0) known.emplace_back(train_report.hashes[at(i)], i);
  }
  std::sort(known.begin(), known.end());
  std::vector<std::pair<std::int64_t, std::int64_t>> duplicates;
  LongWork work("comparing validation images with training images", "images", val.size());
  for (std::int64_t i = 0; i < val.size(); ++i) {
    work.advance();
    const std::uint64_t hash = val_report.hashes[at(i)];
    // The first that has it: an image that repeats is told of once.
    const auto match = std::lower_bound(known.begin(), known.end(), Hashed{hash, 0});
    if (hash == 0 || match == known.end() || match->first != hash) continue;
    const Image a = train.load(match->second).image;
    const Image b = val.load(i).image;
    if (same_pixels(a, b)) duplicates.emplace_back(match->second, i);
  }
  std::sort(duplicates.begin(), duplicates.end());
  return duplicates;
}

namespace {

/// Samples by what they are called: a hash and an index each, in their order. Of a million samples
/// it takes little memory.
using Names = std::vector<std::pair<std::size_t, std::int64_t>>;

std::size_t name_hash(const Dataset& dataset, std::int64_t index) {
  return std::hash<std::string>{}(dataset.describe(index));
}

Names sample_names(const Dataset& dataset) {
  Names names;
  names.reserve(at(dataset.size()));
  for (std::int64_t i = 0; i < dataset.size(); ++i) names.emplace_back(name_hash(dataset, i), i);
  std::sort(names.begin(), names.end());
  return names;
}

Found repeated(const Names& names) {
  Found found;
  for (std::size_t i = 1; i < names.size(); ++i) {
    if (names[i].first == names[i - 1].first) find(found, names[i].second);
  }
  return found;
}

Found shared(const Names& train, const Dataset& val) {
  Found found;
  for (std::int64_t i = 0; i < val.size(); ++i) {
    const std::size_t hash = name_hash(val, i);
    const auto known =
        std::lower_bound(train.begin(), train.end(), std::pair{hash, std::int64_t{}});
    if (known != train.end() && known->first == hash) find(found, i);
  }
  return found;
}

bool are_in_files(const Dataset& dataset) {
  return dataset.size() > 0 && !dataset.files(0).empty();
}

void warn_of_repeated(const Dataset& dataset, const Found& found, const std::string& split,
                      std::vector<std::string>& warnings) {
  if (found.images == 0) return;
  warnings.push_back(concat("data (", split, "): ", found.images,
                            found.images == 1 ? " sample is" : " samples are",
                            " listed before, such as ", dataset.describe(found.first),
                            ", and count twice; leave the repetitions out unless that is meant"));
}

}  // namespace

std::vector<std::string> repetition_warnings(const Dataset& train, const Dataset& val,
                                             const DataOptions& options) {
  std::vector<std::string> warnings;
  if (!are_in_files(train) || !are_in_files(val)) return warnings;
  const Names names = sample_names(train);
  warn_of_repeated(train, repeated(names), options.train, warnings);
  warn_of_repeated(val, repeated(sample_names(val)), options.val, warnings);
  if (const Found found = shared(names, val); found.images > 0) {
    warnings.push_back(concat("data: ", found.images, " validation images are training images, ",
                              "too, such as ", val.describe(found.first),
                              "; the validation flatters"));
  }
  return warnings;
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

void warn_of_padding(Size size, Size padded, std::vector<std::string>& warnings) {
  if (size == padded) return;
  warnings.push_back(concat("data: training images of ", to_string(size), " are padded to ",
                            to_string(padded), ", as evaluation pads them: the network needs ",
                            "multiples. What is added does not count"));
}

void warn_of_skipped(const Dataset& dataset, std::vector<std::string>& warnings) {
  for (const std::string& text : dataset.left_out()) warnings.push_back("data: " + text);
  const std::vector<std::string> skipped = dataset.skipped();
  if (skipped.empty()) return;
  warnings.push_back(concat("data.skip_broken: ", skipped.size(), " of ",
                            dataset.size() + static_cast<std::int64_t>(skipped.size()),
                            " samples are left out"));
  for (const std::string& text : skipped) warnings.push_back(concat("left out: ", text));
}

}  // namespace lockstep
