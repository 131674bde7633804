// Cityscapes: leftImg8bit and gtFine as they are downloaded, 19 classes.

#include <algorithm>
#include <array>
#include <filesystem>

#include "data/formats/file_dataset.h"
#include "data/formats/file_pairs.h"
#include "data/formats/formats.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// clang-format off
constexpr std::array kCityscapesClasses{
    "road", "sidewalk", "building", "wall", "fence", "pole", "traffic light", "traffic sign",
    "vegetation", "terrain", "sky", "person", "rider", "car", "truck", "bus", "train",
    "motorcycle", "bicycle"};

constexpr std::array kCityscapesPalette{
    Color{128, 64, 128}, Color{244, 35, 232}, Color{70, 70, 70}, Color{102, 102, 156},
    Color{190, 153, 153}, Color{153, 153, 153}, Color{250, 170, 30}, Color{220, 220, 0},
    Color{107, 142, 35}, Color{152, 251, 152}, Color{70, 130, 180}, Color{220, 20, 60},
    Color{255, 0, 0}, Color{0, 0, 142}, Color{0, 0, 70}, Color{0, 60, 100}, Color{0, 80, 100},
    Color{0, 0, 230}, Color{119, 11, 32}};
// clang-format on

// [class] the label's id in *_labelIds.png.
constexpr std::array<Label, 19> kLabelIds{7,  8,  11, 12, 13, 17, 19, 20, 21, 22,
                                          23, 24, 25, 26, 27, 28, 31, 32, 33};

constexpr const char* kImageSuffix = "_leftImg8bit.png";
constexpr const char* kLabelIdsSuffix = "_gtFine_labelIds.png";
constexpr const char* kTrainIdsSuffix = "_gtFine_labelTrainIds.png";

std::vector<fs::path> images_of(const fs::path& split, std::vector<std::string>& left_out) {
  check_split_folder(split);
  std::vector<fs::path> images;
  for (const auto& city : fs::directory_iterator(split)) {
    if (!city.is_directory() || is_hidden(city.path())) continue;
    LeftOut others;
    for (const auto& file : fs::directory_iterator(city.path())) {
      if (is_hidden(file.path())) continue;
      if (file.path().filename().string().ends_with(kImageSuffix) && !is_no_file(file)) {
        images.push_back(file.path());
      } else if (file.is_directory()) {
        others.add_folder(file.path());
      } else {
        others.add_file(file.path());
      }
    }
    for (std::string& text : others.sentences(city.path(), "")) left_out.push_back(std::move(text));
  }
  if (images.empty()) {
    throw LayoutError(
        concat(split.string(), ": expected files CITY/*", kImageSuffix, ", found none"));
  }
  std::sort(images.begin(), images.end());
  return images;
}

fs::path mask_of(const fs::path& masks, const fs::path& image, const char* suffix) {
  const std::string name = image.filename().string();
  const std::string stem = name.substr(0, name.size() - std::string(kImageSuffix).size());
  return masks / image.parent_path().filename() / (stem + suffix);
}

FoundPairs cityscapes_pairs(const fs::path& root, const std::string& split, const char*& suffix) {
  check_root(root);
  FoundPairs found;
  const std::vector<fs::path> images = images_of(root / "leftImg8bit" / split, found.left_out);
  const fs::path masks = root / "gtFine" / split;
  check_split_folder(masks);
  // labelIds come with the download; whoever made trainIds has both, or removed the others.
  suffix = kLabelIdsSuffix;
  if (!fs::is_regular_file(mask_of(masks, images[0], suffix))) suffix = kTrainIdsSuffix;
  for (const fs::path& image : images) {
    fs::path mask = mask_of(masks, image, suffix);
    if (!fs::is_regular_file(mask)) {
      throw DataError(concat(image.string(), " has no mask: expected ", mask.string()));
    }
    found.pairs.push_back({image, std::move(mask)});
  }
  return found;
}

// Every id that is none of the 19 classes is ignored: void, rare classes and the licence plate.
MaskRule label_ids(int ignore_index) {
  MaskRule rule;
  for (int value = 0; value < 256; ++value) rule.set(value, ignore_index);
  for (std::size_t c = 0; c < kLabelIds.size(); ++c) rule.set(kLabelIds[c], static_cast<int>(c));
  rule.expected = "a label id of Cityscapes";
  return rule;
}

std::unique_ptr<Dataset> make_cityscapes(const DataOptions& options, Split split, std::uint64_t) {
  if (options.num_classes != static_cast<int>(kCityscapesClasses.size())) {
    throw ConfigError(concat("data.num_classes = ", options.num_classes,
                             ": the layout cityscapes has ", kCityscapesClasses.size(),
                             " classes; leave the key out, or use the layout list for others"));
  }
  check_own_masks(options);
  const char* suffix = nullptr;
  auto pairs = cityscapes_pairs(options.root, split_name(options, split), suffix);
  if (suffix == kLabelIdsSuffix) {
    return std::make_unique<FileDataset>(std::move(pairs), label_ids(options.ignore_index),
                                         options);
  }
  MaskRule rule = mask_rule(options);
  rule.set(255, options.ignore_index);
  return std::make_unique<FileDataset>(std::move(pairs), rule, options);
}

}  // namespace

DataLayout cityscapes_layout() {
  return {.name = "cityscapes",
          .make = make_cityscapes,
          .classes = {kCityscapesClasses.begin(), kCityscapesClasses.end()},
          .fits =
              [](const DataOptions& options) {
                return fs::is_directory(options.root / "leftImg8bit") &&
                       fs::is_directory(options.root / "gtFine");
              },
          .palette = {kCityscapesPalette.begin(), kCityscapesPalette.end()},
          .file_values = {kLabelIds.begin(), kLabelIds.end()}};
}

}  // namespace lockstep
