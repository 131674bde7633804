#include "data/formats/file_dataset.h"

#include <algorithm>
#include <utility>

#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "lockstep/io/image.h"

namespace lockstep {
namespace {

constexpr int kMaxValue = 65535;  // masks have 16 bits at most

bool only_0_and_255(const LabelMap& labels) {
  return std::all_of(labels.pixels.begin(), labels.pixels.end(),
                     [](Label value) { return value == 0 || value == 255; });
}

std::string place(std::size_t pixel, int width) {
  const auto columns = static_cast<std::size_t>(width);
  return concat("at row ", pixel / columns, ", column ", pixel % columns);
}

void add_color(MaskRule& rule, const Color& color, int label) {
  const auto [known, added] = rule.colors.emplace(color, static_cast<Label>(label));
  if (!added) {
    throw ConfigError(concat("the colour ", to_string(color), " occurs twice in data.palette and ",
                             "data.ignore_colors: masks in RGB cannot be read by it"));
  }
}

MaskRule black_and_white(const DataOptions& options) {
  if (options.num_classes != 2) {
    throw ConfigError(concat("data.mask_values = \"binary\" has the classes 0 and 1, but ",
                             "data.num_classes = ", options.num_classes, ": expected 2"));
  }
  MaskRule rule;
  rule.set(0, 0);
  rule.set(255, 1);
  rule.expected = "0 or 255, because of data.mask_values = \"binary\"";
  return rule;
}

}  // namespace

void MaskRule::set(int value, int label) {
  LOCKSTEP_CHECK(value >= 0 && value <= kMaxValue, "a mask's value cannot be ", value);
  const auto slot = static_cast<std::size_t>(value);
  if (labels.size() <= slot) labels.resize(slot + 1, kNotAllowed);
  labels[slot] = label;
}

MaskRule mask_rule(const DataOptions& options) {
  if (options.ignore_index < 0 || options.ignore_index > kMaxValue) {
    throw ConfigError(
        concat("data.ignore_index = ", options.ignore_index, ": expected 0..", kMaxValue));
  }
  if (options.num_classes > 255 && options.ignore_index == 255) {
    throw ConfigError(concat("data.num_classes = ", options.num_classes,
                             " has a class 255, which data.ignore_index = 255 would leave out; ",
                             "write data.ignore_index = 65535, say"));
  }
  if (options.mask_values == MaskValues::kBinary) return black_and_white(options);
  MaskRule rule;
  for (int c = 0; c < options.num_classes; ++c) rule.set(c, c);
  rule.set(options.ignore_index, options.ignore_index);
  rule.expected =
      concat("a class in 0..", options.num_classes - 1, " or ignore_index ", options.ignore_index);
  if (options.palette.empty()) return rule;
  const std::vector<Color> colors = class_colors(options);
  for (std::size_t c = 0; c < colors.size(); ++c) add_color(rule, colors[c], static_cast<int>(c));
  for (const std::string& text : options.ignore_colors)
    add_color(rule, parse_color(text), options.ignore_index);
  return rule;
}

void check_own_masks(const DataOptions& options) {
  if (options.mask_values == MaskValues::kClasses) return;
  throw ConfigError(concat("data.mask_values = \"binary\": masks of layout ", options.layout,
                           " are its own; leave the key out, or use the layout folder or list"));
}

const std::string& split_name(const DataOptions& options, Split split) {
  return split == Split::kTrain ? options.train : options.val;
}

FileDataset::FileDataset(std::vector<FilePair> pairs, MaskRule rule)
    : pairs_(std::move(pairs)), rule_(std::move(rule)) {}

const FilePair& FileDataset::pair(std::int64_t index) const {
  LOCKSTEP_CHECK(index >= 0 && index < size(), "sample ", index, " of a data set of ", size());
  return pairs_[static_cast<std::size_t>(index)];
}

void FileDataset::load(std::int64_t index, Sample& sample) const {
  const FilePair& files = pair(index);
  read_image(files.image, sample.image);
  Image colored;
  const MaskKind kind = read_mask(files.mask, sample.labels, colored);
  if (kind == MaskKind::kColors) map_colors(files, colored, sample.labels);
  const Size image{sample.image.height, sample.image.width};
  const Size mask{sample.labels.height, sample.labels.width};
  if (image != mask) {
    throw DataError(concat(files.mask.string(), ": expected the image's size ", to_string(image),
                           " (", files.image.string(), "), got ", to_string(mask)));
  }
  if (kind == MaskKind::kValues) map_values(files, sample.labels);
}

void FileDataset::map_values(const FilePair& files, LabelMap& labels) const {
  for (std::size_t i = 0; i < labels.pixels.size(); ++i) {
    if (rule_.label_of(labels.pixels[i]) == MaskRule::kNotAllowed)
      throw_bad_value(files, labels, i);
  }
  for (Label& label : labels.pixels) label = static_cast<Label>(rule_.label_of(label));
}

void FileDataset::map_colors(const FilePair& files, const Image& colored, LabelMap& labels) const {
  if (rule_.colors.empty()) {
    throw DataError(concat(files.mask.string(),
                           ": expected labels as a gray or palette PNG, value = class, got one in ",
                           "RGB; write the classes' colours as data.palette, or convert it"));
  }
  labels.height = colored.height;
  labels.width = colored.width;
  labels.pixels.resize(colored.pixels.size() / 3);
  auto known = rule_.colors.begin();  // of the pixel before, which most pixels are like
  for (std::size_t i = 0; i < labels.pixels.size(); ++i) {
    const std::uint8_t* rgb = &colored.pixels[3 * i];
    const Color color{rgb[0], rgb[1], rgb[2]};
    if (color != known->first) known = rule_.colors.find(color);
    if (known == rule_.colors.end()) {
      throw DataError(concat(files.mask.string(), ": colour ", to_string(color), " ",
                             place(i, labels.width), "; expected one of data.palette, or of ",
                             "data.ignore_colors for what does not count"));
    }
    labels.pixels[i] = known->second;
  }
}

void FileDataset::throw_bad_value(const FilePair& files, const LabelMap& labels,
                                  std::size_t pixel) const {
  throw DataError(concat(files.mask.string(), ": label ", int{labels.pixels[pixel]}, " ",
                         place(pixel, labels.width), "; expected ", rule_.expected,
                         only_0_and_255(labels)
                             ? ". The mask holds only 0 and 255, a black-and-white picture: "
                               "data.mask_values = \"binary\" reads 255 as class 1"
                             : ". Check data.num_classes and data.ignore_index"));
}

Size FileDataset::image_size(std::int64_t index) const {
  return read_image_size(pair(index).image);
}

std::string FileDataset::describe(std::int64_t index) const { return pair(index).image.string(); }

}  // namespace lockstep
