#include "train/diagnosis/statistics_noise.h"

#include <algorithm>
#include <cmath>

#include "backend/formulas.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// In double, rounded once.
PartMoments merge(std::span<const PartMoments> parts) {
  PartMoments merged;
  std::vector<double> mean(parts.front().mean.size()), m2(mean.size());
  for (const PartMoments& part : parts) {
    if (part.count == 0) continue;
    const MomentsWeights weights = moments_weights(merged.count, part.count);
    for (std::size_t c = 0; c < mean.size(); ++c) {
      join_moments(mean[c], m2[c], static_cast<double>(part.mean[c]),
                   static_cast<double>(part.m2[c]), weights);
    }
    merged.count += part.count;
  }
  merged.mean.assign(mean.begin(), mean.end());
  merged.m2.assign(m2.begin(), m2.end());
  return merged;
}

/// Of one channel.
struct Variances {
  double within = 0;   // images, biased as BatchNorm takes it
  double between = 0;  // their means, unbiased
};

Variances variances(std::span<const PartMoments> images, std::size_t c) {
  const auto count = static_cast<double>(images.size());
  Variances result;
  double mean = 0;
  for (const PartMoments& image : images) mean += static_cast<double>(image.mean[c]) / count;
  for (const PartMoments& image : images) {
    const double distance = static_cast<double>(image.mean[c]) - mean;
    result.within += static_cast<double>(image.m2[c]) / static_cast<double>(image.count) / count;
    result.between += distance * distance / (count - 1);
  }
  return result;
}

/// Sarle's coefficient with the corrections of small samples.
double bimodality(std::span<const PartMoments> images, std::size_t c) {
  const auto n = static_cast<double>(images.size());
  if (n < 4) return 0;
  double mean = 0, second = 0, third = 0, fourth = 0;
  for (const PartMoments& image : images) mean += static_cast<double>(image.mean[c]) / n;
  for (const PartMoments& image : images) {
    const double distance = static_cast<double>(image.mean[c]) - mean;
    const double square = distance * distance;
    second += square / n;
    third += square * distance / n;
    fourth += square * square / n;
  }
  if (second <= 1e-12 * mean * mean) return 0;  // equal but for rounding
  const double skewness = third / (second * std::sqrt(second)) * std::sqrt(n * (n - 1)) / (n - 2);
  const double kurtosis =
      (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * (fourth / (second * second) - 3) + 6);
  return (skewness * skewness + 1) / (kurtosis + 3 * (n - 1) * (n - 1) / ((n - 2) * (n - 3)));
}

}  // namespace

std::vector<PartMoments> merge_neighbours(std::span<const PartMoments> parts,
                                          std::int64_t together) {
  LOCKSTEP_CHECK(together > 0, "expected at least one part to put together, got ", together);
  std::vector<PartMoments> merged;
  const auto each = static_cast<std::size_t>(together);
  for (std::size_t first = 0; first + each <= parts.size(); first += each) {
    merged.push_back(merge(parts.subspan(first, each)));
  }
  return merged;
}

LayerNoise noise_of(std::span<const PartMoments> images, std::int64_t together, double eps) {
  const std::vector<PartMoments> slices = merge_neighbours(images, together);
  LOCKSTEP_CHECK(images.size() >= 2 && !slices.empty(), "statistics of ", together,
                 " images need at least two images and as many, got ", images.size());
  LayerNoise noise{.layer = {}, .values = slices.front().count};
  noise.log_var_ratio = compare_parts(slices, eps).log_var_ratio;
  const std::size_t channels = images.front().mean.size();
  for (std::size_t c = 0; c < channels; ++c) {
    const Variances of = variances(images, c);
    const double apart = of.between / static_cast<double>(together);
    const double all = of.within + of.between;
    noise.ratio += apart / (all - apart + eps) / static_cast<double>(channels);
    noise.missed += apart / (all + eps) / static_cast<double>(channels);
    noise.bimodality += bimodality(images, c) / static_cast<double>(channels);
  }
  noise.mean_shift = std::sqrt(noise.missed);
  return noise;
}

BatchNormStatistics settled_statistics(std::span<const PartMoments> slices) {
  LOCKSTEP_CHECK(!slices.empty(), "no slices to settle statistics of");
  BatchNormStatistics settled;
  const auto count = static_cast<double>(slices.size());
  for (std::size_t c = 0; c < slices.front().mean.size(); ++c) {
    double mean = 0, var = 0;
    for (const PartMoments& slice : slices) {
      const auto degrees = static_cast<double>(std::max<std::int64_t>(1, slice.count - 1));
      mean += static_cast<double>(slice.mean[c]) / count;
      var += static_cast<double>(slice.m2[c]) / degrees / count;
    }
    settled.mean.push_back(static_cast<float>(mean));
    settled.var.push_back(static_cast<float>(var));
  }
  return settled;
}

}  // namespace lockstep
