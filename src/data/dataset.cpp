#include "lockstep/data/dataset.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <utility>

#include "core/number_check.h"
#include "core/words.h"
#include "data/changed_datasets.h"
#include "data/formats/file_dataset.h"
#include "data/formats/file_pairs.h"
#include "data/formats/formats.h"
#include "data/normalize.h"
#include "data/procedural/shapes.h"
#include "data/procedural/streets.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// CamVid's value for what belongs to no class.
constexpr int kCamvidVoid = 11;

const std::vector<std::string>& street_class_names() {
  static const std::vector<std::string> names = {"sky",      "building",   "pole",        "road",
                                                 "pavement", "tree",       "sign_symbol", "fence",
                                                 "car",      "pedestrian", "bicyclist"};
  return names;
}

// Of the original CamVid's label_colors.txt.
constexpr std::array kStreetPalette{Color{128, 128, 128}, Color{128, 0, 0},   Color{192, 192, 128},
                                    Color{128, 64, 128},  Color{0, 0, 192},   Color{128, 128, 0},
                                    Color{192, 128, 128}, Color{64, 64, 128}, Color{64, 0, 128},
                                    Color{64, 64, 0},     Color{0, 128, 192}};

std::vector<Color> street_palette() { return {kStreetPalette.begin(), kStreetPalette.end()}; }

PairRule pair_rule(const DataOptions& options) {
  return {options.mask_suffix, options.subfolders, options.val_share.has_value(),
          options.channel_files};
}

std::unique_ptr<Dataset> make_folder(const DataOptions& options, Split split, std::uint64_t) {
  MaskRule rule = mask_rule(options);
  return std::make_unique<FileDataset>(
      folder_pairs(options.root, split_name(options, split), pair_rule(options)), std::move(rule),
      options);
}

std::unique_ptr<Dataset> make_list(const DataOptions& options, Split split, std::uint64_t) {
  MaskRule rule = mask_rule(options);
  return std::make_unique<FileDataset>(list_pairs(options.root, split_name(options, split)),
                                       std::move(rule), options);
}

std::unique_ptr<Dataset> make_camvid(const DataOptions& options, Split split, std::uint64_t) {
  check_own_masks(options);
  MaskRule rule = mask_rule(options);
  // With other classes, 11 may be one of them.
  if (options.num_classes == static_cast<int>(street_class_names().size()))
    rule.set(kCamvidVoid, options.ignore_index);
  return std::make_unique<FileDataset>(
      camvid_pairs(options.root, split_name(options, split), pair_rule(options)), rule, options);
}

// Figures are told by the names of their classes: of two of one name, one would be lost.
const std::vector<std::string>& check_distinct(const std::vector<std::string>& names) {
  std::vector<std::string> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return names;
  throw ConfigError(concat("two classes have the name \"", *twice,
                           "\"; give every class one of its own in data.classes"));
}

/// As a configuration holds its keys to their ranges.
struct DataNumberCheck : NumberCheck {
  using NumberCheck::operator();
  void operator()(const char* key, const Size& size, const char*, const Option& = {}) {
    for (const int side : {size.height, size.width})
      check_number(whose + key, side, {.lo = 1, .hi = 65536});
  }
  void operator()(const char* key, const std::array<float, 2>& range, const char*,
                  const Option& option = {}) {
    check_number(whose + key, range[0], {.lo = 0, .hi = range[1], .above = true});
    check_number(whose + key, range[1], {.hi = option.in.hi});
  }
  void operator()(const char* key, const ExposureOptions& exposure, const char*,
                  const Option& = {}) {
    check_number(whose + key, exposure.lo, {.lo = 0, .hi = 1, .above = true});
    check_number(whose + key, exposure.offset, {.lo = 0, .hi = 255});
  }
  template <typename Value>
  void operator()(const char* key, const std::optional<Value>& value, const char* says,
                  const Option& option = {}) {
    if (value) (*this)(key, *value, says, option);
  }
  void section(const char* name, std::optional<AugmentOptions>& augment) {
    DataNumberCheck check{{concat(whose, name, ".")}};
    if (augment) augment->visit_options(check);
  }
};

