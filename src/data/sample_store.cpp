#include "data/sample_store.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "data/augment.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

void check(const DataOptions& options) {
  if (options.resize && (options.resize->height < 1 || options.resize->width < 1)) {
    throw ConfigError(concat("data.resize = [", options.resize->height, ", ", options.resize->width,
                             "]: expected [height, width] of at least 1"));
  }
  if (options.resize && options.val_resize) {
    throw ConfigError("data.resize and data.val_resize both say what size validation images have");
  }
  if (options.val_resize && *options.val_resize < 1) {
    throw ConfigError(
        concat("data.val_resize = ", *options.val_resize, ": expected the shorter side in pixels"));
  }
  if (options.val_crop && (options.val_crop->height < 1 || options.val_crop->width < 1)) {
    throw ConfigError("data.val_crop: expected [height, width] of at least 1");
  }
  if (options.exposure) {
    const auto [lo, offset] = *options.exposure;
    if (!(lo > 0 && lo <= 1 && offset >= 0 && offset <= 255)) {
      throw ConfigError(concat("data.exposure = [", lo, ", ", offset,
                               "]: expected a lowest gain in (0, 1] and an offset in 0..255"));
    }
  }
}

}  // namespace

SampleStore::SampleStore(const DataOptions& options, Split split, std::uint64_t seed)
    : task_(find_layout(options).task),
      ignore_index_(options.ignore_index),
      resize_(options.resize),
      shorter_side_(split == Split::kVal ? options.val_resize : std::nullopt),
      center_crop_(split == Split::kVal ? options.val_crop : std::nullopt),
      exposure_(options.exposure),
      split_(split),
      seed_(seed),
      budget_(static_cast<std::size_t>(std::max(options.cache_mb, 0)) << 20) {
  check(options);
  dataset_ = make_dataset(options, split, seed);
  kept_.resize(static_cast<std::size_t>(dataset_->size()));
}

Size SampleStore::image_size(std::int64_t index) const {
  if (resize_ && !center_crop_) return *resize_;
  return geometry(dataset_->image_size(index)).window.size;
}

// An image that is smaller than the crop stays as it is on that axis.
SampleStore::Geometry SampleStore::geometry(Size image) const {
  Size full = resize_.value_or(image);
  if (shorter_side_) {
    const double scale = static_cast<double>(*shorter_side_) / std::min(image.height, image.width);
    full = {static_cast<int>(std::lround(image.height * scale)),
            static_cast<int>(std::lround(image.width * scale))};
  }
  const Size crop = center_crop_.value_or(full);
  const Size part{std::min(crop.height, full.height), std::min(crop.width, full.width)};
  return {full, {(full.height - part.height) / 2, (full.width - part.width) / 2, part}};
}

const Sample& SampleStore::fetch(std::int64_t index, SampleScratch& scratch) const {
  if (const Sample* sample = kept(index)) return *sample;
  Sample& sample = decode(index, scratch);
  keep(index, sample);
  return sample;
}

void SampleStore::count_labels(std::int64_t index, std::span<const Label> labels,
                               std::span<std::int64_t> counts) const {
  for (const Label label : labels) {
    if (label == ignore_index_) continue;
    if (label >= counts.size()) {
      throw DataError(concat(describe(index), ": label ", label, "; expected a class in 0..",
                             counts.size() - 1, " or ignore_index ", ignore_index_));
    }
    ++counts[label];
  }
}

Sample& SampleStore::decode(std::int64_t index, SampleScratch& scratch) const {
  dataset_->load(index, scratch.decoded);
  Sample* sample = &scratch.decoded;
  if (resize_ || shorter_side_ || center_crop_) {
    const auto [full, window] =
        geometry({scratch.decoded.image.height, scratch.decoded.image.width});
    scratch.resizer.resize(scratch.decoded.image, full, window, scratch.resized.image);
    if (task_ == Task::kSegmentation) {
      scratch.resizer.resize(scratch.decoded.labels, full, window, scratch.resized.labels);
    } else {
      scratch.resized.labels = scratch.decoded.labels;
    }
    sample = &scratch.resized;
  }
  if (exposure_) expose(*exposure_, seed_, split_, index, sample->image);
  return *sample;
}

const Sample* SampleStore::kept(std::int64_t index) const {
  const std::lock_guard lock(mutex_);
  return kept_.at(static_cast<std::size_t>(index)).get();
}

void SampleStore::keep(std::int64_t index, const Sample& sample) const {
  const std::size_t bytes =
      sizeof(Sample) + sample.image.pixels.size() + sample.labels.pixels.size() * sizeof(Label);
  {
    const std::lock_guard lock(mutex_);
    // Two threads may have decoded the same sample, for two epochs; the first one in stays.
    if (bytes > budget_ || kept_[static_cast<std::size_t>(index)] != nullptr) return;
    budget_ -= bytes;
  }
  auto copy = std::make_unique<const Sample>(sample);
  const std::lock_guard lock(mutex_);
  std::unique_ptr<const Sample>& place = kept_[static_cast<std::size_t>(index)];
  if (place == nullptr) {
    place = std::move(copy);
  } else {
    budget_ += bytes;
  }
}

}  // namespace lockstep
