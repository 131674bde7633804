#pragma once
// DataParallel in one process: replicate, scatter, parallel_apply, gather. One replica per device,
// built from the same configuration and equal in parameters at every step.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/data/loader.h"
#include "lockstep/nn/models/unet.h"
#include "lockstep/nn/network.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/replica_group.h"

namespace lockstep {

/// Sizes of torch.chunk(batch, parts): ceil(batch / parts) each until used up, then 0: 5 over 4 ->
/// 2, 2, 1, 0.
std::vector<std::int64_t> chunk_sizes(std::int64_t batch, int parts);

/// Host threads that each of `replicas` uses for its own operations: its share of the cores, or of
/// OMP_NUM_THREADS where that is less; at least 1.
int threads_per_replica(int replicas);

/// Builds a replica's network. Called on the replica's thread, for training and for evaluation
/// alike.
using NetworkFactory = std::function<std::unique_ptr<Network>(
    const Shape& input, const PlanOptions& plan, Backend& backend, ParameterStore& store)>;

struct GradientExchangeOptions {
  std::string kind = "auto";  // or owner, all_reduce
  // all_reduce: gradients are summed in buckets, beside the backward pass. The sizes are those of
  // PyTorch's DistributedDataParallel: large enough for the full bandwidth of any link, small
  // enough that most of the pass is still to come when the first ones start; the first is small,
  // because nothing is on the way before it.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
};

/// Which exchange a run has, and why.
struct GradientExchangeChoice {
  std::string kind;    // owner or all_reduce
  std::string reason;  // "as asked", "replicas share a GPU"
};

/// A scale of the loss that follows the gradients, as PyTorch's GradScaler has it. A step whose
/// gradients are not finite is left out by all replicas and halves the scale.
struct LossScaleOptions {
  float initial = 65536;                // a power of two, at least 1
  std::int64_t growth_interval = 2000;  // steps in a row that were not left out, to double it
};

struct DataParallelOptions {
  std::vector<Device> devices;
  BatchNormOptions bn;
  SgdOptions sgd;
  std::vector<float> class_weight;  // empty: all 1
  int num_classes = 0;
  int ignore_index = 255;
  std::int64_t global_batch = 0;        // the largest that will come
  Size size;                            // of training images
  std::uint64_t seed = 0;               // of initial weights and dropout
  DType activations = DType::kFloat32;  // in training and in evaluation; others than fp32 need GPUs
  std::optional<LossScaleOptions> loss_scale;  // fp16 needs one; none: gradients as they are
  BackendOptions backend;
  CommunicatorOptions communicator;  // its `all_reduce` is not read
  GradientExchangeOptions gradient_exchange;
  /// Replays steps with a full global batch from a recording (Communicator::record_step); the
  /// results are the same bits. Needs a transport that can, and a momentum of BatchNorm that is a
  /// number; no `communicator.hook`, which a replay would not call.
  bool cuda_graph = false;
};

/// What a step took, in seconds of the ranks' threads: means over ranks. On GPUs, where streams do
/// the waiting, all of it counts as `compute`; what a GPU does while the host prepares the next
/// batch takes no thread's time.
struct StepTimes {
  double compute = 0;            // forward and backward, without waiting
  double batch_norm_wait = 0;    // for other replicas in BatchNorm exchanges
  double gradient_exchange = 0;  // waiting for gradients, sum, update and write-back
};

struct StepResult {
  double loss = 0;       // global mean over valid pixels (weighted by class weights)
  double grad_norm = 0;  // Euclidean, of the global loss's gradient, before weight decay
  bool skipped = false;  // left out because of its gradients, which have no norm (NaN)
  std::optional<LossScaleState>
      loss_scale;  // of the next step; with DataParallelOptions::loss_scale
  StepTimes times;
};

/// One rank's state. Built and used on the rank's thread; read by others only between steps.
struct Replica {
  int rank = 0;
  std::unique_ptr<Backend> backend;
  ParameterStore store;
  std::unique_ptr<Network> network;       // training
  std::unique_ptr<Network> eval_network;  // for the last evaluated size; shares the store
  Storage velocity;                       // momentum of the parameters that this rank updates
};

class DataParallel {
 public:
  /// Starts the threads, builds the replicas, initialises rank 0 from the seed and mirrors it.
  /// The sync group is `bn.sync_group` in mode kSync; `communicator.sync_group` is not read.
  DataParallel(const DataParallelOptions& options, const NetworkFactory& factory);
  ~DataParallel();

  /// One optimizer step on a global batch (its sizes may be below the planned ones). All ranks'
  /// parameters are bitwise equal afterwards. Throws as ReplicaGroup::run, and NonFiniteError
  /// naming the first replica whose part of the loss is not finite: all ranks then leave parameters
  /// and momentum untouched, and go on working. NonFiniteError, too, when the loss is finite and
  /// the gradient is not: parameters and momentum have then taken it, and are of no use. With a
  /// loss scale such a step is left out instead (StepResult::skipped), unless the scale is down
  /// at 1.
  StepResult train_step(const Batch& batch, std::int64_t step, float lr);

  /// The same in parts, so that the host can prepare the next batch while GPUs work on this one:
  /// begin_step, stage_next (or not), finish_step. A batch may be given up when the call that got
  /// it has returned. After `stage_next` the next step takes that batch.
  ///
  /// `steps_ahead()` further steps may be begun before the first is finished, so that GPUs go from
  /// step to step without waiting for the host; finish_step() then finishes the oldest. Where that
  /// throws NonFiniteError, the later steps have left parameters and momentum alone, too (with a
  /// loss that is not finite), and are given up. A step that was begun before one that failed can
  /// still be finished. Between steps, that is with none under way, and only then, may anything
  /// else be called.
  void begin_step(const Batch& batch, std::int64_t step, float lr);
  void stage_next(const Batch& batch);
  StepResult finish_step();
  /// 1 on GPUs; 0 where a step is done when begin_step() returns.
  int steps_ahead() const;

  /// The training-mode forward pass alone: no loss, no update, running statistics as they were.
  /// What the layers' `local_moments` tell of it can be read afterwards.
  void forward(const Batch& batch);

  /// Confusion matrix [classes, classes] (row: label) of `count` images that `load(index)` gives,
  /// spread over the ranks; every image counts once. `loss`: sum of losses over valid pixels /
  /// number of valid pixels, without class weights. `load` is called on the ranks' threads. The
  /// result does not depend on the number of ranks, if their running statistics are equal: every
  /// replica uses its own (train/evaluator.h sees to that).
  struct EvalResult {
    std::vector<std::int64_t> confusion;
    double loss = 0;
  };
  EvalResult evaluate(std::int64_t count, const std::function<Batch(std::int64_t index)>& load);

  /// Copies rank 0's parameters and BatchNorm states (and nothing else) to the other ranks.
  void replicate();

  int size() const;
  Replica& replica(int rank);
  ReplicaGroup& group();
  CommunicatorGroup& communicators();
  const GradientExchangeChoice& gradient_exchange() const;
  const DataParallelOptions& options() const;

  /// Momentum of all parameters in their flat order, on the host, the same for every exchange and
  /// number of devices.
  std::vector<float> velocity() const;
  void set_velocity(std::span<const float> values);

  /// The loss scale as the next step will have it; none without DataParallelOptions::loss_scale.
  std::optional<LossScaleState> loss_scale() const;
  /// REQUIRES: the run has one.
  void set_loss_scale(const LossScaleState& state);

 private:
  void leave_stuck_threads();

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
