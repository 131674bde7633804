#include "lockstep/train/training.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/check.h"
#include "lockstep/nn/models/unet.h"

namespace lockstep {

std::unique_ptr<DataParallel> make_replicas(const Config& config,
                                            const std::vector<Device>& devices,
                                            std::int64_t global_batch, const Size& size,
                                            const FaultHook& hook) {
  DataParallelOptions options;
  options.devices = devices;
  options.bn = config.bn;
  options.sgd = config.optim;
  options.class_weight = config.loss.class_weight;
  options.num_classes = config.data.num_classes;
  options.ignore_index = config.data.ignore_index;
  options.global_batch = global_batch;
  options.size = size;
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
  return std::make_unique<DataParallel>(
      options, [model = config.model, bn = config.bn](const Shape& input, const PlanOptions& plan,
                                                      Backend& backend, ParameterStore& store) {
        return make_unet(model, bn, input, plan, backend, store);
      });
}

TensorMap read_weights(DataParallel& replicas) {
  TensorMap weights;
  replicas.group().run([&](int rank) {
    if (rank != 0) return;
    Replica& replica = replicas.replica(0);
    weights = export_weights(replica.store, *replica.backend);
  });
  return weights;
}

ImportSummary load_into_replicas(DataParallel& replicas, const TensorMap& weights, bool strict) {
  ImportSummary summary;
  replicas.group().run([&](int rank) {
    if (rank != 0) return;
    Replica& replica = replicas.replica(0);
    summary = import_weights(weights, replica.store, *replica.backend, strict);
  });
  replicas.replicate();
  return summary;
}

Checkpoint read_checkpoint(DataParallel& replicas) {
  Checkpoint checkpoint;
  checkpoint.weights = read_weights(replicas);
  checkpoint.state.velocity = replicas.velocity();
  checkpoint.state.loss_scale = replicas.loss_scale();
  checkpoint.state.replicas = read_running_statistics(replicas);
  return checkpoint;
}

void restore_checkpoint(DataParallel& replicas, const Checkpoint& checkpoint, BatchNormMode mode,
                        std::vector<std::string>& warnings) {
  load_into_replicas(replicas, checkpoint.weights, true);
  const TrainingState& state = checkpoint.state;
  const auto expected = replicas.velocity().size();
  if (state.velocity.size() != expected) {
    throw DataError(concat("the checkpoint's momentum has ", state.velocity.size(),
                           " values, this network needs ", expected));
  }
  replicas.set_velocity(state.velocity);
  if (state.loss_scale && replicas.options().loss_scale) replicas.set_loss_scale(*state.loss_scale);
  const auto devices = static_cast<std::size_t>(replicas.size());
  if (state.replicas.size() == devices) {
    write_running_statistics(replicas, state.replicas);
    return;
  }
  const std::string counts = concat("the checkpoint is of ", state.replicas.size(), " devices (",
                                    state.devices, "), this run has ", devices);
  if (mode != BatchNormMode::kSync || state.replicas.empty()) {
    throw ConfigError(concat(counts, ": with bn.mode = \"", to_string(mode),
                             "\" every device has statistics of its own; use -d ", state.devices));
  }
  warnings.push_back(counts +
                     ": rounding differs from now on, the run is not the same bit for bit");
  write_running_statistics(replicas,
                           std::vector<ReplicaStatistics>(devices, state.replicas.front()));
}

std::int64_t parameter_count(DataParallel& replicas) {
  std::int64_t count = 0;
  for (const auto& parameter : replicas.replica(0).store.parameters()) count += parameter->elements;
  return count;
}

}  // namespace lockstep
