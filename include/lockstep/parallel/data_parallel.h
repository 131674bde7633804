#pragma once
// DataParallel: replicate, scatter, parallel_apply, gather. One replica per device of a process, or
// of all processes of a world, built from the same model and equal in parameters at every step.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/io/weights.h"
#include "lockstep/parallel/options.h"

namespace lockstep {

/// Used by one thread at a time: a call while another thread is in one throws Error and does
/// nothing. May be moved; a moved-from object may only go or be assigned to.
///
/// A call that throws because of its arguments leaves everything as it was, and the next call may
/// be right: options, batches, learning rates and weights that do not fit, and what `load` throws
/// in an evaluation. What fails inside a step is final: every later call throws it again. In a run
/// of several processes what `load` throws is final, too, and so are weights that do not fit.
///
/// The object is this process's end of one that spans all processes of the world
/// (SyncGroupOptions::world). Every process makes the same calls with the same batches, weights and
/// states, of which process 0's count, and has the same results; state_dict gives the first rank's.
/// Ranks are numbered through all processes.
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
  /// planned, or where a label is none of the classes and the batch has not counted them itself
  /// (class_pixels); ConfigError where `lr` is negative or not finite or `step` is negative. Throws
  /// the first failure of any replica, named by rank and device (ReplicaError; ConfigError,
  /// DataError and NonFiniteError keep their type); after a failure every call throws it again.
  ///
  /// NonFiniteError names the first replica whose share of the loss is not finite: all ranks then
  /// leave parameters and the optimizer's state untouched, have the running statistics and
  /// num_batches_tracked that they had before the step, and go on working. It is thrown, too, when
  /// the loss is finite and the gradient is not: parameters and state have then taken it, and are
  /// of no use. With a loss scale such a step is left out instead (StepResult::skipped), unless the
  /// scale is down at 1.
  ///
  /// `step`: its number in the run, from 0, which AdamW's bias correction and dropout go by.
  StepResult train_step(const Batch& batch, std::int64_t step, float lr);
  /// The same with the optimizer's own learning rate.
  StepResult train_step(const Batch& batch, std::int64_t step);
  /// The same with a batch for each device, [rank], as it is (self-parallel). Together they are the
  /// global batch.
  StepResult train_step(std::span<const Batch> batches, std::int64_t step, float lr);

  /// The same in several calls, so that the host can prepare the next batch while GPUs work on this
  /// one: begin_step, stage_next (or not), finish_step. A batch may be given up when the call that
  /// got it has returned. After `stage_next` the next step takes that batch.
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
  /// Returns 1 on GPUs, and 0 where a step is done when begin_step() returns.
  int steps_ahead() const;

  /// Does the training-mode forward pass alone: it computes no loss, updates nothing, and leaves
  /// the running statistics as they were. Throws Error where the batch has more samples than a
  /// micro-batch.
  void forward(const Batch& batch);

  /// What an evaluation has counted. Every sample counts once.
  struct EvalResult {
    /// [classes, classes] (row: label) of the first loss's output; empty where that loss takes no
    /// labels.
    std::vector<std::int64_t> confusion;
    /// The mean of that loss over all valid pixels, over all elements, or over all samples (dice),
    /// without weights.
    double loss = 0;
    /// Where the output is [N, classes]: the samples whose class is among the five largest logits.
    std::int64_t top5 = 0;
    /// How far windows contradict each other.
    TileMismatch mismatch = {};
  };
  /// Evaluates `count` batches that `load(index)` gives, spread over the ranks. `load` is called on
  /// the ranks' threads. The result does not depend on the number of ranks, if their running
  /// statistics are equal, as `replicate` makes them: every replica uses its own. To normalise by
  /// anything else takes memory for networks of its own. Throws Error where `count` is negative or
  /// `load` is null, and what `load` throws, named by rank and device, when all ranks have left
  /// their batches; a rank that has not within a second ends the run.
  EvalResult evaluate(std::int64_t count, const std::function<Batch(std::int64_t index)>& load,
                      const EvaluationOptions& options = {});

  /// Copies rank 0's parameters and BatchNorm states (and nothing else) to the other ranks.
  void replicate();

  /// Freezes BatchNorm for the rest of the training (Wu and Johnson 2021, section 3): from the next
  /// step on all ranks normalise by rank 0's running statistics, which stay as they are, and
  /// exchange none. Layers without running statistics go on as they were. REQUIRES: between steps.
  /// Throws ConfigError with `cuda_graph`.
  void freeze_statistics();

  /// Returns rank 0's parameters and running statistics under PyTorch's names.
  TensorMap state_dict();
  /// The same with the average of the weights in place of them, and of the running statistics where
  /// DataParallelOptions::averages_statistics says so. REQUIRES:
  /// DataParallelOptions::average_decay.
  TensorMap averaged_state_dict();
  /// Gives the tensors to all ranks. `strict`: throws DataError when anything is skipped, missing
  /// or unexpected (nn/parameter_store.h), before anything is copied.
  ImportSummary load_state_dict(const TensorMap& tensors, bool strict = true);

  /// Returns the optimizer's state, on the host: the same for every exchange and number of devices.
  OptimizerState optimizer_state();
  /// Throws DataError when the state is of another optimizer or network.
  void set_optimizer_state(const OptimizerState& state);

  /// Returns the loss scale of the next step; none without DataParallelOptions::loss_scale.
  std::optional<LossScaleState> loss_scale();
  /// REQUIRES: the run has one.
  void set_loss_scale(const LossScaleState& state);

  /// How many ranks all processes have.
  int size() const;
  /// Which of them are this process's (sync/world.h).
  const RankLayout& rank_layout() const;
  const DataParallelOptions& options() const;
  const GradientExchangeChoice& gradient_exchange() const;
  /// Says why training on other devices, or on another number of them, comes to other bits: a
  /// clause for messages, "BatchNorm is not synchronized (stem.bn)". It is empty where they do not:
  /// on CPU devices, or on GPUs with `placement_invariant`, synchronized over all of them or image
  /// by image, with one micro-batch, gradient exchange "owner", and no parameter that several calls
  /// share. Weights, running statistics, the optimizer's state, losses and norms are then functions
  /// of the global batches alone, on any number of devices and threads, in shards of any size. This
  /// holds on one machine, since convolutions are chosen by measurement, and if a layer of one's
  /// own adds its parameters' gradients by StepContext::gradient_parts.
  std::string placement_obstacle() const;
  /// Where the ranks meet: the counts of its callbacks, and where each rank is.
  const SyncGroup& sync_group() const;
  /// How many elements all learnable parameters have together.
  std::int64_t parameter_count() const;

  /// Fills `all` [process] with what every process says; its memory is used again. All processes
  /// call it, in the same order, also while steps are under way. One alone hears itself.
  void all_gather(std::span<const std::byte> own, std::vector<Bytes>& all);

  /// Calls `work` for every replica of this process, all at the same time, each on its replica's
  /// thread. What it throws is final, as in a step.
  void for_each_replica(const std::function<void(Replica& replica)>& work);
  /// REQUIRES: between steps. Throws Error where the rank is not of this process.
  Replica& replica(int rank);
  /// The same of the first rank of this process.
  Replica& own_replica();
  /// Whether a replica's thread could not be stopped after a failure and has not come back: the
  /// replicas then stay in memory when this object goes. So must what the call that failed was
  /// given to read, a batch, weights or a state.
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
