#pragma once
// What each rank of a run did: which device waits for the others, and which holds how much memory.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/data_parallel.h"

namespace lockstep {

/// Of one rank over some steps: means per step, and the memory after the last of them.
struct RankReport {
  int rank = 0;
  std::string device;
  double loss = 0;  // of its parts of the batches: the ranks' add up to the mean loss
  StepTimes times = {};
  std::size_t memory_bytes = 0;       // that its backend holds
  std::size_t peak_memory_bytes = 0;  // the most that it has held at a time, since the start

  // By `add_digests`. Equal hashes mean equal bits.
  std::string weights_hash = {};     // 16 hex digits, of all parameters; empty: not read
  std::string statistics_hash = {};  // of running statistics and their counts of batches
  std::optional<float> smallest_running_var = {};  // of all layers and channels; none: not tracked
};

/// Reads the replicas' parameters and running statistics. REQUIRES: a report per rank. Between
/// steps; downloads run on the replicas' threads.
void add_digests(DataParallel& replicas, std::span<RankReport> reports);

/// Adds up what the ranks did, step by step; allocates only when it is made and asked.
class RankTotals {
 public:
  explicit RankTotals(std::span<const Device> devices);

  /// [rank].
  void add(std::span<const RankStep> step);
  void clear();
  /// [rank], over the steps since the last `clear`; empty when there were none.
  std::vector<RankReport> reports() const;

 private:
  std::vector<RankReport> sums_;  // [rank]
  std::int64_t steps_ = 0;
};

}  // namespace lockstep
