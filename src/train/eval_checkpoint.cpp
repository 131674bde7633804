#include <algorithm>

#include "lockstep/core/check.h"
#include "train/evaluator.h"
#include "train/run_folder.h"
#include "train/training.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

fs::path checkpoint_of(const fs::path& target) {
  if (!fs::exists(target))
    throw DataError(concat(target.string(), ": there is no such run or checkpoint"));
  if (!fs::is_directory(target)) return target;
  const fs::path last = RunFolder{target}.checkpoint("last");
  if (!fs::exists(last)) {
    throw DataError(
        concat(target.string(), ": holds no checkpoint (", last.string(), " is missing)"));
  }
  return last;
}

fs::path config_of(const EvalRequest& request, const fs::path& checkpoint) {
  if (!request.config.empty()) return request.config;
  const fs::path config = RunFolder{fs::absolute(checkpoint).parent_path().parent_path()}.config();
  if (!fs::exists(config)) {
    throw ConfigError(
        concat(checkpoint.string(), ": no config.toml of a run beside it; name one with --config"));
  }
  return config;
}

// Statistics of every device the checkpoint knows, so that mean and pooled mean the same as in
// training.
std::vector<ReplicaStatistics> saved_statistics(const fs::path& checkpoint, EvalStats stats,
                                                std::vector<std::string>& warnings) {
  if (!fs::exists(state_path(checkpoint))) {
    if (stats == EvalStats::kMean || stats == EvalStats::kPooled) {
      warnings.push_back(concat(checkpoint.string(),
                                ": no training state beside it, so only one device's "
                                "statistics are known: eval_stats ",
                                to_string(stats), " is device0 here"));
    }
    return {};
  }
  return load_checkpoint(checkpoint).state.replicas;
}

// Merges what the checkpoint's devices have, whatever the number of devices here.
void use_saved_statistics(DataParallel& replicas, const std::vector<ReplicaStatistics>& saved,
                          EvalStats stats) {
  if (saved.empty() || saved.front().empty()) return;
  const bool merge = stats == EvalStats::kMean || stats == EvalStats::kPooled;
  const ReplicaStatistics used =
      merge ? merge_running_statistics(saved, stats == EvalStats::kPooled) : saved.front();
  write_running_statistics(
      replicas, std::vector<ReplicaStatistics>(static_cast<std::size_t>(replicas.size()), used));
}

// Precise statistics need training batches; otherwise the smallest training plan will do.
std::unique_ptr<DataParallel> replicas_for(const Config& config,
                                           const std::vector<Device>& devices) {
  const int count = static_cast<int>(devices.size());
  if (config.bn.eval_stats != EvalStats::kPrecise) {
    const int side = static_cast<int>(config.architecture().size_divisor) * 2;
    return make_replicas(config, devices, count, {side, side}, nullptr);
  }
  const TrainLoader loader(config.data, {.batch = config.global_batch(count),
                                         .drop_last = config.batch.drop_last,
                                         .seed = config.run.seed});
  return make_replicas(config, devices, config.global_batch(count), loader.size(), nullptr);
}

std::int64_t iteration_of(const SafetensorsFile& weights) {
  const auto found = weights.metadata.find("lockstep.iteration");
  return found == weights.metadata.end() ? -1 : std::stoll(found->second);
}

}  // namespace

EvalReport evaluate_checkpoint(const EvalRequest& request) {
  EvalReport report;
  report.checkpoint = checkpoint_of(request.target);
  const Config config = load_config(config_of(request, report.checkpoint), request.overrides,
                                    &report.warnings, *request.tables);
  report.devices = request.devices.empty() ? default_devices() : request.devices;
  const std::vector<Device> devices = parse_devices(report.devices);
  const EvalStats stats = config.bn.eval_stats;
  const SafetensorsFile weights = read_weights(report.checkpoint);
  const auto saved = saved_statistics(report.checkpoint, stats, report.warnings);

  const std::unique_ptr<DataParallel> replicas = replicas_for(config, devices);
  replicas->load_state_dict(weights.tensors);
  use_saved_statistics(*replicas, saved, stats);
  const bool merged = stats == EvalStats::kMean || stats == EvalStats::kPooled;
  report.iteration = iteration_of(weights);
  report.classes = class_names(config.data);
  report.evaluation = Evaluator(config, *replicas).evaluate(merged ? EvalStats::kDevice0 : stats);
  report.evaluation.eval_stats = stats;
  return report;
}

}  // namespace lockstep
