// ADE20K as the scene parsing benchmark has it: 150 classes, 0 is what belongs to none.

#include <array>
#include <filesystem>
#include <numeric>

#include "data/formats/file_dataset.h"
#include "data/formats/file_pairs.h"
#include "data/formats/formats.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// clang-format off
constexpr std::array kAde20kClasses{
    "wall", "building", "sky", "floor", "tree", "ceiling", "road", "bed", "windowpane", "grass",
    "cabinet", "sidewalk", "person", "earth", "door", "table", "mountain", "plant", "curtain",
    "chair", "car", "water", "painting", "sofa", "shelf", "house", "sea", "mirror", "rug",
    "field", "armchair", "seat", "fence", "desk", "rock", "wardrobe", "lamp", "bathtub",
    "railing", "cushion", "base", "box", "column", "signboard", "chest of drawers", "counter",
    "sand", "sink", "skyscraper", "fireplace", "refrigerator", "grandstand", "path", "stairs",
    "runway", "case", "pool table", "pillow", "screen door", "stairway", "river", "bridge",
    "bookcase", "blind", "coffee table", "toilet", "flower", "book", "hill", "bench",
    "countertop", "stove", "palm", "kitchen island", "computer", "swivel chair", "boat", "bar",
    "arcade machine", "hovel", "bus", "towel", "light", "truck", "tower", "chandelier",
    "awning", "streetlight", "booth", "television receiver", "airplane", "dirt track",
    "apparel", "pole", "land", "bannister", "escalator", "ottoman", "bottle", "buffet",
    "poster", "stage", "van", "ship", "fountain", "conveyer belt", "canopy", "washer",
    "plaything", "swimming pool", "stool", "barrel", "basket", "waterfall", "tent", "bag",
    "minibike", "cradle", "oven", "ball", "food", "step", "tank", "trade name", "microwave",
    "pot", "animal", "bicycle", "lake", "dishwasher", "screen", "blanket", "sculpture", "hood",
    "sconce", "vase", "traffic light", "tray", "ashcan", "fan", "pier", "crt screen", "plate",
    "monitor", "bulletin board", "shower", "radiator", "glass", "clock", "flag"};

