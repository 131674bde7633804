#pragma once
// The replicas' running statistics on the host: read, written back bit for bit, and merged into the
// ones that an evaluation uses. Reading and writing run on the replicas' threads, between steps.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/loader.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {

/// Of one BatchNorm layer of one replica.
struct BatchNormStatistics {
  std::string layer;
  std::vector<float> mean;  // [C]
  std::vector<float> var;   // [C]
  std::int64_t num_batches_tracked = 0;
};

/// Of one replica, in the order of its parameter store; empty when nothing is tracked.
using ReplicaStatistics = std::vector<BatchNormStatistics>;

/// [rank].
std::vector<ReplicaStatistics> read_running_statistics(DataParallel& replicas);

/// REQUIRES: one element per rank, as `read_running_statistics` gives them.
void write_running_statistics(DataParallel& replicas,
                              std::span<const ReplicaStatistics> statistics);

/// Per layer and channel, over devices k, in double: mean of mean_k; mean of var_k, plus, when
/// `pooled`, the (biased) variance of the mean_k.
ReplicaStatistics merge_running_statistics(std::span<const ReplicaStatistics> devices, bool pooled);

/// Statistics of `batches` training batches under the present weights: every layer's moments merged
/// over devices and batches in double, unbiased variance. Changes no running statistics. Layers
/// that are not in training mode keep device 0's.
ReplicaStatistics precise_statistics(DataParallel& replicas, TrainLoader& loader,
                                     std::int64_t batches);

}  // namespace lockstep
