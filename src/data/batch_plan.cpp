#include "data/batch_plan.h"

#include <algorithm>
#include <utility>

#include "core/words.h"
#include "data/augment.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// The size of every image: the crop, else the images' own, which then must be one.
Size image_size(const DataOptions& data, const Dataset& dataset) {
  const AugmentOptions augment = data.augment.value_or(AugmentOptions{});
  if (augment.crop) return *augment.crop;
  if (augment.crop_area) {
    throw ConfigError("data.augment.crop_area needs data.augment.crop, the size of the result");
  }
  if (augment.scale_lo != 1 || augment.scale_hi != 1) {
    throw ConfigError(
        "data.augment.scale makes images of different sizes; set data.augment.crop as well");
  }
  if (data.resize) return *data.resize;
  const Size size = dataset.image_size(0);
  for (std::int64_t i = 1; i < dataset.size(); ++i) {
    const Size other = dataset.image_size(i);
    if (other == size) continue;
    throw ConfigError(concat("images of different sizes cannot form a batch: ", dataset.describe(0),
                             " is ", to_string(size), ", ", dataset.describe(i), " is ",
                             to_string(other), "; set data.resize or data.augment.crop"));
  }
  return size;
}

/// The size of every batch.
Size batch_size(const DataOptions& data, const Dataset& dataset) {
  const Size size = image_size(data, dataset);
  if (!data.augment || !data.augment->rotate90 || size.height == size.width) return size;
  const int side = std::min(size.height, size.width);
  throw ConfigError(concat("data.augment.rotate90 turns ", to_string(size), " into ",
                           to_string(Size{size.width, size.height}), ", and the images of a batch ",
                           "are of one size; write data.augment.crop = [", side, ", ", side, "]"));
}

void check_class_crops(const DataOptions& data, const AugmentOptions& augment) {
  if (augment.class_crops == 0) return;
  if (!augment.crop) {
    throw ConfigError("data.augment.class_crops needs data.augment.crop, the size of a crop");
  }
  if (find_layout(data).task == Task::kClassification) {
    throw ConfigError(
        "data.augment.class_crops looks for pixels of a class, but these labels are of whole "
        "images; leave it out");
  }
  const int classes = class_count(data);
  for (const int label : augment.class_crops_of) {
    if (label >= 0 && label < classes) continue;
    throw ConfigError(
        concat("data.augment.class_crops_of has ", label, ": expected classes, 0..", classes - 1));
  }
}

void check_loading(const DataOptions& data) {
  const AugmentOptions augment = data.augment.value_or(AugmentOptions{});
  if (data.crops_per_image > 1 && !augment.crop) {
    throw ConfigError(concat("data.crops_per_image = ", data.crops_per_image,
                             ": expected 1 without data.augment.crop"));
  }
  if (augment.crop_area && (augment.scale_lo != 1 || augment.scale_hi != 1))
    throw ConfigError("data.augment.crop_area and data.augment.scale exclude each other");
  check_class_crops(data, augment);
}

std::int64_t count_batches(std::int64_t batch, bool drop_last, std::int64_t samples) {
  const std::int64_t rest = drop_last ? 0 : batch - 1;
  const std::int64_t count = (samples + rest) / batch;
  if (count == 0) {
    throw ConfigError(concat(
        "an epoch has ", count_of(samples, "training image"), ", fewer than a batch of ", batch,
        ", and batch.drop_last leaves none: use a smaller ", "batch or batch.drop_last = false"));
  }
  return count;
}

}  // namespace

BatchPlan plan_batches(const DataOptions& options, const Dataset& dataset, std::int64_t batch,
                       bool drop_last, int divisor) {
  LOCKSTEP_CHECK(divisor > 0, "LoaderOptions::divisor is ", divisor, ", expected at least 1");
  check_loading(options);
  const std::int64_t samples = dataset.size() * options.crops_per_image;
  const std::int64_t batches = count_batches(batch, drop_last, samples);
  const Size size = batch_size(options, dataset);
  return {padded_size(size, divisor), size, samples, batches};
}

}  // namespace lockstep
