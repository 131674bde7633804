#pragma once
// The state of a DataParallel run, shared by the files that implement it: construction
// (data_parallel.cpp), the step (train_step.cpp), evaluation (evaluate.cpp), what is mirrored,
// saved and restored (state.cpp).

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "parallel/gradient_exchange.h"
#include "parallel/shard.h"

namespace lockstep {

/// What changes from step to step beside the batch. Operations read it from device memory, so that
/// a recorded step can be replayed.
struct StepScalars {
  double normalizer = 0;  // sum of class weights over the valid pixels of the global batch
  std::uint64_t dropout_seed = 0;
  float lr = 0;
};

/// What a step adds up in device memory; one copy brings all of it.
struct StepSums {
  double loss = 0;          // of the rank's own pixels
  double squared_norm = 0;  // of the gradient's elements that the rank updates
  double guard = 0;         // with a loss scale (GradientCheck)
  LossScaleState scale;     // stays from step to step
};

/// What a rank needs beside its replica. Used by the rank's thread.
struct RankState {
  Storage labels;  // uint8 [planned batch, H, W, 1]
  // The next batch on its way, ahead of its step; empty on the CPU, which gains nothing by it.
  Storage staged_images;  // [planned batch, H, W, 3]
  Storage staged_labels;
  Storage class_weight;  // [classes]; empty: all 1
  Storage sums;          // StepSums
  Storage scalars;       // StepScalars
  Storage confusion;     // int64 [classes, classes]
  Storage eval_labels;   // as labels, for the network of the last evaluated size
  Storage eval_images;   // fp32, on their way into it; empty where it takes them as they are
  std::unique_ptr<Readback> readback;  // of `sums`, kStepSlots times
  std::unique_ptr<GradientExchange> gradients;
  std::vector<const double*> guards;  // [rank], with a loss scale
  std::vector<std::int64_t> tracked;  // [BatchNorm state] batches that a recorded step counts
};

/// Steps that may be under way at the same time. Their outcomes lie in slots that are used in turn.
constexpr int kStepSlots = 2;

/// A step that has been begun.
struct StepUnderWay {
  std::int64_t step = 0;
  int slot = 0;
};

/// One rank's share of a step's outcome. Written by the rank, read by all after the barrier.
struct alignas(64) RankOutcome {
  StepSums sums;
  StepTimes times;
  double exchange_seconds = 0;  // of the rank's thread
};

/// How the ranks come to a step's work.
enum class StepMode : std::uint8_t {
  kIssue,   // operation by operation
  kRecord,  // operation by operation into a recording, which is then replayed
  kReplay,  // from the recording
};

/// A step's input, the same for all ranks.
struct StepInput {
  const Batch& batch;
  std::int64_t step = 0;
  StepScalars scalars = {};
  StepMode mode = StepMode::kIssue;
  int slot = 0;         // of the outcome
  bool staged = false;  // whether the batch has been staged
};

/// `count` images or their labels in device memory.
inline Tensor image_tensor(const Storage& memory, std::int64_t count, const Size& size) {
  return {memory.data(), Shape{count, size.height, size.width, 3}};
}
inline Tensor label_tensor(const Storage& memory, std::int64_t count, const Size& size) {
  return {memory.data(), Shape{count, size.height, size.width, 1}, DType::kUInt8};
}

struct EvalSums;

struct DataParallel::Impl {
  Impl(const DataParallelOptions& run_options, const NetworkFactory& network_factory);

  // Construction (data_parallel.cpp); the two methods with a rank run on that rank's thread.
  void build();
  void build_rank(int rank, int threads);
  std::unique_ptr<GradientExchange> make_gradients(int rank);
  void check_options() const;
  void check_recording() const;
  void check_precision() const;
  void check_loss_scale() const;

  // The step (train_step.cpp).
  void check_batch(const Batch& batch) const;
  double normalizer(const Batch& batch) const;
  StepMode next_mode(const Batch& batch);
  void begin_rank(int rank, const StepInput& input);
  void finish_rank(int rank, int slot);
  void wait_for(const StepUnderWay& step);
  void give_up_steps();
  void check_between_steps(const char* what) const;
  Shard scatter(int rank, const StepInput& input);
  bool stages(int rank) const { return options.devices[rank].kind == DeviceKind::kCuda; }
  void stage(int rank, const Batch& batch);
  void do_step(int rank, const StepInput& input, const Shard& shard);
  void issue_step(int rank, const StepInput& input, const Shard& shard);
  void record_step(int rank, const StepInput& input, const Shard& shard);
  void replay_step(int rank, const Shard& shard);
  StepContext context(int rank, const Shard& shard);
  void compute_loss(int rank, const Shard& shard);
  void check_gradients(int rank);
  void update_loss_scale(int rank);
  double read_loss(int rank);
  double gradient_norm(int slot) const;
  StepResult gather(const StepUnderWay& step);
  void judge_gradient(const StepUnderWay& step, StepResult& result);

  // Evaluation (evaluate.cpp).
  void evaluate_rank(int rank, std::int64_t count, const std::function<Batch(std::int64_t)>& load,
                     EvalSums& sums);
  void prepare_eval(int rank, const Batch& batch);
  double evaluate_batch(int rank, const Batch& batch);

  /// Addresses in device memory.
  const StepScalars& scalars(int rank) const {
    return *static_cast<const StepScalars*>(states[rank].scalars.data());
  }
  StepSums& step_sums(int rank) const { return *static_cast<StepSums*>(states[rank].sums.data()); }
  int ranks() const { return static_cast<int>(options.devices.size()); }
  /// All StepSums, what a step adds up there, and the loss scale.
  Tensor outcome_tensor(int rank) const {
    return bytes_tensor(states[rank].sums.data(), sizeof(StepSums));
  }
  Tensor sums_tensor(int rank) const {
    return bytes_tensor(states[rank].sums.data(), offsetof(StepSums, scale));
  }
  Tensor guard_tensor(int rank) const {
    return bytes_tensor(&step_sums(rank).guard, sizeof(double));
  }
  Tensor scale_tensor(int rank) const {
    return bytes_tensor(&step_sums(rank).scale, sizeof(LossScaleState));
  }
  static Tensor bytes_tensor(void* data, std::size_t bytes) {
    return {data, Shape{1, static_cast<std::int64_t>(bytes)}, DType::kUInt8};
  }
  Tensor confusion_tensor(int rank) const {
    const std::int64_t classes = options.num_classes;
    return {states[rank].confusion.data(), Shape{1, 2 * classes * classes}};
  }

  const DataParallelOptions options;
  const NetworkFactory factory;
  const GradientExchangeChoice exchange;
  std::unique_ptr<CommunicatorGroup> communicators;
  std::vector<Replica> replicas;                              // [rank]
  std::vector<RankState> states;                              // [rank]
  std::array<std::vector<RankOutcome>, kStepSlots> outcomes;  // [slot][rank]
  std::deque<StepUnderWay> under_way;                         // the oldest first
  int next_slot = 0;
  float scale_in_use = 1;                  // the loss scale of the next step to be finished
  std::vector<std::int64_t> staged;        // samples of the staged batch; empty: none
  StepMode full_batch = StepMode::kIssue;  // how the next full batch is done, with `cuda_graph`
  std::unique_ptr<ReplicaGroup> group;     // last: its threads use everything above
};

}  // namespace lockstep
