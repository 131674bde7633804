#pragma once
// Running statistics on the host, as checkpoints hold them, and their merge into the ones that an
// evaluation uses.

#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace lockstep {

/// The running statistics of one BatchNorm layer of one replica.
struct BatchNormStatistics {
  std::string layer;
  std::vector<float> mean;  // [C]
  std::vector<float> var;   // [C]
  std::int64_t num_batches_tracked = 0;
  auto fields() { return std::tie(layer, mean, var, num_batches_tracked); }
  friend bool operator==(const BatchNormStatistics&, const BatchNormStatistics&) = default;
};

/// Those of one replica, in the order of its parameter store; empty when nothing is tracked.
using ReplicaStatistics = std::vector<BatchNormStatistics>;

/// Per layer and channel, over devices k, in double: mean of mean_k; mean of var_k, plus, when
/// `pooled`, the (biased) variance of the mean_k.
ReplicaStatistics merge_running_statistics(std::span<const ReplicaStatistics> devices, bool pooled);

}  // namespace lockstep
