#include "data/sample_store.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "core/memory.h"
#include "data/augment.h"
#include "data/normalize.h"
#include "io/raw_pixels.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

std::size_t bytes_of(const Image& image) {
  return with_values(image,
                     [](const auto& values) { return values.size() * sizeof(values.front()); });
}

std::size_t bytes_of(const Sample& sample) {
  return sizeof(Sample) + bytes_of(sample.image) + sample.labels.pixels.size() * sizeof(Label);
}

/// Of a sample as its file's header has it: more where integers miss values, and become floats.
std::size_t bytes_of(Size image, int channels, PixelType type) {
  const std::size_t value = type == PixelType::kUint8 ? 1 : type == PixelType::kUint16 ? 2 : 4;
  return sizeof(Sample) + static_cast<std::size_t>(image.height) *
                              static_cast<std::size_t>(image.width) *
                              (static_cast<std::size_t>(channels) * value + sizeof(Label));
}

/// Whether a part of an image becomes what it does within the whole, and nothing asks for the rest.
bool parts_do(const DataOptions& options, const ResizeRule& resize, Task task) {
  const bool looks_for_classes = options.augment && options.augment->class_crops > 0;
  return task == Task::kSegmentation && !looks_for_classes && !resize.changes_images() &&
         !normalizes_by_image(options);
}

}  // namespace

void check_colors(const DataOptions& options) {
  const bool photometric = options.augment && options.augment->photometric;
  if (!photometric && !options.exposure) return;
  const bool colors = options.channels == 3 && !normalizes_by_image(options) &&
                      options.pixels.value_or(PixelType::kUint8) == PixelType::kUint8;
  if (colors) return;
  throw ConfigError(concat(photometric ? "data.augment.photometric" : "data.exposure",
                           " is of 8-bit RGB whose mean and std are given; leave it out"));
}

SampleStore::SampleStore(const DataOptions& options, Split split, std::uint64_t seed)
    : options_(options),
      task_(find_layout(options).task),
      ignored_(ignored_label(options)),
      resize_(resize_rule(options, split)),
      parts_do_(parts_do(options, resize_, task_)),
      exposure_(options.exposure),
      split_(split),
      seed_(seed),
      budget_(static_cast<std::size_t>(std::max(options.cache_mb, 0)) << 20) {
  check_colors(options);
  dataset_ = make_dataset(options, split, seed);
  kept_.resize(static_cast<std::size_t>(dataset_->size()));
  too_large_.resize(kept_.size());
}

Size SampleStore::image_size(std::int64_t index) const {
  if (resize_.resize && !resize_.center_crop) return *resize_.resize;
  return resize_.geometry(dataset_->image_size(index)).window.size;
}

const Sample& SampleStore::fetch(std::int64_t index, SampleScratch& scratch) const {
  return fetch_part(index, nullptr, scratch).sample;
}

SamplePart SampleStore::fetch_part(std::int64_t index, const NeededPart& needed,
                                   SampleScratch& scratch) const {
  if (const Sample* sample = kept(index)) return *sample;
  try {
    if (const std::optional<Whole> whole = load_part(index, needed, scratch.decoded)) {
      return {prepare(index, scratch), *whole};
    }
    dataset_->load(index, scratch.decoded);
    const Sample& sample = prepare(index, scratch);
    keep(index, sample);
    return sample;
  } catch (const std::bad_alloc& error) {
    throw MemoryError(concat(describe(index), ": ", error.what()));
  }
}

void SampleStore::count_labels(std::int64_t index, std::span<const Label> labels,
                               std::span<std::int64_t> counts) const {
  for (const Label label : labels) {
    if (label == ignored_) continue;
    if (label >= counts.size()) {
      throw DataError(concat(describe(index), ": label ", label, "; expected a class in 0..",
                             counts.size() - 1, " or what does not count, ", ignored_));
    }
    ++counts[label];
  }
}

std::optional<Whole> SampleStore::load_part(std::int64_t index, const NeededPart& needed,
                                            Sample& sample) const {
  if (!parts_do_ || !needed) return std::nullopt;
  try {
    const Size image = dataset_->image_size(index);
    const ImagePart part = needed(image);
    if (part.size == image || fits(index, image)) return std::nullopt;
    if (!dataset_->load_part(index, part, sample)) return std::nullopt;
    return Whole{image, part.top, part.left};
  } catch (const DataError&) {  // the whole one says where, and what to do
    return std::nullopt;
  }
}

Sample& SampleStore::prepare(std::int64_t index, SampleScratch& scratch) const {
  prepare_image(options_, describe(index), scratch.decoded.image);
  Sample* sample = &scratch.decoded;
  if (resize_.changes_images()) {
    const auto [full, window] =
        resize_.geometry({scratch.decoded.image.height, scratch.decoded.image.width});
    scratch.resizer.resize(scratch.decoded.image, full, window, scratch.resized.image);
    if (task_ == Task::kSegmentation) {
      scratch.resizer.resize(scratch.decoded.labels, full, window, scratch.resized.labels);
    } else {
      scratch.resized.labels = scratch.decoded.labels;
    }
    sample = &scratch.resized;
  }
  if (task_ == Task::kSegmentation) ignore_missing(sample->image, ignored_, sample->labels);
  if (exposure_) expose(*exposure_, seed_, split_, index, sample->image);
  return *sample;
}

const Sample* SampleStore::kept(std::int64_t index) const {
  const std::lock_guard lock(mutex_);
  return kept_.at(static_cast<std::size_t>(index)).get();
}

bool SampleStore::fits(std::int64_t index, Size image) const {
  const auto place = static_cast<std::size_t>(index);
  {
    const std::lock_guard lock(mutex_);
    if (too_large_[place]) return false;
    // In most cases the file need not say what its values are.
    if (bytes_of(image, options_.channels, PixelType::kFloat32) <= budget_) return true;
  }
  const std::size_t bytes = bytes_of(image, options_.channels, dataset_->pixel_type(index));
  const std::lock_guard lock(mutex_);
  too_large_[place] = bytes > budget_;
  return !too_large_[place];
}

void SampleStore::keep(std::int64_t index, const Sample& sample) const {
  const std::size_t bytes = bytes_of(sample);
  const auto place = static_cast<std::size_t>(index);
  {
    const std::lock_guard lock(mutex_);
    // Two threads may have decoded the same sample, for two epochs; the first one in stays.
    if (kept_[place] != nullptr) return;
    too_large_[place] = bytes > budget_;
    if (too_large_[place]) return;
    budget_ -= bytes;
  }
  auto copy = std::make_unique<const Sample>(sample);
  const std::lock_guard lock(mutex_);
  if (kept_[place] == nullptr) {
    kept_[place] = std::move(copy);
  } else {
    budget_ += bytes;  // with room again for what found none meanwhile
    too_large_.assign(too_large_.size(), false);
  }
}

}  // namespace lockstep
