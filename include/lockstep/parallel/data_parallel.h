#pragma once
// DataParallel: replicate, scatter, parallel_apply, gather. One replica per device of a process, or
// of all processes of a world, built from the same model and equal in parameters at every step.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/data/batch.h"
#include "lockstep/io/weights.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/model.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/sync/sync_group.h"

namespace lockstep {

/// Sizes of torch.chunk(batch, parts): ceil(batch / parts) each until used up, then 0: 5 over 4 ->
/// 2, 2, 1, 0.
std::vector<std::int64_t> chunk_sizes(std::int64_t batch, int parts);

/// Host threads that each of `replicas` uses for its own operations: its share of host_threads(),
/// at least 1.
int threads_per_replica(int replicas);

struct GradientExchangeOptions {
  GradientExchangeKind kind = GradientExchangeKind::kAuto;
  // all_reduce: gradients are summed in buckets, beside the backward pass. The sizes are those of
  // PyTorch's DistributedDataParallel: large enough for the full bandwidth of any link, small
  // enough that most of the pass is still to come when the first ones start; the first is small,
  // because nothing is on the way before it.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
};

/// Which exchange a run has, and why.
struct GradientExchangeChoice {
  GradientExchangeKind kind;  // kOwner or kAllReduce
  std::string reason;         // "as asked", "replicas share a GPU"
};

/// A scale of the loss that follows the gradients, as PyTorch's GradScaler has it. A step whose
/// gradients are not finite is left out by all replicas and halves the scale.
struct LossScaleOptions {
  float initial = 65536;                // a power of two, at least 1
  std::int64_t growth_interval = 2000;  // steps in a row that were not left out, to double it
};

/// Which of a step's micro-batches feed the running statistics, each with statistics of its own; or
/// all of them as one batch.
enum class MicroBatches : std::uint8_t { kEvery, kFirst, kLast, kTogether };

/// What the running statistics of the average of the weights are.
enum class AveragedStatistics : std::uint8_t {
  kCopy,     // those of the weights
  kAverage,  // averaged as the weights are: rank 0's, which are the model's
};

/// What one rank owns. Used on the rank's thread (DataParallel::for_each_replica), read by others
/// only between steps.
class Replica {
 public:
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Among those of all processes.
  int rank() const { return rank_; }
  const Device& device() const { return backend_->device(); }
  Backend& backend() const { return *backend_; }
  ParameterStore& store() { return store_; }
  const ParameterStore& store() const { return store_; }
  /// Of training.
  Network& network() const { return *network_; }

 protected:
  explicit Replica(int rank) : rank_(rank) {}
  ~Replica() = default;

