#include "train/training.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// Each group may be without parameters, because models call their last layers differently; all of
// them may not.
void check_groups(DataParallel& replicas) {
  const DataParallelOptions& options = replicas.options();
  if (options.parameter_groups.empty()) return;
  const TensorMap weights = replicas.state_dict();
  const bool found = std::any_of(weights.begin(), weights.end(), [&](const auto& named) {
    return std::any_of(
        options.parameter_groups.begin(), options.parameter_groups.end(),
        [&](const ParameterGroup& group) { return named.first.starts_with(group.prefix + "."); });
  });
  if (found) return;
  throw ConfigError(
      "optim.head_lr_mult is not 1, but the model has no parameter under head, classifier or "
      "aux_classifier; leave it out");
}

}  // namespace

std::unique_ptr<DataParallel> make_replicas(const Config& config,
                                            const std::vector<Device>& devices,
                                            std::int64_t global_batch, const Size& size,
                                            const FaultHook& hook) {
  DataParallelOptions options;
  options.devices = devices;
  options.model = config.architecture().model;
  options.norm = NormLayer(config.bn);
  options.input = {global_batch, size.height, size.width, 3};
  options.losses = {{"out", CrossEntropyLoss{.class_weight = config.loss.class_weight,
                                             .ignore_index = config.data.ignore_index}}};
  options.optimizer = config.optim.optimizer();
  options.parameter_groups = config.optim.parameter_groups();
  options.accumulate = config.batch.accumulate;
  options.seed = config.run.seed;
  options.activations = config.run.precision;
  if (config.run.precision == DType::kFloat16) {
    options.loss_scale = LossScaleOptions{.initial = static_cast<float>(config.run.loss_scale)};
  }
  options.backend.tf32 = config.run.tf32;
  options.communicator.transport = config.run.transport;
  options.cuda_graph = config.run.cuda_graph;
  options.gradient_exchange.kind = config.run.gradient_exchange;
  options.communicator.stall_timeout =
      std::chrono::milliseconds(std::llround(config.run.stall_timeout * 1e3));
  options.communicator.hook = hook;
  auto replicas = std::make_unique<DataParallel>(std::move(options));
  check_groups(*replicas);
  return replicas;
}

Checkpoint read_checkpoint(DataParallel& replicas) {
  Checkpoint checkpoint;
  checkpoint.weights = replicas.state_dict();
  checkpoint.state.optimizer = replicas.optimizer_state();
  checkpoint.state.loss_scale = replicas.loss_scale();
  checkpoint.state.replicas = read_running_statistics(replicas);
  return checkpoint;
}

void restore_checkpoint(DataParallel& replicas, const Checkpoint& checkpoint,
                        const BatchNormConfig& bn, std::vector<std::string>& warnings) {
  replicas.load_state_dict(checkpoint.weights);
  const TrainingState& state = checkpoint.state;
  replicas.set_optimizer_state(state.optimizer);
  if (state.loss_scale && replicas.options().loss_scale) replicas.set_loss_scale(*state.loss_scale);
  const auto devices = static_cast<std::size_t>(replicas.size());
  if (state.replicas.size() == devices) {
    write_running_statistics(replicas, state.replicas);
    return;
  }
  const std::string counts = concat("the checkpoint is of ", state.replicas.size(), " devices (",
                                    state.devices, "), this run has ", devices);
  if (!bn.shares_statistics() || state.replicas.empty()) {
    const bool groups = bn.mode == BatchNormMode::kSync;
    throw ConfigError(concat(counts, ": with bn.mode = \"", to_string(bn.mode), "\" every ",
                             groups ? "sync group" : "device",
                             " has statistics of its own; use -d ", state.devices));
  }
  warnings.push_back(counts +
                     ": rounding differs from now on, the run is not the same bit for bit");
  write_running_statistics(replicas,
                           std::vector<ReplicaStatistics>(devices, state.replicas.front()));
}

}  // namespace lockstep
