#pragma once
// What a data set holds, before hours are spent on it.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// Samples of which something holds: how many, and one of them.
struct Found {
  std::int64_t images = 0;
  std::int64_t first = 0;  // the index of the first
  std::string example = {};

  void add(std::int64_t index) {
    if (images++ == 0 || index < first) first = index;
  }
};

/// What a look at samples of one split says.
struct SplitReport {
  std::string name;           // of the split
  std::int64_t images = 0;    // of the split
  std::int64_t examined = 0;  // of them, those that cannot be read counted in
  std::map<std::pair<int, int>, std::int64_t> sizes;  // [(height, width)] images
  std::vector<std::int64_t> class_labels;             // [class] pixels; classification: images
  std::vector<std::int64_t> class_images;             // [class] images in which it occurs
  std::vector<std::int64_t> beside_class;             // [class] labels that count in these images
  std::int64_t labels = 0, ignored = 0;               // that count, that do not
  std::vector<std::string> without_labels;            // images of which no label counts
  std::vector<std::string> broken;                    // samples that cannot be read: the messages
  // [channel] over all pixels that are there: of 8-bit images in 0..1, else as the files have them.
  std::vector<double> mean, std, least, most;
  std::vector<double> pixels;         // [channel] that are there
  std::map<PixelType, Found> types;   // of the images
  Found alpha;                        // files whose alpha is dropped
  Found white_is_zero;                // files that are shown the other way round
  std::vector<std::uint64_t> hashes;  // [sample] of the pixels; 0: none that are known
  // Images whose masks hold class 0 and what does not count, other classes and not that, and both.
  Found only_first_class, only_classes, classes_and_ignored;
  std::map<int, std::map<Color, Found>> colors;  // [class][its colour in an indexed mask]
};

/// Looks at these samples of a data set of `options`. Equal for any number of `workers`. Tells of
/// its progress (core/progress.h).
SplitReport examine_split(const Dataset& dataset, const DataOptions& options, Split split,
                          std::span<const std::int64_t> samples, int workers);

/// About `count` samples evenly over the data set, fewer where images are large; all when it has
/// no more, and with a count of 0.
std::vector<std::int64_t> sample_evenly(const Dataset& dataset, std::int64_t count);

/// Median frequency balancing (Eigen and Fergus, ICCV 2015, section 6.3.2): the median of the
/// classes' frequencies over a class's own, its labels among those of the images that it occurs
/// in. Where a sample has one label, its labels among all. 0 for a class that never occurs.
std::vector<double> median_frequency_weights(const SplitReport& split);

}  // namespace lockstep
