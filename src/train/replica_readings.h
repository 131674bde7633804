#pragma once
// What the replicas of all processes hold between steps, on the host: running statistics, read and
// written back bit for bit, what BatchNorm saw, and digests that tell whether replicas are equal.
// Downloads and uploads run on the replicas' threads; all processes make the same calls.

#include <cstdint>
#include <span>
#include <vector>

#include "config/config.h"
#include "lockstep/data/loader.h"
#include "lockstep/parallel/data_parallel.h"
#include "run/batch_norm_diagnostics.h"
#include "run/running_statistics.h"
#include "run/summary.h"

namespace lockstep {

/// [rank].
std::vector<ReplicaStatistics> read_running_statistics(DataParallel& replicas);

/// REQUIRES: one element per rank, as `read_running_statistics` gives them.
void write_running_statistics(DataParallel& replicas,
                              std::span<const ReplicaStatistics> statistics);

/// Statistics of `batches` training batches under the present weights: every layer's moments merged
/// over batches in double, those of a batch as a step merges them, unbiased variance. Changes no
/// running statistics. Layers that are not in training mode keep device 0's.
ReplicaStatistics precise_statistics(DataParallel& replicas, TrainLoader& loader,
                                     std::int64_t batches);
/// Returns the statistics of bn.precise_iters batches, from the start of epoch 0 on.
ReplicaStatistics precise_statistics(DataParallel& replicas, const Config& config);

/// What the BatchNorm layers saw in the last step; frozen ones are left out.
BatchNormReading read_batch_norms(DataParallel& replicas);

/// Reads the replicas' parameters and running statistics. REQUIRES: a report per rank.
void add_digests(DataParallel& replicas, std::span<RankReport> reports);

}  // namespace lockstep
