// The merge of running statistics and the BatchNorm lens, against all values at once.

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "core/rng.h"
#include "run/batch_norm_diagnostics.h"
#include "run/running_statistics.h"

namespace lockstep {
namespace {

struct Naive {
  double mean = 0, var = 0;  // biased
};

Naive naive(const std::vector<double>& values) {
  Naive result;
  for (const double value : values) result.mean += value / static_cast<double>(values.size());
  for (const double value : values) {
    result.var +=
        (value - result.mean) * (value - result.mean) / static_cast<double>(values.size());
  }
  return result;
}

// [part][channel] values of parts of unequal sizes, one of them empty.
std::vector<std::vector<std::vector<double>>> random_parts(const std::vector<int>& sizes,
                                                           int channels) {
  std::vector<std::vector<std::vector<double>>> parts;
  Rng rng(5, RngPurpose::kTest, 1);
  for (const int size : sizes) {
    parts.emplace_back();
    for (int c = 0; c < channels; ++c) {
      const float shift = rng.normal(), scale = rng.uniform(0.5F, 2.0F);
      parts.back().emplace_back();
      for (int i = 0; i < size; ++i) {
        parts.back().back().push_back(static_cast<double>(shift + scale * rng.normal()));
      }
    }
  }
  return parts;
}

}  // namespace

TEST_CASE("the lens splits the variance of the whole batch into within and between") {
  constexpr int kChannels = 3;
  constexpr double kEps = 1e-5;
  const auto values = random_parts({7, 0, 12, 3}, kChannels);
  std::vector<PartMoments> parts;
  for (const auto& part : values) {
    PartMoments moments{static_cast<std::int64_t>(part[0].size()), {}, {}};
    for (const auto& channel : part) {
      const Naive one = naive(channel);
      moments.mean.push_back(static_cast<float>(one.mean));
      moments.m2.push_back(static_cast<float>(one.var * static_cast<double>(channel.size())));
    }
    parts.push_back(moments);
  }
  const BatchNormDiagnostics lens = compare_parts(parts, kEps);

  double within = 0, between = 0, ratio = 0, ratio_max = 0, log_ratio = 0, whole_variance = 0;
  for (int c = 0; c < kChannels; ++c) {
    std::vector<double> all;
    for (const auto& part : values) all.insert(all.end(), part[c].begin(), part[c].end());
    const Naive whole = naive(all);
    double inside = 0, outside = 0;
    for (const auto& part : values) {
      if (part[c].empty()) continue;
      const Naive one = naive(part[c]);
      const double share = static_cast<double>(part[c].size()) / static_cast<double>(all.size());
      inside += share * one.var;
      outside += share * (one.mean - whole.mean) * (one.mean - whole.mean);
      log_ratio += std::abs(std::log((one.var + kEps) / (whole.var + kEps))) / 3 / kChannels;
    }
    whole_variance += whole.var / kChannels;
    within += inside / kChannels;
    between += outside / kChannels;
    ratio += outside / (inside + kEps) / kChannels;
    ratio_max = std::max(ratio_max, outside / (inside + kEps));
  }
  CHECK(lens.parts == 3);
  CHECK(lens.count == 22);
  CHECK(lens.channels == kChannels);
  CHECK(lens.within == doctest::Approx(within).epsilon(1e-5));
  CHECK(lens.between == doctest::Approx(between).epsilon(1e-5));
  CHECK(lens.within + lens.between == doctest::Approx(whole_variance).epsilon(1e-5));
  CHECK(lens.ratio_mean == doctest::Approx(ratio).epsilon(1e-5));
  CHECK(lens.ratio_max == doctest::Approx(ratio_max).epsilon(1e-5));
  CHECK(lens.log_var_ratio == doctest::Approx(log_ratio).epsilon(1e-5));
}

TEST_CASE("the lens of a batch without values says nothing") {
  const BatchNormDiagnostics lens = compare_parts(std::vector<PartMoments>{{0, {0}, {0}}}, 1e-5);
  CHECK(lens.parts == 0);
  CHECK(lens.ratio_max == 0);
}

TEST_CASE("mean and pooled statistics of devices") {
  const std::vector<ReplicaStatistics> devices{
      {{"a", {1, 10}, {2, 5}, 7}}, {{"a", {3, 10}, {4, 6}, 7}}, {{"a", {8, 10}, {9, 7}, 7}}};
  const ReplicaStatistics mean = merge_running_statistics(devices, false);
  CHECK(mean[0].mean == std::vector<float>{4, 10});
  CHECK(mean[0].var == std::vector<float>{5, 6});
  CHECK(mean[0].num_batches_tracked == 7);
  const ReplicaStatistics pooled = merge_running_statistics(devices, true);
  CHECK(pooled[0].mean == mean[0].mean);
  CHECK(pooled[0].var[0] == doctest::Approx(5 + (9.0 + 1 + 16) / 3));
  CHECK(pooled[0].var[1] == 6);
}

}  // namespace lockstep
