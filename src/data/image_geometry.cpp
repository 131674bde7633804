#include "data/image_geometry.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

bool is_empty(const std::optional<Size>& size) {
  return size && (size->height < 1 || size->width < 1);
}

void check_sizes(const DataOptions& options) {
  if (is_empty(options.resize)) {
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
  if (is_empty(options.val_crop)) {
    throw ConfigError("data.val_crop: expected [height, width] of at least 1");
  }
}

}  // namespace

ImageGeometry ResizeRule::geometry(Size image) const {
  Size full = resize.value_or(image);
  if (shorter_side) {
    const double scale = static_cast<double>(*shorter_side) / std::min(image.height, image.width);
    full = {static_cast<int>(std::lround(image.height * scale)),
            static_cast<int>(std::lround(image.width * scale))};
  }
  const Size crop = center_crop.value_or(full);
  const Size part{std::min(crop.height, full.height), std::min(crop.width, full.width)};
  return {full, {(full.height - part.height) / 2, (full.width - part.width) / 2, part}};
}

ResizeRule resize_rule(const DataOptions& options, Split split) {
  check_sizes(options);
  if (split == Split::kTrain) return {options.resize, std::nullopt, std::nullopt};
  return {options.resize, options.val_resize, options.val_crop};
}

}  // namespace lockstep
