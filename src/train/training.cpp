#include "train/training.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "config/config_schema.h"
#include "lockstep/core/check.h"
#include "run/trained_model.h"
#include "train/first_convolution.h"
#include "train/replica_readings.h"

namespace lockstep {
namespace {

std::vector<NamedLoss> losses_of(const Config& config) {
  const auto loss_of_weight = [&](const LossOptions& options, float weight) {
    return std::visit(
        [&](auto loss) -> Loss {
          loss.weight = weight;
          loss.ignore_index = ignored_label(config.data);
          return loss;
        },
        options.loss);
  };
  std::vector<NamedLoss> losses;
  for (const LossOptions& loss : config.losses) {
    losses.push_back({"out", loss_of_weight(loss, loss.weight)});
  }
  for (const LossOptions& loss : config.losses) {
    if (!config.model.aux_head) break;
    losses.push_back({"aux", loss_of_weight(loss, loss.weight * loss.aux_weight)});
  }
  return losses;
}

}  // namespace

std::string with_section(const std::string& text) {
  const std::string option = text.substr(0, text.find_first_of(" :"));
  const std::string_view rest = std::string_view(text).substr(option.size());
  if (!rest.starts_with(" = ") && !rest.starts_with(": ")) return text;
  const std::vector<ConfigKey>& keys = config_keys();
  const auto found =
      std::ranges::find(keys, option, [](const auto& key) { return name_of(key.path); });
  return found == keys.end() ? text : concat(section_of(found->path), ".", text);
}

void begin_computing(const Config& config, const std::vector<Device>& devices) {
  if (!config.run.portable) return;
  for (const Device& device : devices) {
    if (device.kind == DeviceKind::kCpu) continue;
    throw ConfigError(concat("run.portable = true is for CPU devices, got ", to_string(device),
                             "; choose -d cpu:N, or leave run.portable out"));
  }
  use_cpu_kernels("portable");
}

Config with_steps(Config config, std::int64_t steps) {
  const double share = config.bn.renorm_warmup_share;
  config.bn.renorm_warmup = std::llround(share * static_cast<double>(steps));
  return config;
}

Config without_demands(Config config) {
  config.run.transport = TransportKind::kAuto;
  config.run.gradient_exchange = GradientExchangeKind::kAuto;
  config.run.cuda_graph = config.run.placement_invariant = false;
  return config;
}

Size small_image(const Config& config) {
  const int divisor = config.size_divisor();
  const int least = config.bn.statistics() == StatisticsOf::kImage ? 64 : 2;
  const int side = divisor * std::max(2, least / divisor);
  return {side, side};
}

LoaderOptions loader_options(const Config& config, std::int64_t batch) {
  return {.batch = batch,
          .drop_last = config.batch.drop_last,
          .seed = config.run.seed,
          .divisor = config.size_divisor()};
}

DataParallelOptions replica_options(const Config& config, const std::vector<Device>& devices,
                                    std::int64_t global_batch, const Size& size, World& world) {
  DataParallelOptions options;
  options.devices = devices;
  options.model = config.architecture().model;
  options.norm = NormLayer(config.bn);
  if (config.bn.synchronizes() && config.bn.sync_group > 0) {
    options.norm.options.process_groups =
        contiguous_groups(make_rank_layout(world, devices).ranks(), config.bn.sync_group);
  }
  options.input = {global_batch, size.height, size.width, config.data.channels};
  options.losses = losses_of(config);
  options.optimizer = config.optim.optimizer;
  options.parameter_groups = config.parameter_groups();
  options.gradient_clipping = config.optim.clipping;
  options.average_decay = config.ema.decay;
  options.averages_statistics = config.ema.statistics == EmaStatistics::kAverage;
  options.accumulate = config.batch.accumulate;
  options.accumulated_statistics = config.bn.accumulated;
  options.recompute = config.memory.recompute;
  options.offload = config.memory.offload;
  options.seed = config.run.seed;
  options.precision = config.run.precision;
  if (config.run.precision == DType::kFloat16) {
    options.loss_scale = LossScaleOptions{.initial = static_cast<float>(config.run.loss_scale)};
  }
  options.backend.tf32 = config.run.tf32;
  options.communicator.transport = config.run.transport;
  options.cuda_graph = config.run.cuda_graph;
  options.gradient_exchange.kind = config.run.gradient_exchange;
  options.placement_invariant = config.run.placement_invariant;
  options.communicator.stall_timeout =
      std::chrono::milliseconds(std::llround(config.run.stall_timeout * 1e3));
  options.communicator.world = world;
  return options;
}

std::unique_ptr<DataParallel> make_replicas(const Config& config,
                                            const std::vector<Device>& devices,
                                            std::int64_t global_batch, const Size& size,
                                            const FaultHook& hook, World& world) {
  begin_computing(config, devices);
  return by_keys([&] {
    DataParallelOptions options = replica_options(config, devices, global_batch, size, world);
    options.communicator.hook = hook;
    return std::make_unique<DataParallel>(std::move(options));
  });
}

ImportSummary import_weights(DataParallel& replicas, const std::filesystem::path& file,
                             const Config& config, std::vector<std::string>* notes) {
  TensorMap tensors = select_prefix(read_weights(file).tensors, config.model.weights_prefix);
  std::vector<std::string> spread =
      spread_first_convolution(config.data.channels, replicas.state_dict(), tensors);
  if (notes != nullptr) *notes = std::move(spread);
  const ImportSummary summary =
      load_from(file, [&] { return replicas.load_state_dict(tensors, false); });
  if (summary.loaded > 0) return summary;
  throw DataError(
      concat(file.string(), ": no tensor of it fits this network; ", describe_import(summary)));
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
    const bool groups = bn.statistics() == StatisticsOf::kDevices;
    throw ConfigError(concat(counts, ": with bn.mode = \"", to_string(bn.mode), "\" every ",
                             groups ? "sync group" : "device",
                             " has statistics of its own; use -d ", state.devices));
  }
  if (const std::string obstacle = replicas.placement_obstacle(); !obstacle.empty()) {
    warnings.push_back(concat(counts, ": rounding differs from now on, the run is not the same ",
                              "bit for bit, because ", obstacle));
  }
  write_running_statistics(replicas,
                           std::vector<ReplicaStatistics>(devices, state.replicas.front()));
}

}  // namespace lockstep
