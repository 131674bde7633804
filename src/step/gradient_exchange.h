#pragma once
// One rank's part of the gradient exchange. Two ways lead to equal weights everywhere:
//
//   owner:      reduce-scatter, update and all-gather in one pass over the parameters that the rank
//               owns. It reads every replica's gradients and writes every replica's weights.
//   all_reduce: gradients are summed everywhere during the backward pass, and every rank updates
//               all its own weights; it is then the owner of everything among itself alone.
//
// Either way all ranks must have finished their backward pass before the update and must not start
// a forward pass until all are done. Between processes: world_gradients.h.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "step/bucketed_sum.h"
#include "step/gradient_tree.h"
#include "step/world_gradients.h"
#include "sync/all_reduce.h"

namespace lockstep {

/// What GradientExchangeOptions::kind = `wanted` means on these devices. "auto" is "owner", whose
/// sums in a fixed order are the same bits on any devices, but for GPUs that cannot all reach each
/// other's memory: there it is "all_reduce", if the build has NCCL. Throws ConfigError for another
/// word. `gpus`: what the build has; null for none.
GradientExchangeChoice choose_gradient_exchange(const std::string& wanted,
                                                std::span<const Device> devices,
                                                const GpuAllReduce* gpus = gpu_all_reduce());

/// What an update reads from device memory, because it changes from step to step, and where it
/// leaves its part of the gradient's squared norm.
struct StepMemory {
  const float* lr = nullptr;            // of this rank's device
  const std::int64_t* begun = nullptr;  // steps, this one too; of this rank's device
  // Of all ranks, those of other processes as one; with a loss scale the guards (GradientCheck).
  std::vector<const double*> losses;
  // Of this rank's device; one of them.
  double* squared_norm = nullptr;
  double* block_squares = nullptr;    // OptimizerShard::block_squares, from the owned elements on
  const float* grad_scale = nullptr;  // of this rank's device; null: 1
  const std::int64_t* skipped = nullptr;  // of the steps before; of this rank's device; null: none
};

/// Whose gradients a rank exchanges.
struct GradientPeers {
  std::span<ParameterStore* const> stores;  // of this process's ranks
  int first_rank = 0;                       // of this process
  int ranks = 1;                            // of all processes
  WorldGradients* world = nullptr;          // null: one process
};

/// Owned by its replica, used by its rank's thread.
class GradientExchange {
 public:
  /// The way "owner", or with `sums` (of this rank) "all_reduce". On the parameters all ranks
  /// agree; their stores outlive the object.
  GradientExchange(Backend& backend, const GradientPeers& peers, int rank,
                   const Optimizer& optimizer, std::span<const ParameterGroup> groups,
                   StepMemory memory, std::unique_ptr<BucketedSum> sums = nullptr);

  /// Whether this is the way "all_reduce".
  bool sums_everywhere() const { return sums_ != nullptr; }

  // The steps of BucketedSum; the way "owner" has nothing to do in them.
  void begin(std::int64_t batch);
  void layer_done(std::size_t layer);
  void finish();
  /// Brings what this process has of the others' gradients to them, and theirs here; where
  /// gradients are summed everywhere, whether losses are finite.
  void exchange_with_processes(const GradientTree& tree);

  /// Sums the owned gradients of all ranks in the order of `tree`, updates, and writes to every
  /// replica; adds the squares of the sums to the squared norm. Changes nothing when one of the
  /// losses is not finite. Where gradients are summed everywhere, the tree does not matter.
  void update(const GradientTree& tree);
  /// Brings the weights that other processes have updated here.
  void share_with_processes();

  /// The optimizer's state between this rank and its place in that of all parameters, on the host.
  /// Where all ranks have all of it, the first one of each process gives it.
  void save_state(OptimizerState& all) const;
  void restore_state(const OptimizerState& all);

 private:
  void allocate_slots(std::int64_t elements);
  void collect_gradients(const GradientTree& tree);

  Backend& backend_;
  const int rank_, first_rank_;
  WorldGradients* const world_;
  const StepMemory memory_;
  const std::unique_ptr<BucketedSum> sums_;
  std::int64_t begin_ = 0;                     // of the owned elements, in the flat parameters
  std::vector<ParameterRange> ranges_;         // relative to begin_
  std::vector<const ParameterStore*> stores_;  // [own rank]; all_reduce: one, the rank's own
  std::vector<const float*> grads_;            // [node] of the step's tree, at begin_
  std::vector<float*> weights_;                // [own rank], at begin_; all_reduce: one
  const Optimizer optimizer_;
  Storage slots_;                // [slots, owned elements]
  std::vector<Tensor> slot_of_;  // [slot] [1, owned elements]
};

}  // namespace lockstep
