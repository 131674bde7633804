#pragma once
// What a DataParallel is told, what its steps give back, and a replica as callbacks see it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/data/windows.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/model.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/sync/sync_group.h"

namespace lockstep {

/// Returns the sizes of torch.chunk(batch, parts): ceil(batch / parts) each until the batch is used
/// up, then 0. 5 over 4 is 2, 2, 1, 0.
std::vector<std::int64_t> chunk_sizes(std::int64_t batch, int parts);

/// Returns how many host threads each of `replicas` uses for its own operations: its share of
/// host_threads(), at least 1.
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

/// What a replica is made of, as a callback sees it.
struct ReplicaContext {
  int rank = 0, size = 1;
  Device device;
  Backend& backend;
  ParameterStore& store;
  Network& network;  // the one that trains
};

/// The gradient of the global loss with respect to one parameter, summed over all devices.
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
  /// In [0, 1). Unless it is 0 there is an exponential moving average a beside the weights w
  /// (Polyak and Juditsky 1992): a = decay*a + (1-decay)*w after each update, and a = w after the
  /// first one, of step 0. It is spread over the devices and saved as the optimizer's state is; a
  /// state without it makes it start over from the weights.
  double average_decay = 0;
  /// Whether the average has running statistics that are averaged as the weights are, rank 0's,
  /// which are the model's; else it has those of the weights.
  bool averages_statistics = false;
  /// Micro-batches per step, one after another through the network: their gradients are added up
  /// and belong to the global loss of the whole batch; BatchNorm's statistics are of a micro-batch.
  /// With MicroBatches::kTogether they go through the layers between two BatchNorms one after
  /// another and meet there: results are those of accumulate = 1, to the bit where the backend sums
  /// by image, in less memory and more time (PlanOptions::tile). What is cut then is a device's
  /// shard.
  int accumulate = 1;
  MicroBatches accumulated_statistics = MicroBatches::kEvery;
  /// Computes normalised values and activations again in the backward pass, and does not keep them
  /// (PlanOptions::recompute): less memory, more time, the same bits.
  bool recompute = false;
  /// Lets what the backward pass needs wait in pinned memory of the host meanwhile
  /// (PlanOptions::offload): less memory of the GPU, the same bits. Not with CPU devices, whose
  /// memory is the host's.
  bool offload = false;
  std::uint64_t seed = 0;  // of initial weights and dropout
  /// Of activations and their gradients, in training and in evaluation. fp16 needs GPUs; on CPU
  /// devices bf16 is how they lie in memory, and what is computed of them is fp32.
  DType precision = DType::kFloat32;
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

/// What one rank owns. It is used on the rank's thread (DataParallel::for_each_replica), and read
/// by others only between steps.
class Replica {
 public:
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// The rank's number among those of all processes.
  int rank() const { return rank_; }
  const Device& device() const { return backend_->device(); }
  Backend& backend() const { return *backend_; }
  ParameterStore& store() { return store_; }
  const ParameterStore& store() const { return store_; }
  /// The network that trains.
  Network& network() const { return *network_; }

 protected:
  explicit Replica(int rank) : rank_(rank) {}
  ~Replica() = default;

  const int rank_;
  std::unique_ptr<Backend> backend_;
  ParameterStore store_;
  std::unique_ptr<Network> network_;
};

/// How long a step took, in seconds of a rank's thread. On GPUs streams do the waiting, so all of
/// it counts as `compute`; what a GPU does while the host prepares the next batch takes no thread's
/// time.
struct StepTimes {
  double compute = 0;            // forward and backward, without waiting
  double batch_norm_wait = 0;    // for other replicas in exchanges of BatchNorm and losses
  double gradient_exchange = 0;  // waiting for gradients, sum, update and write-back
};

/// What one rank did in a step.
struct RankStep {
  double loss = 0;  // of its shard: the ranks' losses add up to the step's
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

/// How an evaluation looks at images.
struct EvaluationOptions {
  EvalNormalizer by = EvalNormalizer::kRunning;
  /// Of images that are labelled pixel by pixel. Their loss is then the mean of -log of the labels'
  /// probabilities.
  WindowOptions windows = {};
};

}  // namespace lockstep
