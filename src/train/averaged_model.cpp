#include "train/averaged_model.h"

#include <vector>

#include "lockstep/data/loader.h"
#include "train/replica_readings.h"

namespace lockstep {

// Devices may have statistics of their own, and a state of weights has one's.
void AveragedModel::put(std::int64_t step, const std::vector<ReplicaStatistics>& of_weights) {
  replicas_.load_state_dict(replicas_.averaged_state_dict());
  switch (config_.ema.statistics) {
    case EmaStatistics::kAverage:
      return;
    case EmaStatistics::kCopy:
      return write_running_statistics(replicas_, of_weights);
    case EmaStatistics::kPrecise:
      break;
  }
  if (precise_.step != step) {
    precise_ = {step, precise_statistics(replicas_, config_)};
  }
  write_running_statistics(replicas_,
                           std::vector<ReplicaStatistics>(of_weights.size(), precise_.statistics));
}

void AveragedModel::with(std::int64_t step, const std::function<void()>& work) {
  const TensorMap weights = replicas_.state_dict();
  const std::vector<ReplicaStatistics> statistics = read_running_statistics(replicas_);
  put(step, statistics);
  work();
  replicas_.load_state_dict(weights);
  write_running_statistics(replicas_, statistics);
}

TensorMap AveragedModel::state(std::int64_t step) {
  if (config_.ema.statistics != EmaStatistics::kPrecise) return replicas_.averaged_state_dict();
  TensorMap state;
  with(step, [&] { state = replicas_.state_dict(); });
  return state;
}

}  // namespace lockstep
