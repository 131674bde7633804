#pragma once
// What BatchNorm's statistics of a few images miss of those of many: from the statistics of single
// images that one forward pass leaves behind.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "run/batch_norm_diagnostics.h"

namespace lockstep {

/// Parts put together, each run of `together` neighbours into one, by Chan's formula in double. A
/// run at the end that is not whole is left out.
std::vector<PartMoments> merge_neighbours(std::span<const PartMoments> parts,
                                          std::int64_t together);

/// A layer as statistics of n images see it, beside those of very many. Means over channels. With w
/// the variance within images and b that of their means (unbiased), images that are drawn at random
/// have means whose variance is b / n, and see w + b - b / n of the variance w + b.
struct LayerNoise {
  std::string layer;
  std::int64_t values = 0;  // per channel in such statistics
  /// Variance between such statistics over the variance that they see.
  double ratio = 0;
  /// The share of the variance that they do not see: b / n over w + b.
  double missed = 0;
  /// Root mean square of the distance of their mean from that of all, in standard deviations of
  /// all: the root of `missed`.
  double mean_shift = 0;
  /// |log| of the variance of n neighbours over that of all images; mean over such neighbours.
  double log_var_ratio = 0;
  /// Bimodality of the images' means, whatever is put together: (skewness^2 + 1) / kurtosis of the
  /// sample (Sarle's coefficient, Pfister et al. 2013), mean over channels. 0.33 of a normal
  /// distribution, 0.56 of a uniform one, up to 1 of two heaps. 0 for fewer than four images.
  double bimodality = 0;
};

/// `images`: statistics of each image, at least two and as many as are put `together`. REQUIRES: as
/// many values of each.
LayerNoise noise_of(std::span<const PartMoments> images, std::int64_t together, double eps);

/// What training by such slices leaves behind as running statistics, once they have settled: the
/// mean of the slices' means, and that of their unbiased variances.
BatchNormStatistics settled_statistics(std::span<const PartMoments> slices);

}  // namespace lockstep
