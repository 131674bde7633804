#pragma once
// The state of a DataParallel run, shared by the files that implement it: construction
// (data_parallel.cpp), the step (train_step.cpp), evaluation (evaluate.cpp), what is mirrored,
// saved and restored (state.cpp).

#include <memory>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "parallel/gradient_exchange.h"
#include "parallel/shard.h"

namespace lockstep {

/// What a rank needs beside its replica. Used by the rank's thread.
struct RankState {
  Storage labels;        // uint8 [planned batch, H, W, 1]
  Storage class_weight;  // [classes]; empty: all 1
  Storage loss;          // one double
  Storage confusion;     // int64 [classes, classes]
  Storage images;  // fp32, on their way into the network; empty where it takes them as they are
  Storage eval_labels;  // as labels, for the network of the last evaluated size
  Storage eval_images;  // as images, likewise
  std::unique_ptr<GradientExchange> gradients;
};

/// One rank's share of a step's outcome. Written by the rank, read by all after the barrier.
struct alignas(64) RankOutcome {
  double loss = 0;
  StepTimes times;
};

/// A step's input, the same for all ranks.
struct StepInput {
  const Batch& batch;
  std::int64_t step = 0;
  float lr = 0;
  double normalizer = 0;  // sum of class weights over the valid pixels of the global batch
  std::uint64_t dropout_seed = 0;
};

struct EvalSums;

struct DataParallel::Impl {
  Impl(const DataParallelOptions& run_options, const NetworkFactory& network_factory);

  // Construction (data_parallel.cpp); the two methods with a rank run on that rank's thread.
  void build();
  void build_rank(int rank, int threads);
  void check_options() const;
  void check_precision() const;

  // The step (train_step.cpp).
  void check_batch(const Batch& batch) const;
  double normalizer(const Batch& batch) const;
  void train_rank(int rank, const StepInput& input);
  StepContext context(int rank, const StepInput& input, const Shard& shard);
  Shard scatter(int rank, const Batch& batch);
  void compute_loss(int rank, const StepInput& input, const Shard& shard);
  double read_loss(int rank);
  void update(int rank, float lr);
  StepResult gather(std::int64_t step) const;

  // Evaluation (evaluate.cpp).
  void evaluate_rank(int rank, std::int64_t count, const std::function<Batch(std::int64_t)>& load,
                     EvalSums& sums);
  void prepare_eval(int rank, const Batch& batch);
  double evaluate_batch(int rank, const Batch& batch);

  int ranks() const { return static_cast<int>(options.devices.size()); }
  Tensor loss_tensor(int rank) const { return {states[rank].loss.data(), Shape{1, 2}}; }
  Tensor confusion_tensor(int rank) const {
    const std::int64_t classes = options.num_classes;
    return {states[rank].confusion.data(), Shape{1, 2 * classes * classes}};
  }

  const DataParallelOptions options;
  const NetworkFactory factory;
  std::unique_ptr<CommunicatorGroup> communicators;
  std::vector<Replica> replicas;        // [rank]
  std::vector<RankState> states;        // [rank]
  std::vector<RankOutcome> outcomes;    // [rank]
  std::unique_ptr<ReplicaGroup> group;  // last: its threads use everything above
};

}  // namespace lockstep
