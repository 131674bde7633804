#include "data/data_warnings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

#include "core/words.h"
#include "data/formats/file_dataset.h"
#include "data/normalize.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// A class that is in one image of ten is missed by 64 images once in a thousand times; in a set of
// many classes some are rarer.
constexpr std::int64_t kSamplesPerClass = 4;
constexpr std::size_t kNamed = 3;
// Of two, one may have what the other has not.
constexpr std::int64_t kFewMasks = 3;
// Crops somewhat larger than the smaller images are common practice.
constexpr double kLeastFilled = 0.5;

std::string part_of(const SplitReport& split) {
  if (split.examined == split.images) return concat("the ", split.images, " images");
  return concat("the ", split.examined, " images looked at, of ", split.images);
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

std::vector<std::string> data_warnings(const SplitReport& split, const DataOptions& options) {
  std::vector<std::string> warnings;
  const std::string where = concat("data (", split.name, "): ");
  if (!split.broken.empty()) {
    warnings.push_back(concat(where, split.broken.size(),
                              split.broken.size() == 1 ? " sample" : " samples",
                              " cannot be read: ", joined(split.broken, kNamed),
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
    warnings.push_back(
        concat(where, missing.size() == 1 ? "class " : "classes ", joined(missing, kNamed),
               missing.size() == 1 ? " does" : " do", " not occur in any of ", part_of(split),
               "; check data.num_classes and the ", segments(options) ? "masks" : "labels"));
  }
  if (!split.without_labels.empty()) {
    warnings.push_back(concat(where, split.without_labels.size(),
                              split.without_labels.size() == 1 ? " image has" : " images have",
                              " no label that counts: ", joined(split.without_labels, kNamed),
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