bool has_folders(const DataOptions& options, std::initializer_list<std::filesystem::path> below) {
  return std::all_of(below.begin(), below.end(), [&](const std::filesystem::path& folder) {
    std::error_code unreadable;
    return std::filesystem::is_directory(options.root / folder, unreadable);
  });
}

bool fits_folder(const DataOptions& options) {
  return has_folders(options, {std::filesystem::path("images") / options.train,
                               std::filesystem::path("masks") / options.train});
}

bool fits_camvid(const DataOptions& options) {
  return has_folders(options, {options.train, options.train + "annot"});
}

bool fits_list(const DataOptions& options) {
  std::error_code unreadable;
  return std::filesystem::is_regular_file(options.root / options.train, unreadable) ||
         std::filesystem::is_regular_file(options.root / (options.train + ".txt"), unreadable);
}

/// "; it looks like data.layout = "voc"" where another layout would find its files, or nothing.
std::string layout_hint(const DataOptions& options) {
  const auto fits = [&](const DataLayout& layout) {
    try {
      return layout.name != options.layout && layout.fits && layout.fits(options);
    } catch (const std::filesystem::filesystem_error&) {
      return false;
    }
  };
  const auto layout = std::find_if(options.layouts->begin(), options.layouts->end(), fits);
  if (layout == options.layouts->end()) return "";
  return concat("; the files lie as data.layout = \"", layout->name, "\" has them");
}

std::string hint(const DataOptions& options, Split split) {
  const std::string layout = layout_hint(options);
  if (!layout.empty() || split != Split::kVal || options.val_share) return layout;
  return "; data.val_share = 0.2 would validate by a share of the training images";
}

std::unique_ptr<Dataset> made_by(const DataLayout& layout, const DataOptions& options, Split split,
                                 std::uint64_t seed) {
  if (layout.make) {
    if (auto dataset = layout.make(options, split, seed)) return dataset;
  }
  throw ConfigError(concat("the layout '", layout.name, "' makes no data set (DataLayout::make)"));
}

std::unique_ptr<Dataset> make_of_layout(const DataOptions& options, Split split,
                                        std::uint64_t seed) {
  const DataLayout& layout = find_layout(options);
  if (!options.val_share || layout.generated) return made_by(layout, options, split, seed);
  return share_of(made_by(layout, options, Split::kTrain, seed), options.root, *options.val_share,
                  split);
}

}  // namespace

Sample Dataset::load(std::int64_t index) const {
  Sample sample;
  load(index, sample);
  return sample;
}

const LayoutTable& builtin_layouts() {
  static const LayoutTable layouts{
      {.name = "folder", .make = make_folder, .pairs_by_name = true, .fits = fits_folder},
      {.name = "list", .make = make_list, .fits = fits_list},
      voc_layout(),
      cityscapes_layout(),
      ade20k_layout(),
      {.name = "camvid",
       .make = make_camvid,
       .classes = street_class_names(),
       .pairs_by_name = true,
       .fits = fits_camvid,
       .palette = street_palette()},
      {.name = "streets",
       .make = make_streets,
       .classes = street_class_names(),
       .generated = true,
       .palette = street_palette()},
      {.name = "imagefolder",
       .make = make_image_folder,
       .find_classes = image_folder_classes,
       .task = Task::kClassification,
       .fits = fits_image_folder},
      {.name = "cifar10",
       .make = make_cifar10,
       .classes = cifar10_class_names(),
       .task = Task::kClassification},
      {.name = "shapes",
       .make = make_shapes,
       .classes = shape_class_names(),
       .task = Task::kClassification,
       .generated = true}};
  return layouts;
}

