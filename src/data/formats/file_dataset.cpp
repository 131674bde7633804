#include "data/formats/file_dataset.h"

#include <algorithm>
#include <utility>

#include "data/normalize.h"
#include "io/image_io.h"
#include "io/raw_pixels.h"
#include "io/row_source.h"
#include "lockstep/core/check.h"
#include "lockstep/io/image.h"

namespace lockstep {
namespace {

constexpr int kMaxValue = 65535;  // masks have 16 bits at most

using Histogram = std::map<Label, std::int64_t>;  // [value] pixels

Histogram values_of(const LabelMap& labels) {
  Histogram values;
  for (const Label value : labels.pixels) ++values[value];
  return values;
}

bool holds_only(const Histogram& values, Label a, Label b) {
  return std::all_of(values.begin(), values.end(),
                     [&](const auto& value) { return value.first == a || value.first == b; });
}

// Of a mask that is read as black and white, and is something else.
std::string remedy_for_binary(const Histogram& values) {
  if (holds_only(values, 0, 1)) {
    return ". The mask holds only 0 and 1, which are classes already: leave data.mask_values out";
  }
  std::int64_t pixels = 0, between = 0;
  std::string list;
  for (const auto& [value, count] : values) {
    pixels += count;
    between += value > 0 && value < 255 ? count : 0;
    list += concat(list.empty() ? "" : ", ", value);
  }
  constexpr std::size_t kFew = 5;  // smoothed edges have more
  if (values.size() > kFew) {
    return concat(
        ". ", between, " of ", pixels, " pixels lie between black and white, as edges of ",
        "a smoothed picture do: save masks without smoothing, or make 0 of what is below ",
        "128 and 255 of the rest");
  }
  return concat(". The mask holds ", list,
                ": where these are more than two classes, write classes ",
                "from 0 on in their place, leave data.mask_values out and set data.num_classes");
}

std::string remedy_for_classes(const Histogram& values) {
  if (holds_only(values, 0, 255)) {
    return ". The mask holds only 0 and 255, a black-and-white picture: data.mask_values = "
           "\"binary\" reads 255 as class 1, of data.num_classes = 2";
  }
  return ". Check data.num_classes and data.ignore_index";
}

bool is_gray(const Image& image) {
  for (std::size_t i = 0; i + 2 < image.pixels.size(); i += 3) {
    if (image.pixels[i] != image.pixels[i + 1] || image.pixels[i] != image.pixels[i + 2])
      return false;
  }
  return true;
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

MaskRule two_classes(const DataOptions& options) {
  const char* word = to_string(options.mask_values);
  if (options.num_classes != 2) {
    throw ConfigError(concat("data.mask_values = \"", word, "\" has the classes 0 and 1, but ",
                             "data.num_classes = ", options.num_classes, ": expected 2"));
  }
  MaskRule rule;
  if (options.mask_values == MaskValues::kInstances) {
    rule.set(0, 0);
    rule.set(1, 1);
    rule.expected = "numbers of objects, because of data.mask_values = \"instances\"";
    return rule;
  }
  rule.set(0, 0);
  rule.set(255, 1);
  rule.expected = "0 or 255, because of data.mask_values = \"binary\"";
  rule.black_and_white = true;
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
  if (options.num_classes > 255 && options.ignore_index == 255) {
    throw ConfigError(concat("data.num_classes = ", options.num_classes,
                             " has a class 255, which data.ignore_index = 255 would leave out; ",
                             "write data.ignore_index = 65535, say"));
  }
  if (options.mask_values != MaskValues::kClasses) return two_classes(options);
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
  throw ConfigError(concat("data.mask_values = \"", to_string(options.mask_values),
                           "\": masks of layout ", options.layout,
                           " are its own; leave the key out, or use the layout folder or list"));
}

const std::string& split_name(const DataOptions& options, Split split) {
  return split == Split::kTrain ? options.train : options.val;
}

FileDataset::FileDataset(FoundPairs found, MaskRule rule, const DataOptions& options)
    : left_out_(std::move(found.left_out)),
      rule_(std::move(rule)),
      image_rule_(image_rule(options)),
      label_rule_{.orientation = options.orientation,
                  .objects = options.mask_values == MaskValues::kInstances,
                  .black_and_white = options.mask_values == MaskValues::kBinary},
      parts_(found.pairs.size()) {
  std::vector<FilePair>& pairs = found.pairs;
  if (pairs.empty()) return;
  names_ = FileNames(common_folder(pairs.front().image, pairs.front().mask));
  for (FilePair& pair : pairs) {
    names_.add(pair.image);
    names_.add(pair.mask);
    pair = {};  // of a million pairs both would be too much
  }
}

FilePair FileDataset::pair(std::int64_t index) const {
  LOCKSTEP_CHECK(index >= 0 && index < size(), "sample ", index, " of a data set of ", size());
  const auto place = 2 * static_cast<std::size_t>(index);
  return {names_[place], names_[place + 1]};
}

void FileDataset::load(std::int64_t index, Sample& sample) const {
  read(pair(index), std::nullopt, sample);
}

bool FileDataset::load_part(std::int64_t index, const ImagePart& part, Sample& sample) const {
  const FilePair files = pair(index);
  std::atomic<Parts>& parts = parts_[static_cast<std::size_t>(index)];
  if (parts == Parts::kUnknown) parts = find_parts(files);
  if (parts == Parts::kNone) return false;
  read(files, part, sample);
  if (parts == Parts::kFloats) make_floats(sample.image);
  return true;
}

FileDataset::Parts FileDataset::find_parts(const FilePair& files) const {
  const ImageInfo image = read_image_info(files.image, image_rule_);
  const ImageRule of_mask{.orientation = image_rule_.orientation, .channels = 1};
  if (read_image_size(files.mask, of_mask) != image.size) return Parts::kNone;
  const bool all_there = !image_rule_.nodata && !image.nodata && image_rule_.channel_files.empty();
  if (all_there) return Parts::kAsRead;
  Image row;
  open_rows(files.image, image_rule_)->read(0, 1, row);
  return row.floats.empty() ? Parts::kAsRead : Parts::kFloats;
}

void FileDataset::read(const FilePair& files, const std::optional<ImagePart>& part,
                       Sample& sample) const {
  ImageRule image_rule = image_rule_;
  LabelRule label_rule = label_rule_;
  image_rule.part = label_rule.part = part;
  read_image(files.image, sample.image, image_rule);
  Image colored;
  const MaskKind kind = read_mask(files.mask, sample.labels, colored, label_rule);
  if (kind == MaskKind::kColors) map_colors(files, colored, sample.labels);
  const Size image{sample.image.height, sample.image.width};
  const Size mask{sample.labels.height, sample.labels.width};
  if (image != mask) {
    throw DataError(concat(files.mask, ": expected the image's size ", to_string(image), " (",
                           files.image, "), got ", to_string(mask),
                           stored_size(files.image) == mask
                               ? "; the image is turned as its EXIF orientation says, and the mask "
                                 "is not: data.orientation = \"stored\" takes both as they lie in "
                                 "the files"
                               : ""));
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
    throw DataError(concat(
        files.mask, ": expected labels as a gray or palette PNG, value = class, got one in ",
        is_gray(colored) ? "RGB whose pixels are all gray; convert it to gray"
                         : "RGB; write the classes' colours as data.palette, or convert it"));
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
      throw DataError(concat(files.mask, ": colour ", to_string(color), " ", place(i, labels.width),
                             "; expected one of data.palette, or of ",
                             "data.ignore_colors for what does not count"));
    }
    labels.pixels[i] = known->second;
  }
}

void FileDataset::throw_bad_value(const FilePair& files, const LabelMap& labels,
                                  std::size_t pixel) const {
  const Histogram values = values_of(labels);
  throw DataError(
      concat(files.mask, ": label ", int{labels.pixels[pixel]}, " ", place(pixel, labels.width),
             "; expected ", rule_.expected,
             rule_.black_and_white ? remedy_for_binary(values) : remedy_for_classes(values)));
}

Size FileDataset::image_size(std::int64_t index) const {
  return read_image_size(pair(index).image, image_rule_);
}

PixelType FileDataset::pixel_type(std::int64_t index) const {
  return read_image_info(pair(index).image, image_rule_).type;
}

Size FileDataset::stored_size(const std::string& image) const {
  ImageRule rule = image_rule_;
  rule.orientation = ImageOrientation::kStored;
  return read_image_size(image, rule);
}

std::string FileDataset::describe(std::int64_t index) const {
  LOCKSTEP_CHECK(index >= 0 && index < size(), "sample ", index, " of a data set of ", size());
  return names_[2 * static_cast<std::size_t>(index)];
}

std::vector<std::string> FileDataset::files(std::int64_t index) const {
  const FilePair files = pair(index);
  std::vector<std::string> all{files.image, files.mask};
  const std::vector<std::filesystem::path> parts = channel_files_of(files.image, image_rule_);
  for (std::size_t i = 1; i < parts.size(); ++i) all.push_back(parts[i].string());
  return all;
}

}  // namespace lockstep
