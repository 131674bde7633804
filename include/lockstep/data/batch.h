#pragma once
// What a training step or an evaluation is given: samples on the host.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/io/image.h"

namespace lockstep {

/// A global batch, normalised as the network wants it. Shapes are those of the network's input and
/// output; for images and label maps [N, H, W, channels] and [N, H, W]. It is whole: `samples` has
/// an index for each of the N samples, which also counts them, and every other member exactly as
/// many values as belong to N samples.
struct Batch {
  std::vector<float> images;          // [N, ..., C], or in another `layout`
  std::vector<Label> labels;          // [N, ...], of cross-entropy; ignore_index: nothing to learn
  std::vector<std::int64_t> samples;  // [N] index in the data set, from 0; as many as images
  Size size;                          // H, W of images; zeros for other inputs
  Size image;  // of it without what fills it up, right and below; zeros: all of it
  std::int64_t epoch = 0;
  /// [num_classes] labels of each class, ignored ones left out; empty: whoever needs it counts. Who
  /// counts vouches for the labels: one of no class is then a failure inside the step.
  std::vector<std::int64_t> class_pixels;
  /// Whether, in a run of several processes, only this one's places are filled and counted in
  /// class_pixels, which is not empty then. DataParallel adds the counts of all up.
  bool own_places_only = false;
  /// The targets of losses that take no classes, by the name of the loss's output: [N, ...] as the
  /// output.
  std::map<std::string, std::vector<float>> targets;
  /// [N] times a sample's losses, where DataParallelOptions::sample_weights asks for them; means
  /// are then divided by the weights.
  std::vector<float> sample_weights;
  /// Instead of `images` and of `labels`, which are then empty: the same in somebody else's memory.
  /// The devices' threads read it where it lies, each its own shard. It may be given up as the
  /// batch may.
  std::span<const float> image_view = {};
  std::span<const Label> label_view = {};
  /// The order of the images' values. Devices reorder their shards where it is not channels last;
  /// bits do not depend on it.
  ImageLayout layout = ImageLayout::kChannelsLast;

  /// The images, and the labels, wherever they lie.
  std::span<const float> image_values() const { return image_view.empty() ? images : image_view; }
  std::span<const Label> label_values() const { return label_view.empty() ? labels : label_view; }
  /// N, the number of samples.
  std::int64_t count() const { return static_cast<std::int64_t>(samples.size()); }
};

}  // namespace lockstep
