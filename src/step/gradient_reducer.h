#pragma once
// How the gradients of all ranks are summed, and how new weights reach all ranks. Each way owns its
// order of additions:
//
//   ShardedReducer   (owner) reduce-scatter, update and all-gather in one pass over the parameters
//                    that the rank owns: it reads every replica's gradients, and its update writes
//                    every replica's weights. In the order of the images, or of the ranks.
//   BucketedReducer  (all_reduce, bucketed_reducer.h) sums everywhere, in buckets beside the
//                    backward pass; every rank updates all of its own weights.
//   WorldReducer     (world_reducer.h) as ShardedReducer, over several processes.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/options.h"
#include "step/gradient_tree.h"
#include "step/loss_scaler.h"
#include "step/step.h"
#include "sync/all_reduce.h"

namespace lockstep {

/// What GradientExchangeOptions::kind = `wanted` means on these devices. kAuto is kOwner, whose
/// sums in a fixed order are the same bits on any devices, but for GPUs that do not all have NVLink
/// between them: there it is kAllReduce, if the build has NCCL, because the owners' reads over PCIe
/// would come after the backward pass, and NCCL's sums come beside it. `gpus`: what the build has;
/// null for none.
GradientExchangeChoice choose_gradient_exchange(GradientExchangeKind wanted,
                                                std::span<const Device> devices,
                                                const GpuAllReduce* gpus = gpu_all_reduce());

/// What a rank updates, and where the new weights go.
struct UpdateShare {
  int rank = 0;
  int owner = 0, owners = 1;                  // of the flat parameters (owned_ranges)
  std::vector<const ParameterStore*> stores;  // of the replicas whose weights it writes
  bool saves = true;  // whether it gives its optimizer state; false: another rank has the same
};

/// What an update adds up (OptimizerShard::grads and joins).
struct GradientSum {
  std::span<const float* const> parts;
  std::span<const int> joins;
};

/// A rank among those whose gradients are summed.
struct GradientRank {
  int rank = 0;
  int first = 0;  // of this process
  Communicator& communicator;
  Backend& backend;
  ParameterStore& store;
  std::vector<ParameterStore*> process;  // of the ranks of this process
  bool image_parts = false;  // whether gradients are kept apart by the images of the batch
};

/// Owned by its replica's TrainStep, used by the rank's thread. All calls of a step in this order.
class GradientReducer {
 public:
  virtual ~GradientReducer() = default;

  /// Returns what the rank updates. Set-up only.
  virtual UpdateShare share() const = 0;

  /// Plans the step's order. Returns where this rank's layers add their gradients, for each part of
  /// its images; empty: all together to ParameterStore::grads.
  virtual std::span<const GradientPart> begin(const StepInput& input) = 0;
  /// Hears that the step's last backward pass has issued the gradients of `layer` and all after it.
  virtual void layer_done(std::size_t layer) { static_cast<void>(layer); }
  /// After the backward pass: checks this rank's gradients, and returns when those of all ranks can
  /// be added up.
  virtual void reduce(LossScaler& scaler) = 0;
  /// Returns what the rank's update adds up, from element `begin` on, which it owns. Good until the
  /// next step.
  virtual GradientSum sum(std::int64_t begin) = 0;
  /// After the update: returns when the weights of this replica are those of all.
  virtual void publish() = 0;

  /// Seconds that the rank's thread has spent on sums beside backward passes.
  virtual double seconds() const { return 0; }
};

/// Every rank owns a share of the parameters.
class ShardedReducer : public GradientReducer {
 public:
  explicit ShardedReducer(const GradientRank& rank);

  UpdateShare share() const override;
  std::span<const GradientPart> begin(const StepInput& input) override;
  void reduce(LossScaler& scaler) override;
  GradientSum sum(std::int64_t begin) override;
  void publish() override;

 protected:
  const GradientTree& tree() const { return tree_; }
  /// The gradients of a node of this process.
  const float* grads_of(const GradientNode& node) const;
  /// Whether the ranks' parts are added in the tree, and not one after another.
  bool in_tree() const { return rank_.backend.sums_by_image(); }

 private:
  const GradientRank rank_;
  const std::vector<const ParameterStore*> stores_;  // [rank of the process]
  GradientTree tree_;                                // of the step
  std::vector<GradientPart> parts_;                  // of this rank
  std::vector<const float*> addends_;                // [node of the tree]
};

}  // namespace lockstep
