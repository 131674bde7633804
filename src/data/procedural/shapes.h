#pragma once
// Layout shapes: a procedural data set for classification, for quick starts, tests and experiments.
// An image shows one of ten shapes of any colour, size, place and turn on a textured ground, under
// a light of its own, so that the statistics of an image differ from those of the data set. An
// image is a function of (seed, split, index) and of its size; its class is index mod 10.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

const std::vector<std::string>& shape_class_names();

/// Draws image `index` into `sample`, whose buffers are reused. Thread-safe. REQUIRES: at least
/// 16x16 pixels.
void draw_shape(Size size, Split split, std::uint64_t seed, std::int64_t index, Sample& sample);

/// `train_images` or `val_images` samples of `size`. Throws ConfigError for a size below 16x16, no
/// images, or another number of classes than 10.
std::unique_ptr<Dataset> make_shapes(const DataOptions& options, Split split, std::uint64_t seed);

}  // namespace lockstep
