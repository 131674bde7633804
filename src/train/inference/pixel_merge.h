#pragma once
// From logits of padded, scaled and mirrored images to classes and probabilities of the pixels of
// the image itself.

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// Logits of one image, rows of `stored.width` pixels; of them `valid`, from the top left corner,
/// belong to the image.
struct LogitMap {
  const float* values = nullptr;  // [stored.height, stored.width, classes]
  Size stored, valid;
  std::int64_t classes = 0;
  bool mirrored = false;
};

/// The class of every pixel of the image at `size`: logits are interpolated bilinearly (half-pixel
/// centres, no antialiasing: PyTorch's interpolate(align_corners=False)); the first of the largest
/// wins.
std::vector<Label> pixel_classes(const LogitMap& logits, Size size);

/// Adds softmax of the logits, which are interpolated to `size` first and mirrored back last, to
/// `sums` [size.height, size.width, classes].
void add_probabilities(const LogitMap& logits, Size size, std::span<float> sums);

/// Values of the pixels at `size` [size.height, size.width, classes], interpolated as logits are.
std::vector<float> interpolated(const LogitMap& values, Size size);

/// The first of the largest of each row of `values` [rows, classes].
std::vector<Label> largest(std::span<const float> values, std::int64_t classes);

/// A class and its probability.
struct ClassScore {
  Label label = 0;
  float probability = 0;
};

/// The five likeliest classes, or all where they are fewer, likeliest first; of equal ones the one
/// with the smaller number.
std::vector<ClassScore> likeliest(std::span<const float> probabilities);

}  // namespace lockstep
