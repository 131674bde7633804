#pragma once
// All that one rank of a data-parallel run owns: its device's backend, its parameters, the network
// of training, its share of a step and of an evaluation. Built and used on the rank's thread; read
// by others only between steps.

#include <cstdint>
#include <memory>
#include <vector>

#include "step/train_step.h"
#include "step/validation.h"

namespace lockstep {

/// Parameters, running statistics and counts of one replica, on the host.
struct ReplicaState {
  std::vector<float> values;
  std::vector<float> statistics;
  std::vector<std::int64_t> tracked;  // [layer] num_batches_tracked
};

class Replica {
 public:
  /// Everything but what a step needs of the other replicas (TrainStep::join). `options` and
  /// `group` outlive it.
  Replica(const DataParallelOptions& options, SyncGroup& group, int rank, int threads);

  /// Among those of all processes.
  int rank() const { return rank_; }
  const Device& device() const { return backend_->device(); }
  Backend& backend() const { return *backend_; }
  ParameterStore& store() { return store_; }
  const ParameterStore& store() const { return store_; }
  /// Of training.
  Network& network() const { return *network_; }
  TrainStep& step() const { return *step_; }
  Validation& validation() const { return *validation_; }

  /// Between steps.
  ReplicaState read_state() const;
  void write_state(const ReplicaState& state);

 private:
  /// All parameters, and all running statistics, as one row each.
  Tensor all_values() const;
  Tensor all_statistics() const;

  const int rank_;
  std::unique_ptr<Backend> backend_;
  ParameterStore store_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<Validation> validation_;
};

}  // namespace lockstep
