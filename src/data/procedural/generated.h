#pragma once
// Data sets whose samples are drawn when they are needed.

#include <functional>
#include <memory>
#include <string>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// No smaller height or width is drawn.
inline constexpr int kMinGeneratedExtent = 16;

/// Draws sample `index` into `sample`, whose buffers are reused. Thread-safe.
using DrawSample = std::function<void(std::int64_t index, Sample& sample)>;

/// The `train_images` or `val_images` samples of layout `noun`s ("street"), of `options.size`.
/// Throws ConfigError for a size below 16x16, no images, or another number of classes.
std::unique_ptr<Dataset> make_generated(const DataOptions& options, Split split,
                                        const std::string& noun, int classes, DrawSample draw);

}  // namespace lockstep
