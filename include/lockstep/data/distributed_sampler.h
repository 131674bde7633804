#pragma once
// Which samples a rank of several gets, as torch.utils.data.DistributedSampler deals them out: for
// training loops of one's own, with a loader per rank. (TrainLoader makes global batches instead.)

#include <cstdint>
#include <vector>

namespace lockstep {

struct DistributedSamplerOptions {
  int ranks = 1;
  int rank = 0;
  bool shuffle = true;
  bool drop_last = false;  // leave out the last samples instead of repeating the first
  std::uint64_t seed = 0;
};

/// All ranks get equally many samples: rank r those at places r, r + ranks, r + 2*ranks, ... of the
/// epoch's order. Where the samples do not divide evenly the order is continued from its start,
/// over and over if it must be, or cut with `drop_last`. The order is a function of seed and epoch;
/// it is not that of PyTorch's generator. Safe from any thread.
class DistributedSampler {
 public:
  /// Throws Error unless 0 <= rank < ranks and there is at least one sample.
  DistributedSampler(std::int64_t samples, const DistributedSamplerOptions& options);

  /// Samples of a rank in an epoch: ceil(samples / ranks), or with drop_last the floor.
  std::int64_t size() const;
  /// The rank's samples in their order.
  std::vector<std::int64_t> indices(std::int64_t epoch) const;

 private:
  const std::int64_t samples_;
  const DistributedSamplerOptions options_;
};

}  // namespace lockstep