constexpr std::array kAde20kPalette{
    Color{120, 120, 120}, Color{180, 120, 120}, Color{6, 230, 230}, Color{80, 50, 50},
    Color{4, 200, 3}, Color{120, 120, 80}, Color{140, 140, 140}, Color{204, 5, 255},
    Color{230, 230, 230}, Color{4, 250, 7}, Color{224, 5, 255}, Color{235, 255, 7},
    Color{150, 5, 61}, Color{120, 120, 70}, Color{8, 255, 51}, Color{255, 6, 82},
    Color{143, 255, 140}, Color{204, 255, 4}, Color{255, 51, 7}, Color{204, 70, 3},
    Color{0, 102, 200}, Color{61, 230, 250}, Color{255, 6, 51}, Color{11, 102, 255},
    Color{255, 7, 71}, Color{255, 9, 224}, Color{9, 7, 230}, Color{220, 220, 220},
    Color{255, 9, 92}, Color{112, 9, 255}, Color{8, 255, 214}, Color{7, 255, 224},
    Color{255, 184, 6}, Color{10, 255, 71}, Color{255, 41, 10}, Color{7, 255, 255},
    Color{224, 255, 8}, Color{102, 8, 255}, Color{255, 61, 6}, Color{255, 194, 7},
    Color{255, 122, 8}, Color{0, 255, 20}, Color{255, 8, 41}, Color{255, 5, 153},
    Color{6, 51, 255}, Color{235, 12, 255}, Color{160, 150, 20}, Color{0, 163, 255},
    Color{140, 140, 140}, Color{250, 10, 15}, Color{20, 255, 0}, Color{31, 255, 0},
    Color{255, 31, 0}, Color{255, 224, 0}, Color{153, 255, 0}, Color{0, 0, 255},
    Color{255, 71, 0}, Color{0, 235, 255}, Color{0, 173, 255}, Color{31, 0, 255},
    Color{11, 200, 200}, Color{255, 82, 0}, Color{0, 255, 245}, Color{0, 61, 255},
    Color{0, 255, 112}, Color{0, 255, 133}, Color{255, 0, 0}, Color{255, 163, 0},
    Color{255, 102, 0}, Color{194, 255, 0}, Color{0, 143, 255}, Color{51, 255, 0},
    Color{0, 82, 255}, Color{0, 255, 41}, Color{0, 255, 173}, Color{10, 0, 255},
    Color{173, 255, 0}, Color{0, 255, 153}, Color{255, 92, 0}, Color{255, 0, 255},
    Color{255, 0, 245}, Color{255, 0, 102}, Color{255, 173, 0}, Color{255, 0, 20},
    Color{255, 184, 184}, Color{0, 31, 255}, Color{0, 255, 61}, Color{0, 71, 255},
    Color{255, 0, 204}, Color{0, 255, 194}, Color{0, 255, 82}, Color{0, 10, 255},
    Color{0, 112, 255}, Color{51, 0, 255}, Color{0, 194, 255}, Color{0, 122, 255},
    Color{0, 255, 163}, Color{255, 153, 0}, Color{0, 255, 10}, Color{255, 112, 0},
    Color{143, 255, 0}, Color{82, 0, 255}, Color{163, 255, 0}, Color{255, 235, 0},
    Color{8, 184, 170}, Color{133, 0, 255}, Color{0, 255, 92}, Color{184, 0, 255},
    Color{255, 0, 31}, Color{0, 184, 255}, Color{0, 214, 255}, Color{255, 0, 112},
    Color{92, 255, 0}, Color{0, 224, 255}, Color{112, 224, 255}, Color{70, 184, 160},
    Color{163, 0, 255}, Color{153, 0, 255}, Color{71, 255, 0}, Color{255, 0, 163},
    Color{255, 204, 0}, Color{255, 0, 143}, Color{0, 255, 235}, Color{133, 255, 0},
    Color{255, 0, 235}, Color{245, 0, 255}, Color{255, 0, 122}, Color{255, 245, 0},
    Color{10, 190, 212}, Color{214, 255, 0}, Color{0, 204, 255}, Color{20, 0, 255},
    Color{255, 255, 0}, Color{0, 153, 255}, Color{0, 41, 255}, Color{0, 255, 204},
    Color{41, 0, 255}, Color{41, 255, 0}, Color{173, 0, 255}, Color{0, 245, 255},
    Color{71, 0, 255}, Color{122, 0, 255}, Color{0, 255, 184}, Color{0, 92, 255},
    Color{184, 255, 0}, Color{0, 133, 255}, Color{255, 214, 0}, Color{25, 194, 194},
    Color{102, 255, 0}, Color{92, 0, 255}};
// clang-format on

// Empty: it is not there.
fs::path find_benchmark_folder(const fs::path& root) {
  for (const fs::path& folder : {root, root / "ADEChallengeData2016"}) {
    if (fs::is_directory(folder / "annotations")) return folder;
  }
  return "";
}

fs::path benchmark_folder(const fs::path& root) {
  if (const fs::path folder = find_benchmark_folder(root); !folder.empty()) return folder;
  throw LayoutError(
      concat("expected images and annotations in ", root.string(), " or its ADEChallengeData2016"));
}

// The archive's own names for what others call train and val.
std::string folder_of(const std::string& split) {
  if (split == "train") return "training";
  if (split == "val") return "validation";
  return split;
}

// In the files 0 is "other", and class c is c + 1.
MaskRule shifted(int classes, int ignore_index) {
  MaskRule rule;
  rule.set(0, ignore_index);
  for (int c = 0; c < classes; ++c) rule.set(c + 1, c);
  rule.expected = concat("0 (other) or a class in 1..", classes);
  return rule;
}

std::unique_ptr<Dataset> make_ade20k(const DataOptions& options, Split split, std::uint64_t) {
  check_own_masks(options);
  check_root(options.root);
  const fs::path root = benchmark_folder(options.root);
  const std::string folder = folder_of(split_name(options, split));
  return std::make_unique<FileDataset>(
      pair_by_stem(root / "images" / folder, root / "annotations" / folder),
      shifted(options.num_classes, options.ignore_index), options);
}

}  // namespace

DataLayout ade20k_layout() {
  std::vector<Label> values(kAde20kClasses.size());
  std::iota(values.begin(), values.end(), Label{1});
  return {
      .name = "ade20k",
      .make = make_ade20k,
      .classes = {kAde20kClasses.begin(), kAde20kClasses.end()},
      .fits =
          [](const DataOptions& options) { return !find_benchmark_folder(options.root).empty(); },
      .palette = {kAde20kPalette.begin(), kAde20kPalette.end()},
      .file_values = values};
}

}  // namespace lockstep
