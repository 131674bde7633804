#include "data/file_dataset.h"

#include <algorithm>
#include <utility>

#include "data/image_io.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

bool only_0_and_255(const LabelMap& labels) {
  return std::all_of(labels.pixels.begin(), labels.pixels.end(),
                     [](Label value) { return value == 0 || value == 255; });
}

}  // namespace

FileDataset::FileDataset(std::vector<FilePair> pairs, const LabelRule& rule)
    : pairs_(std::move(pairs)), rule_(rule) {
  for (int value = 0; value < 256; ++value) {
    const bool is_void = value == rule.void_value;
    const auto slot = static_cast<std::size_t>(value);
    allowed_[slot] = value < rule.num_classes || value == rule.ignore_index || is_void;
    mapped_[slot] = static_cast<std::uint8_t>(is_void ? rule.ignore_index : value);
  }
}

const FilePair& FileDataset::pair(std::int64_t index) const {
  LOCKSTEP_CHECK(index >= 0 && index < size(), "sample ", index, " of a data set of ", size());
  return pairs_[static_cast<std::size_t>(index)];
}

void FileDataset::load(std::int64_t index, Sample& sample) const {
  const FilePair& files = pair(index);
  read_image(files.image, sample.image);
  read_labels(files.mask, sample.labels);
  if (sample.image.height != sample.labels.height || sample.image.width != sample.labels.width) {
    throw DataError(concat(files.mask.string(), ": expected the image's size ", sample.image.width,
                           "x", sample.image.height, " (", files.image.string(), "), got ",
                           sample.labels.width, "x", sample.labels.height));
  }
  map_labels(files, sample.labels);
}

void FileDataset::map_labels(const FilePair& files, LabelMap& labels) const {
  for (std::size_t i = 0; i < labels.pixels.size(); ++i) {
    if (!allowed_[labels.pixels[i]]) throw_bad_label(files, labels, i);
  }
  if (rule_.void_value < 0) return;
  for (Label& label : labels.pixels) label = mapped_[label];
}

void FileDataset::throw_bad_label(const FilePair& files, const LabelMap& labels,
                                  std::size_t pixel) const {
  const auto width = static_cast<std::size_t>(labels.width);
  std::string text = concat(files.mask.string(), ": label ", int{labels.pixels[pixel]}, " at row ",
                            pixel / width, ", column ", pixel % width, "; expected a class in 0..",
                            rule_.num_classes - 1, " or ignore_index ", rule_.ignore_index);
  if (rule_.void_value >= 0) text += concat(" or void ", rule_.void_value);
  text += only_0_and_255(labels) ? ". The mask holds only 0 and 255, a black-and-white picture: "
                                   "write class 1 instead of 255"
                                 : ". Check data.num_classes and data.ignore_index";
  throw DataError(text);
}

Size FileDataset::image_size(std::int64_t index) const {
  return read_image_size(pair(index).image);
}

std::string FileDataset::describe(std::int64_t index) const { return pair(index).image.string(); }

}  // namespace lockstep
