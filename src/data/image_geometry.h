#pragma once
// How a configuration has images resized before they go anywhere else.

#include <optional>

#include "data/resize.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

/// How an image is resized, and the part of the result that is kept.
struct ImageGeometry {
  Size full;
  Window window;
};

/// What images of any size become. Without a value nothing is done.
struct ResizeRule {
  std::optional<Size> resize;
  std::optional<int> shorter_side;  // instead of `resize`
  std::optional<Size> center_crop;  // an image that is smaller stays as it is on that axis

  bool changes_images() const { return resize || shorter_side || center_crop; }
  ImageGeometry geometry(Size image) const;
};

/// The rule of data.resize, in validation also of data.val_resize and data.val_crop. Throws
/// ConfigError for values that do not fit.
ResizeRule resize_rule(const DataOptions& options, Split split);

}  // namespace lockstep
