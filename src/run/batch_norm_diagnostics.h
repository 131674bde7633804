#pragma once
// Diagnostics of BatchNorm: per layer, how far the statistics of the parts of a batch (devices, or
// slices in ghost mode) lie from those of the whole batch. Read between steps, from the partial
// moments of the last step.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "run/running_statistics.h"

namespace lockstep {

/// One BatchNorm call in one step. Variances are biased; means over channels unless said otherwise.
/// With parts k of n_k values, mean mu_k and variance var_k: global mean mu = sum n_k mu_k / n,
/// within = sum n_k var_k / n, between = sum n_k (mu_k - mu)^2 / n, global variance = within +
/// between.
struct BatchNormDiagnostics {
  std::string layer;
  std::int64_t step = 0;   // iterations done
  std::int64_t count = 0;  // values per channel in the whole batch
  int parts = 0;           // parts that had values
  std::int64_t channels = 0;
  double within = 0;
  double between = 0;
  double ratio_mean = 0;  // mean over channels of between / (within + eps)
  double ratio_max = 0;   // the largest of them
  double log_var_ratio =
      0;  // mean over channels and parts of |log((var_k + eps) / (global variance + eps))|
  double running_mean_spread =
      0;  // max over devices and channels of |running_mean_k - running_mean_0|
};

/// One part's statistics of one layer on the host.
struct PartMoments {
  std::int64_t count = 0;
  std::vector<float> mean;  // [C]; empty when there is nothing to count
  std::vector<float> m2;    // [C] sum of squared deviations from `mean`
};

/// What one BatchNorm call saw in one step.
struct BatchNormCall {
  std::string layer;
  double eps = 0;
  std::vector<std::vector<PartMoments>> parts;  // [rank][slice]
};

/// All that the diagnostics look at, on the host.
struct BatchNormReading {
  std::vector<BatchNormCall> calls;        // of the last training step, in forward order
  std::vector<ReplicaStatistics> running;  // [rank]
};

/// The diagnostics of one layer (all but layer, step and running_mean_spread) from its parts.
BatchNormDiagnostics compare_parts(std::span<const PartMoments> parts, double eps);

/// The diagnostics of every call. `step`: steps done.
std::vector<BatchNormDiagnostics> diagnose(const BatchNormReading& reading, std::int64_t step);

}  // namespace lockstep
