#pragma once
// All that one rank of a data-parallel run owns: its device's backend, the networks, its share of
// the optimizer and the memory of a step. Built and used on the rank's thread; read by others only
// between steps.

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/nn/model.h"
#include "nn/losses/loss_node.h"
#include "step/gradient_exchange.h"
#include "step/step.h"
#include "step/targets.h"

namespace lockstep {

/// Parameters, running statistics and counts of one replica, on the host.
struct ReplicaState {
  std::vector<float> values;
  std::vector<float> statistics;
  std::vector<std::int64_t> tracked;  // [layer] num_batches_tracked
};

/// What a batch comes to in an evaluation.
struct EvalOutcome {
  double loss = 0;         // sum over its valid positions, or over all elements
  std::int64_t terms = 0;  // of the sum
  std::int64_t top5 = 0;   // samples whose class is among the five likeliest
};

class Replica {
 public:
  /// Everything but the share of the optimizer. `options` and `group` outlive it.
  Replica(const DataParallelOptions& options, SyncGroup& group, int rank, int threads);
  /// Once all replicas of this process are there, which stay where they are. `world`: null for one
  /// process.
  void join(std::span<const std::unique_ptr<Replica>> replicas,
            const GradientExchangeChoice& exchange, WorldGradients* world);

  /// Among those of all processes.
  int rank() const { return rank_; }
  const Device& device() const { return layout_.devices[static_cast<std::size_t>(rank_)]; }
  Backend& backend() const { return *backend_; }
  ParameterStore& store() { return store_; }
  const ParameterStore& store() const { return store_; }
  /// Of training.
  Network& network() const { return *network_; }
  /// Of the evaluation done last. REQUIRES: there was one.
  Network& eval_network() const { return *eval_network_; }
  /// The losses' values are those of all outputs that have one, in the order of the options.
  std::span<const LossNode> losses() const { return losses_; }
  Targets& targets() const { return *targets_; }
  /// Where the losses of a step are added up, on this rank's device; with a loss scale the guard.
  void add_losses(std::vector<const double*>& losses) const;

  // --- a step: see DataParallel::begin_step ---
  /// Scatter, forward, losses, backward, gradient exchange, update. On a GPU it is only issued.
  void begin_step(const StepInput& input);
  /// Waits for the device, as nothing before it does.
  StepOutcome finish_step(int slot);
  /// Forgets what steps that left the weights alone have added up.
  void clear_sums();
  /// Whether batches go to the device ahead of their step.
  bool stages() const { return device().kind == DeviceKind::kCuda; }
  /// Brings this rank's of all parts of the next batch to the device.
  void stage(std::span<const BatchPart> parts);
  /// The training-mode forward pass alone, running statistics as they were.
  void forward(const BatchPart& part);

  // --- evaluation ---
  void begin_evaluation();
  EvalOutcome evaluate(const Batch& batch);
  /// The class of every row of the first loss's output, with the replica's own statistics: that of
  /// the largest logit, the first of equal ones.
  std::vector<std::int32_t> predict(const Batch& batch);
  /// Confusion matrix [classes, classes] since `begin_evaluation`; empty where the first loss has
  /// no labels.
  std::vector<std::int64_t> end_evaluation();

  // --- state, between steps ---
  ReplicaState read_state() const;
  void write_state(const ReplicaState& state);
  GradientExchange& gradients() const { return *gradients_; }
  LossScaleState loss_scale() const;
  void set_loss_scale(const LossScaleState& state);

 private:
  void join(WorldGradients& world, std::vector<const double*>& losses);
  void allocate_step_memory();
  void allocate_sums();
  void plan_gradients(const StepInput& input);
  void zero_gradients();
  /// This rank's.
  std::span<const BatchPart> own(std::span<const BatchPart> parts) const;
  void upload_scalars(const StepInput& input);
  /// All parameters, and all running statistics, as one row each.
  Tensor all_values() const;
  Tensor all_statistics() const;
  void scatter(const BatchPart& part, std::size_t micro, bool staged);
  void stage_part(const BatchPart& part, std::size_t micro);
  StepContext context(std::int64_t sample_offset) const;
  void do_step(const StepInput& input);
  void issue_step(const StepInput& input);
  void forward_backward(const BatchPart& part, std::size_t micro,
                        const Network::AfterLayer& after_layer);
  bool feeds_statistics(std::size_t micro) const;
  double all_reduce_seconds() const;
  void compute_losses();
  void exchange_gradients();
  void check_gradients();
  void update_loss_scale();
  void record_step(const StepInput& input);
  void replay_step(const StepInput& input);
  void prepare_evaluation(const Batch& batch);
  std::int64_t count_terms(const Batch& batch, const LossNode& loss, const Shape& target);