  const int rank_;
  std::unique_ptr<Backend> backend_;
  ParameterStore store_;
  std::unique_ptr<Network> network_;
};

/// What a replica is made of, as a callback sees it.
struct ReplicaContext {
  int rank = 0, size = 1;
  Device device;
  Backend& backend;
  ParameterStore& store;
  Network& network;  // of training
};

/// The gradient of one parameter: of the global loss, summed over all devices.
struct NamedGradient {
  std::string name;         // of the parameter
  Shape shape;              // in PyTorch's order
  std::span<float> values;  // on the host, in the same order
};

/// Sees the gradients of all parameters that are not frozen, in the order of their declaration, and
/// may change them.
using GradientHook = std::function<void(std::span<const NamedGradient> gradients)>;

struct DataParallelOptions {
  std::vector<Device> devices = {};  // of this process
  Model model = nullptr;
  NormLayer norm = {};  // what the model is given; SyncBatchNorm synchronizes over all devices
  Shape input = {};     // of the largest global batch that will come, [N, ..., C]
  std::vector<NamedLoss> losses = {};  // at least one, at most eight
  bool sample_weights = false;         // whether every training batch has Batch::sample_weights
  Optimizer optimizer = Sgd{};
  /// Parameters with a learning rate or weight decay of their own.
  std::vector<ParameterGroup> parameter_groups = {};
  /// Called once in each step, in each process: when the gradients of all devices and micro-batches
  /// are summed, and before they are clipped. The update takes what it leaves, and so does
  /// StepResult::grad_norm. It gets the same bits wherever those of the step are the same
  /// (DataParallel::placement_obstacle); of several processes each must make the same changes. Not
  /// called where a step is left out or its loss is not finite. Runs on the thread of a replica,
  /// while the others wait; what it throws is final, as a failure in a step. Null: nothing is
  /// copied and nobody waits. On a GPU gradients pass through the host, which takes a step longer
  /// than the sum itself; not with `cuda_graph`, and not with replicas on several GPUs.
  GradientHook on_gradients = nullptr;
  GradientClipping gradient_clipping = {};
  /// In [0, 1). Not 0: beside the weights w there is an exponential moving average a of them
  /// (Polyak and Juditsky 1992), a = decay*a + (1-decay)*w after each update and a = w after the
  /// first one, of step 0. It is spread over the devices as the optimizer's state, with which it is
  /// saved; a state without it makes it start over from the weights.
  double average_decay = 0;
  AveragedStatistics averaged_statistics = AveragedStatistics::kCopy;
  /// Micro-batches per step, one after another through the network: their gradients are added up
  /// and belong to the global loss of the whole batch; BatchNorm's statistics are of a micro-batch.
  /// With MicroBatches::kTogether they go through the layers between two BatchNorms one after
  /// another and meet there: results are those of accumulate = 1, to the bit where the backend sums
  /// by image, in less memory and more time (PlanOptions::tile; a device's part of the batch is
  /// what is cut).
  int accumulate = 1;
  MicroBatches accumulated_statistics = MicroBatches::kEvery;
  /// Computes normalised values and activations again in the backward pass, and does not keep them
  /// (PlanOptions::recompute): less memory, more time, the same bits.
  bool recompute = false;
  /// Lets what the backward pass needs wait in pinned memory of the host meanwhile
  /// (PlanOptions::offload): less memory of the GPU, the same bits. Not with CPU devices, whose
  /// memory is the host's.
  bool offload = false;
  std::uint64_t seed = 0;               // of initial weights and dropout
  DType activations = DType::kFloat32;  // in training and in evaluation; others than fp32 need GPUs
  std::optional<LossScaleOptions> loss_scale = {};  // fp16 needs one; none: gradients as they are
  BackendOptions backend = {};
  SyncGroupOptions communicator = {};  // its `all_reduce` is not read
  GradientExchangeOptions gradient_exchange = {};
  /// Replays steps with a full global batch from a recording (a CUDA graph); the
  /// results are the same bits. Needs a transport that can, a momentum of BatchNorm that is a
  /// number and one micro-batch; no `communicator.hook`, which a replay would not call.
  bool cuda_graph = false;
  /// Whether it is an error if results depend on how batches are spread over devices
  /// (DataParallel::placement_obstacle). GPUs then keep sums image by image
  /// (BackendOptions::sums_by_image), and gradients are exchanged by their owners where the choice
  /// is kAuto.
  bool placement_invariant = false;
  /// Called for every replica when it has been made and given rank 0's state, and after each later
  /// `replicate`: on its own thread, rank 0 first, each rank after the one before it.
  std::function<void(const ReplicaContext&)> on_replicate = nullptr;

