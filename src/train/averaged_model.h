#pragma once
// The average of a training's weights (ema.decay) as a model of its own, with the running
// statistics that ema.bn says. Without an average there is none, and nothing to evaluate or save.

#include <cstdint>
#include <functional>
#include <optional>

#include "config/config.h"
#include "lockstep/parallel/data_parallel.h"
#include "run/running_statistics.h"

namespace lockstep {

/// Used by the trainer's thread, between steps; all processes make the same calls.
class AveragedModel {
 public:
  /// Both outlive the object.
  AveragedModel(const Config& config, DataParallel& replicas)
      : config_(config), replicas_(replicas) {}

  bool any() const { return config_.ema.decay > 0; }

  /// Calls `work` while the replicas have the average after `step` steps in place of their weights,
  /// which they get back also where `work` throws; of several processes only where it does not.
  void with(std::int64_t step, const std::function<void()>& work);
  /// Its weights and statistics after `step` steps, which are the last that were done. REQUIRES:
  /// any().
  TensorMap state(std::int64_t step);

 private:
  /// The same weights with statistics that they make of training images.
  struct Precise {
    std::int64_t step = -1;
    ReplicaStatistics statistics;
  };

  void put(std::int64_t step, const std::vector<ReplicaStatistics>& of_weights);

  const Config& config_;
  DataParallel& replicas_;
  Precise precise_;  // of the last step that was asked for
};

}  // namespace lockstep