const DataLayout& find_layout(const DataOptions& options) {
  if (options.layouts == nullptr) {
    throw ConfigError("DataOptions::layouts is null; give a table, such as builtin_layouts()");
  }
  const LayoutTable& layouts = *options.layouts;
  const auto found = std::find_if(layouts.begin(), layouts.end(), [&](const DataLayout& layout) {
    return layout.name == options.layout;
  });
  if (found != layouts.end()) return *found;
  throw ConfigError(concat("there is no data layout '", options.layout, "'; expected one of: ",
                           joined(layouts | std::views::transform(&DataLayout::name))));
}

std::unique_ptr<Dataset> make_dataset(const DataOptions& options, Split split, std::uint64_t seed) {
  DataOptions own = options;
  own.num_classes = class_count(options);
  DataNumberCheck check{{"DataOptions::"}};
  own.visit_options(check);
  check_channels(own);
  std::unique_ptr<Dataset> dataset;
  try {
    dataset = make_of_layout(own, split, seed);
  } catch (const LayoutError& error) {
    throw LayoutError(error.what() + hint(own, split));
  } catch (const std::filesystem::filesystem_error& error) {
    throw unreadable(error);
  }
  dataset = whole_samples(std::move(dataset), find_layout(own).task);
  if (const Label ignored = ignored_label(own); ignored != own.ignore_index)
    dataset = relabelled(std::move(dataset), static_cast<Label>(own.ignore_index), ignored);
  return options.skip_broken ? leave_out_broken(std::move(dataset), options.workers)
                             : std::move(dataset);
}

bool DataOptions::has_classes_in_data() const {
  return layouts != nullptr &&
         std::any_of(layouts->begin(), layouts->end(),
                     [&](const auto& known) { return known.name == layout && known.find_classes; });
}

std::vector<std::string> layout_classes(const DataOptions& options) {
  const DataLayout& layout = find_layout(options);
  if (!layout.find_classes) return layout.classes;
  try {
    return layout.find_classes(options);
  } catch (const std::filesystem::filesystem_error& error) {
    throw unreadable(error);
  }
}

int class_count(const DataOptions& options) {
  if (options.num_classes > 0) return options.num_classes;
  const auto own = static_cast<int>(layout_classes(options).size());
  if (options.num_classes < 0 || own == 0) {
    throw ConfigError(concat("data.num_classes = ", options.num_classes,
                             ": expected the number of classes, ", "ignored values left out"));
  }
  return own;
}

Label ignored_label(const DataOptions& options) {
  const bool is_class = options.ignore_index >= 0 && options.ignore_index < class_count(options);
  return is_class ? std::numeric_limits<Label>::max() : static_cast<Label>(options.ignore_index);
}

std::vector<std::string> class_names(const DataOptions& options) {
  const int count = class_count(options);
  if (!options.classes.empty()) {
    if (static_cast<int>(options.classes.size()) != count) {
      throw ConfigError(concat("data.classes has ", options.classes.size(),
                               " names, but data.num_classes = ", count));
    }
    return check_distinct(options.classes);
  }
  std::vector<std::string> own;
  try {
    own = layout_classes(options);
  } catch (const DataError& error) {
    throw DataError(concat(error.what(), "; without the data, data.classes = [...] names the ",
                           count, " classes"));
  }
  if (static_cast<int>(own.size()) == count) return check_distinct(own);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(concat("class_", i));
  return names;
}

std::vector<Color> class_colors(const DataOptions& options) {
  const auto count = static_cast<std::size_t>(class_count(options));
  std::vector<Color> colors;
  for (const std::string& text : options.palette) colors.push_back(parse_color(text));
  if (colors.empty()) colors = find_layout(options).palette;
  if (colors.size() == count) return colors;
  if (!options.palette.empty()) {
    throw ConfigError(concat("data.palette has ", colors.size(), " colours, but there are ", count,
                             " classes; expected one for each"));
  }
  colors.clear();
  for (std::size_t c = 0; c < count; ++c) colors.push_back(voc_color(static_cast<int>(c)));
  return colors;
}

}  // namespace lockstep
