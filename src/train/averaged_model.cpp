#include "train/averaged_model.h"

#include <vector>

#include "lockstep/data/loader.h"
#include "train/replica_readings.h"

namespace lockstep {
namespace {

/// The weights and statistics that a training goes on with, while its replicas have others. Comes
/// to an end with `put_back`, or with an exception.
class SetAside {
 public:
  explicit SetAside(DataParallel& replicas)
      : replicas_(replicas),
        weights_(replicas.state_dict()),
        statistics_(read_running_statistics(replicas)) {}
  SetAside(const SetAside&) = delete;
  SetAside& operator=(const SetAside&) = delete;
  // Processes put back together, and another one is elsewhere where this one throws: the run ends.
  ~SetAside() {
    if (is_back_ || replicas_.rank_layout().processes() > 1) return;
    try {
      put_back();
    } catch (...) {  // of replicas that have failed: their error is on its way
    }
  }

  const std::vector<ReplicaStatistics>& statistics() const { return statistics_; }
  void put_back() {
    replicas_.load_state_dict(weights_);
    write_running_statistics(replicas_, statistics_);
    is_back_ = true;
  }

 private:
  DataParallel& replicas_;
  const TensorMap weights_;
  const std::vector<ReplicaStatistics> statistics_;  // [rank]
  bool is_back_ = false;
};

}  // namespace

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
  SetAside own(replicas_);
  put(step, own.statistics());
  work();
  own.put_back();
}

TensorMap AveragedModel::state(std::int64_t step) {
  if (config_.ema.statistics != EmaStatistics::kPrecise) return replicas_.averaged_state_dict();
  TensorMap state;
  with(step, [&] { state = replicas_.state_dict(); });
  return state;
}

}  // namespace lockstep
