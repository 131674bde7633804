#pragma once
// What a training step or an evaluation is given: samples on the host.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/io/image.h"

namespace lockstep {

/// A global batch, normalised as the network wants it. Shapes are those of the network's input and
/// output; for images and label maps [N, H, W, 3] and [N, H, W]. It is whole: `samples` has an
/// index for each of the N samples, which also counts them, and every other member exactly as many
/// values as belong to N samples.
struct Batch {
  std::vector<float> images;          // [N, ..., C], channels last
  std::vector<Label> labels;          // [N, ...], of cross-entropy; ignore_index: nothing to learn
  std::vector<std::int64_t> samples;  // [N] index in the data set, from 0; as many as images
  Size size;                          // H, W of images; zeros for other inputs
  std::int64_t epoch = 0;
  /// [num_classes] labels of each class, ignored ones left out; empty: whoever needs it counts.
  std::vector<std::int64_t> class_pixels;
  /// In a run of several processes: only this one's places are filled and counted in class_pixels,
  /// which is not empty then; DataParallel adds the counts of all up.
  bool own_places_only = false;
  /// Of losses whose target is not a class, by the name of the loss's output: [N, ...] as the
  /// output.
  std::map<std::string, std::vector<float>> targets;
  /// [N] times a sample's losses, where DataParallelOptions::sample_weights asks for them; means
  /// are then divided by the weights.
  std::vector<float> sample_weights;

  /// N, the number of samples.
  std::int64_t count() const { return static_cast<std::int64_t>(samples.size()); }
};

}  // namespace lockstep