  /// Addresses in device memory.
  const StepScalars& scalars() const { return *static_cast<const StepScalars*>(scalars_.data()); }
  StepSums& sums() const { return *static_cast<StepSums*>(sums_.data()); }
  std::size_t apart_doubles() const { return image_losses_ + block_squares_; }
  double* image_losses(std::size_t loss) const;
  double* block_squares() const;
  Tensor outcome_tensor() const {
    return bytes_tensor(sums_.data(), sizeof(StepSums) + apart_doubles() * sizeof(double));
  }
  Tensor apart_tensor() const {
    return bytes_tensor(&sums() + 1, apart_doubles() * sizeof(double));
  }
  Tensor sums_tensor() const { return bytes_tensor(sums_.data(), offsetof(StepSums, scale)); }
  Tensor guard_tensor() const { return bytes_tensor(&sums().guard, sizeof(double)); }
  Tensor scale_tensor() const { return bytes_tensor(&sums().scale, sizeof(LossScaleState)); }
  static Tensor bytes_tensor(void* data, std::size_t bytes) {
    return {data, Shape{1, static_cast<std::int64_t>(bytes)}, DType::kUInt8};
  }
  Tensor staged_images(std::size_t micro, std::int64_t count) const;
  void download_logits(const Tensor& output);
  std::int64_t count_top5(const Batch& batch) const;
  Tensor confusion_tensor() const;

  const DataParallelOptions& options_;
  const RankLayout& layout_;
  Communicator& communicator_;
  AllReduce* const all_reduce_;  // null: gradients go another way
  Recorder* const recorder_;     // null: steps cannot be recorded
  const int rank_;
  std::unique_ptr<Backend> backend_;
  ParameterStore store_;
  std::unique_ptr<Network> network_;       // training
  std::unique_ptr<Network> eval_network_;  // of the last evaluated size; shares the store
  std::vector<LossNode> losses_;
  std::unique_ptr<WorldStaging> world_staging_;  // null: one process, or the host reads our memory
  std::unique_ptr<GradientExchange> gradients_;
  std::unique_ptr<Targets> targets_;
  // The next batch on its way, ahead of its step, micro-batch by micro-batch; empty on the CPU,
  // which gains nothing by it.
  Storage staged_images_;
  // Sums of single images and of blocks of the gradient; without Backend::sums_by_image none.
  std::size_t image_losses_ = 0;   // doubles
  std::size_t block_squares_ = 0;  // doubles
  Storage sums_;                   // StepSums, the image losses, the block squares
  GradientTree tree_;
  std::vector<GradientPart> gradient_parts_;  // of the present micro-batch
  Storage scalars_;                           // StepScalars
  std::unique_ptr<Readback> readback_;        // of `sums_`, kStepSlots times
  std::vector<std::int64_t> label_counts_;    // [class] of the image that is evaluated
  std::vector<float> logits_;                 // of the batch that is evaluated
  Storage confusion_;    // int64 [classes, classes]; empty where the first loss has no labels
  Storage eval_target_;  // of the first loss, for the network of the last evaluated size
  Storage eval_images_;  // fp32, on their way into it; empty where it takes them as they are
  Storage eval_logits_;  // fp32, on their way out; empty unless they are of whole samples
  std::vector<const double*> guards_;  // of all ranks, as for an update; with a loss scale
  std::vector<std::int64_t> tracked_;  // [BatchNorm state] batches that a recorded step counts
  std::array<StepTimes, kStepSlots> times_{};
  double exchange_seconds_ = 0;  // of this thread, in the present step
};

}  // namespace lockstep
