#pragma once
// A procedural data set of street scenes with CamVid's 11 classes, for quick starts and tests.
// Every image has its own light, haze, contrast and season, so that the statistics of an image
// differ from those of the data set, as they do in small-batch training on real images. A scene is
// a function of (seed, split, index) and of its size.

#include <cstdint>
#include <filesystem>
#include <memory>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// Draws scene `index` into `sample`, whose buffers are reused. Labels are classes or
/// `ignore_index` (parts of the own car and unnamed objects). Thread-safe. REQUIRES: at least 16x16
/// pixels.
void draw_street(Size size, int ignore_index, Split split, std::uint64_t seed, std::int64_t index,
                 Sample& sample);

/// The split of a generated data set: `train_images` or `val_images` samples of `size`. Throws
/// ConfigError for a size below 16x16, no images, or another number of classes than 11.
std::unique_ptr<Dataset> make_streets(const DataOptions& options, Split split, std::uint64_t seed);

/// Writes both splits of a generated data set as layout `folder` below `root`, as PNG, named
/// 00000.png, ... Creates the folders; throws Error when a file cannot be written.
void write_streets(const std::filesystem::path& root, const DataOptions& options,
                   std::uint64_t seed);

}  // namespace lockstep
