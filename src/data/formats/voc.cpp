// Pascal VOC 2012's segmentation: JPEGImages, SegmentationClass and the lists of ImageSets.

#include <array>
#include <filesystem>

#include "data/formats/file_dataset.h"
#include "data/formats/file_pairs.h"
#include "data/formats/formats.h"
#include "lockstep/core/check.h"
#include "lockstep/io/image.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Borders and what is too difficult.
constexpr int kBorder = 255;

// clang-format off
constexpr std::array kVocClasses{
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat",
    "chair", "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant",
    "sheep", "sofa", "train", "tvmonitor"};
// clang-format on

// The archive unpacks to VOCdevkit/VOC2012. Empty: it is not there.
fs::path find_year_folder(const fs::path& root) {
  for (const fs::path& folder : {root, root / "VOC2012", root / "VOCdevkit" / "VOC2012"}) {
    if (fs::is_directory(folder / "JPEGImages")) return folder;
  }
  return "";
}

fs::path year_folder(const fs::path& root) {
  if (const fs::path folder = find_year_folder(root); !folder.empty()) return folder;
  throw LayoutError(concat("expected JPEGImages, SegmentationClass and ImageSets/Segmentation in ",
                           root.string(), ", its VOC2012 or its VOCdevkit/VOC2012"));
}

// The masks of SBD lie beside VOC's own, mostly as SegmentationClassAug; an augmented list means
// them.
fs::path mask_of(const fs::path& year, const std::string& id, bool augmented) {
  const std::string name = id + ".png";
  const fs::path from_sbd = year / "SegmentationClassAug" / name;
  if (augmented && fs::is_regular_file(from_sbd)) return from_sbd;
  return year / "SegmentationClass" / name;
}

FoundPairs voc_pairs(const fs::path& root, const std::string& split) {
  check_root(root);
  const fs::path year = year_folder(root);
  const fs::path list = year / "ImageSets" / "Segmentation" / (split + ".txt");
  const bool augmented = split.find("aug") != std::string::npos;
  FoundPairs found;
  KnownFiles known;
  for (const ListLine& line : read_list(list)) {
    if (line.words.size() > 1) {
      found.pairs.push_back(pair_of_line(year, list, line, known));
      continue;
    }
    const std::string& id = line.words[0];
    found.pairs.push_back({year / "JPEGImages" / (id + ".jpg"), mask_of(year, id, augmented)});
  }
  return found;
}

}  // namespace

DataLayout voc_layout() {
  DataLayout layout;
  layout.name = "voc";
  layout.fits = [](const DataOptions& options) { return !find_year_folder(options.root).empty(); };
  layout.classes = {kVocClasses.begin(), kVocClasses.end()};
  for (std::size_t c = 0; c < kVocClasses.size(); ++c)
    layout.palette.push_back(voc_color(static_cast<int>(c)));
  layout.make = [](const DataOptions& options, Split split, std::uint64_t) {
    check_own_masks(options);
    MaskRule rule = mask_rule(options);
    if (options.num_classes <= kBorder) rule.set(kBorder, options.ignore_index);
    return std::make_unique<FileDataset>(voc_pairs(options.root, split_name(options, split)), rule,
                                         options);
  };
  return layout;
}

}  // namespace lockstep