  /// Micro-batches that are batches of their own; one where they are together.
  int micro_batches() const {
    return accumulated_statistics == MicroBatches::kTogether ? 1 : accumulate;
  }
};

/// What a step took, in seconds of a rank's thread. On GPUs, where streams do the waiting, all of
/// it counts as `compute`; what a GPU does while the host prepares the next batch takes no thread's
/// time.
struct StepTimes {
  double compute = 0;            // forward and backward, without waiting
  double batch_norm_wait = 0;    // for other replicas in BatchNorm exchanges
  double gradient_exchange = 0;  // waiting for gradients, sum, update and write-back
};

/// What one rank did in a step.
struct RankStep {
  double loss = 0;  // of its part of the batch: the ranks' add up to the step's
  StepTimes times;
  std::size_t memory_bytes = 0;       // that its backend holds (Backend::allocated_bytes)
  std::size_t peak_memory_bytes = 0;  // the most that it has held at a time
};

struct StepResult {
  double loss = 0;  // the sum of all losses, each a global mean times its weight
  std::array<double, kMaxLosses> losses{};  // as DataParallelOptions::losses; the rest 0
  double grad_norm = 0;  // Euclidean, of the global loss's gradient, before clipping and decay
  bool skipped = false;  // left out because of its gradients, which have no norm (NaN)
  std::optional<LossScaleState>
      loss_scale;                   // of the next step; with DataParallelOptions::loss_scale
  StepTimes times;                  // means over ranks
  std::span<const RankStep> ranks;  // [rank]; valid until the next step is finished
};

/// What BatchNorm normalises by in an evaluation: running statistics, those of each batch that it
/// is given, or each image by its own (normalize_by_image).
enum class EvalNormalizer : std::uint8_t { kRunning, kBatch, kOwn };

/// Used by one thread at a time: a call while another thread is in one throws Error and does
/// nothing. May be moved; a moved-from object may only go or be assigned to.
///
/// A call that throws because of its arguments leaves everything as it was, and the next call may
/// be right: options, batches, learning rates and weights that do not fit, and what `load` throws
/// in an evaluation. What fails inside a step is final: every later call throws it again. In a run
/// of several processes what `load` throws is final, too, and so are weights that do not fit.
///
/// It is this process's end of one that spans all processes of the world (SyncGroupOptions::world):
/// every process makes the same calls with the same batches, weights and states (those of process 0
/// count) and has the same results (state_dict: its first rank's); ranks are numbered through all.
class DataParallel {
 public:
  /// Starts the threads, builds the replicas, initialises rank 0 from the seed and mirrors it.
  /// Throws ConfigError where the options do not fit each other, the devices or the model, and
  /// where replicas declare different layers. What the model throws keeps its type.
  explicit DataParallel(DataParallelOptions options);
  DataParallel(DataParallel&& other) noexcept;
  DataParallel& operator=(DataParallel&& other) noexcept;
  ~DataParallel();

  /// One optimizer step on a global batch (it may be smaller than planned), which is scattered in
  /// torch.chunk's sizes. All ranks' parameters are bitwise equal afterwards. Throws Error, before
  /// anything changes, where the batch is not whole (data/batch.h), has no sample or more than
  /// planned, or where a label is none of the classes; ConfigError where `lr` is negative or not
  /// finite or `step` is negative. Throws the first
  /// failure of any replica, named by rank and device (ReplicaError; ConfigError, DataError and
  /// NonFiniteError keep their type); after a failure every call throws it again. NonFiniteError
  /// names the first replica whose part of the loss is not finite: all ranks then leave parameters
  /// and the optimizer's state untouched, have the running statistics and num_batches_tracked that
  /// they had before the step, and go on working. NonFiniteError, too, when the loss is
  /// finite and the gradient is not: parameters and state have then taken it, and are of no use.
  /// With a loss scale such a step is left out instead (StepResult::skipped), unless the scale is
  /// down at 1.
  /// `step`: its number in the run, from 0, which AdamW's bias correction and dropout go by.
  StepResult train_step(const Batch& batch, std::int64_t step, float lr);
  /// The learning rate of the optimizer as it is.
  StepResult train_step(const Batch& batch, std::int64_t step);
  /// A batch for each device, as it is (self-parallel): [rank]. Together they are the global batch.
  StepResult train_step(std::span<const Batch> batches, std::int64_t step, float lr);

  /// The same in parts, so that the host can prepare the next batch while GPUs work on this one:
  /// begin_step, stage_next (or not), finish_step. A batch may be given up when the call that got
  /// it has returned. After `stage_next` the next step takes that batch.
  ///
  /// `steps_ahead()` further steps may be begun before the first is finished, so that GPUs go from
  /// step to step without waiting for the host; finish_step() then finishes the oldest. Where that
  /// throws NonFiniteError, the later steps have left parameters and state alone, too (with a loss
  /// that is not finite), and are given up. A step that was begun before one that failed can still
  /// be finished. Between steps, that is with none under way, and only then, may anything else be
  /// called.
  void begin_step(const Batch& batch, std::int64_t step, float lr);
  void stage_next(const Batch& batch);
  StepResult finish_step();
  /// 1 on GPUs; 0 where a step is done when begin_step() returns.
  int steps_ahead() const;

  /// The training-mode forward pass alone: no loss, no update, running statistics as they were.
  /// Throws Error where the batch has more samples than a micro-batch.
  void forward(const Batch& batch);

  /// Confusion matrix [classes, classes] (row: label) of the first loss's output over `count`
  /// batches that `load(index)` gives, spread over the ranks; every sample counts once; empty where
  /// that loss takes no labels. `top5`: where the output is [N, classes], the samples whose
  /// class is among the five largest logits. `loss`: the mean of that loss over all valid pixels,
  /// over all elements, or over all samples (dice), without weights. `load` is called on the ranks'
  /// threads. The result does not depend on the number of ranks, if their running statistics are
  /// equal, as `replicate` makes them: every replica uses its own. Throws Error where `count` is
  /// negative or `load` is null, and what `load` throws, named by rank and device, when all ranks
  /// have left their batches; a rank that has not within a second ends the run.
  /// `by`: what BatchNorm normalises by; all but running statistics need memory for networks of
  /// their own.
  struct EvalResult {
    std::vector<std::int64_t> confusion;
    double loss = 0;
    std::int64_t top5 = 0;
  };
  EvalResult evaluate(std::int64_t count, const std::function<Batch(std::int64_t index)>& load,
                      EvalNormalizer by = EvalNormalizer::kRunning);

  /// Copies rank 0's parameters and BatchNorm states (and nothing else) to the other ranks.
  void replicate();

  /// Freezes BatchNorm for the rest of the training (Wu and Johnson 2021, section 3): from the next
  /// step on all ranks normalise by rank 0's running statistics, which stay as they are, and
  /// exchange none. Layers without running statistics go on as they were. REQUIRES: between steps.
  /// Throws ConfigError with `cuda_graph`.
  void freeze_statistics();

  /// Rank 0's parameters and running statistics under PyTorch's names.
  TensorMap state_dict();
  /// The same with the average of the weights in place of them, and of the running statistics where
  /// DataParallelOptions::averaged_statistics says so. REQUIRES:
  /// DataParallelOptions::average_decay.
  TensorMap averaged_state_dict();
  /// Gives them to all ranks. `strict`: throws DataError when anything is skipped, missing or
  /// unexpected (nn/parameter_store.h), before anything is copied.
  ImportSummary load_state_dict(const TensorMap& tensors, bool strict = true);

  /// The optimizer's state, on the host, the same for every exchange and number of devices.
  OptimizerState optimizer_state();
  /// Throws DataError when it is of another optimizer or network.
  void set_optimizer_state(const OptimizerState& state);

  /// The loss scale as the next step will have it; none without DataParallelOptions::loss_scale.
  std::optional<LossScaleState> loss_scale();
  /// REQUIRES: the run has one.
  void set_loss_scale(const LossScaleState& state);

  /// Ranks of all processes.
  int size() const;
  /// Which of them are this process's (sync/world.h).
  const RankLayout& rank_layout() const;
  const DataParallelOptions& options() const;
  const GradientExchangeChoice& gradient_exchange() const;
  /// Why training on other devices, or on another number of them, comes to other bits: a clause for
  /// messages, "BatchNorm is not synchronized (stem.bn)". Empty where it does not: on CPU devices,
  /// or on GPUs with `placement_invariant`, synchronized over all of them or image by image, one
  /// micro-batch, gradient exchange "owner", no parameter shared by several calls. Weights, running
  /// statistics, the optimizer's state, losses and norms are then functions of the global batches
  /// alone: on any number of devices and threads, in parts of any size. (On one machine:
  /// convolutions are chosen by measurement. A layer of one's own must add its parameters'
  /// gradients by StepContext::gradient_parts.)
  std::string placement_obstacle() const;
  /// Where the ranks meet: the counts of its callbacks, and where each rank is.
  const SyncGroup& sync_group() const;
  /// Learnable parameters, elements of all of them together.
  std::int64_t parameter_count() const;

  /// Fills in what every process says, [process], into memory that is used again; also while steps
  /// are under way. One process alone hears itself. All call it, in the same order.
  void all_gather(std::span<const std::byte> own, std::vector<Bytes>& all);

  /// Calls `work` for every replica of this process, all at the same time, each on its replica's
  /// thread. What it throws is final, as in a step.
  void for_each_replica(const std::function<void(Replica& replica)>& work);
  /// REQUIRES: between steps. Throws Error where the rank is not of this process.
  Replica& replica(int rank);
  /// Whether a replica's thread could not be stopped after a failure and has not come back: the
  /// replicas then stay in memory when this object goes.
  bool has_stuck_thread() const;

 private:
  void leave_stuck_threads();

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Whether any DataParallel of this process has left a thread behind after a failure. Objects may
/// go as ever, but the process must end by std::_Exit: the thread still runs, beside whatever
/// `exit` destroys. Safe from any thread.
bool threads_left_behind();

}  // namespace lockstep
