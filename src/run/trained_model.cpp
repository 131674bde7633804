#include "run/trained_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <ranges>
#include <string_view>

#include "backend/cpu_kernels.h"
#include "core/json.h"
#include "core/words.h"
#include "data/normalize.h"
#include "io/weight_files.h"
#include "lockstep/core/check.h"
#include "nn/norms/group_norm_layer.h"
#include "run/checkpoint.h"
#include "run/run_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
bool merges(EvalStats stats) { return stats == EvalStats::kMean || stats == EvalStats::kPooled; }

Shape input_of(const Architecture& architecture, const Size& size, int channels) {
  if (size.height > 0) return {1, size.height, size.width, channels};
  constexpr std::int64_t kLeast = 64;
  const std::int64_t divisor = architecture.size_divisor;
  const std::int64_t side = (kLeast + divisor - 1) / divisor * divisor;
  return {1, side, side, channels};
}

std::vector<std::string> layers_by_image(const NetworkBuilder& net, const Outputs& outputs) {
  std::vector<const Value*> values;
  for (const Output& output : outputs) values.push_back(output.value);
  std::vector<std::string> names;
  for (const Layer* layer : net.layers_to(values)) {
    if (dynamic_cast<const GroupNormLayer*>(layer) != nullptr) names.push_back(layer->name());
  }
  return names;
}

// Weights are read into the model and out again, so that they are of its names, shapes and types,
// wherever they came from.
ImportSummary read_weights_of(TrainedModel& model, const Size& size, const TensorMap& file) {
  const auto backend = make_backend(Device{}, 1);
  const NormLayer norm(model.config.bn);
  ParameterStore store;
  NetworkBuilder net(*backend, store, norm);
  const Outputs outputs = model.architecture.model(
      net, net.input(input_of(model.architecture, size, model.config.data.channels)), norm);
  store.allocate(*backend);
  ImportSummary summary = load_state_dict(file, store, *backend, true);
  model.weights = state_dict(store, *backend);
  if (model.config.bn.eval_stats == EvalStats::kOwn) {
    model.layers_by_image = layers_by_image(net, outputs);
  }
  return summary;
}

void put(TensorMap& weights, const std::string& name, const void* values) {
  HostTensor& tensor = weights.at(name);
  std::memcpy(tensor.data.data(), values, tensor.data.size());
}

void put_statistics(const ReplicaStatistics& statistics, TensorMap& weights) {
  for (const BatchNormStatistics& layer : statistics) {
    if (!weights.contains(layer.layer + ".running_mean")) continue;  // a later slice's
    put(weights, layer.layer + ".running_mean", layer.mean.data());
    put(weights, layer.layer + ".running_var", layer.var.data());
    put(weights, layer.layer + ".num_batches_tracked", &layer.num_batches_tracked);
  }
}

/// Of a parameter or a statistic, which are fp32; counts of batches have none.
std::size_t count_not_finite(const HostTensor& tensor) {
  if (tensor.dtype != "F32") return 0;
  const auto* values = reinterpret_cast<const float*>(tensor.data.data());
  return static_cast<std::size_t>(std::count_if(values, values + tensor.data.size() / sizeof(float),
                                                [](float value) { return !std::isfinite(value); }));
}

void check_statistics_are_there(EvalStats stats) {
  if (stats != EvalStats::kPrecise && stats != EvalStats::kBatch) return;
  const char* whose = stats == EvalStats::kPrecise ? "training" : "all evaluated";
  throw ConfigError(concat("bn.eval_stats = \"", to_string(stats), "\" takes statistics of ", whose,
                           " images, which weights alone do not have; choose those of the ",
                           "checkpoint with -s bn.eval_stats=device0, mean or pooled, or each "
                           "image's with -s bn.eval_stats=own"));
}

/// In JSON. One number is for all of them.
std::string for_each_channel(std::vector<float> values, int channels) {
  if (values.size() == 1) values.resize(static_cast<std::size_t>(channels), values.front());
  return Json(values).dump();
}

Metadata about(const Config& config, const Architecture& architecture, std::int64_t iteration) {
  Metadata text{
      {"lockstep.architecture", config.model.arch},
      {"lockstep.description", architecture.description},
      {"lockstep.task", to_string(architecture.task)},
      {"lockstep.num_classes", std::to_string(config.model.num_classes)},
      {"lockstep.class_names", json_text(Json(class_names(config.data)))},
      {"lockstep.channels", std::to_string(config.data.channels)},
      {"lockstep.normalize", to_string(config.data.normalize.value_or(Normalization::kGiven))},
      {"lockstep.size_divisor", std::to_string(architecture.size_divisor)},
      {"lockstep.eval_stats", to_string(config.bn.eval_stats)}};
  if (!normalizes_by_image(config.data)) {
    text["lockstep.pixels"] = to_string(config.data.pixels.value_or(PixelType::kUint8));
    text["lockstep.mean"] = for_each_channel(config.data.mean, config.data.channels);
    text["lockstep.std"] = for_each_channel(config.data.std, config.data.channels);
  }
  if (config.data.normalize == Normalization::kPercentile)
    text["lockstep.percentiles"] = Json(config.data.percentiles).dump();
  if (!config.data.bands.empty()) text["lockstep.bands"] = Json(config.data.bands).dump();
  if (iteration >= 0) text["lockstep.iteration"] = std::to_string(iteration);
  return text;
}

/// Whether a key=value says how images are normalised.
bool is_of_normalization(const std::string& text) {
  constexpr std::array<std::string_view, 5> kKeys{"normalize", "mean", "std", "percentiles",
                                                  "pixels"};
  return std::ranges::any_of(
      kKeys, [&](std::string_view key) { return text.starts_with(concat("data.", key, "=")); });
}

/// The first of what lies in the folder and is wanted: "a, b".
std::string names_in(const fs::path& folder, bool (*wanted)(const fs::path&)) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> found;
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(folder, unreadable)) {
    if (wanted(entry.path())) found.push_back(entry.path().string());
  }
  std::ranges::sort(found);
  return joined(found, kShown);
}

/// Of a folder without a checkpoint of its own: what to do instead.
std::string what_it_holds(const fs::path& folder) {
  const std::string runs = names_in(
      folder, [](const fs::path& path) { return fs::exists(RunFolder{path}.checkpoint("last")); });
  if (!runs.empty()) return "; name one of the runs in it: " + runs;
  const std::string others = names_in(RunFolder{folder}.checkpoints(), [](const fs::path& path) {
    return path.extension() == ".safetensors" && path.stem().extension().empty();
  });
  if (!others.empty()) return "; name one of those that are there: " + others;
  return RunFolder{folder}.holds_run()
             ? "; the run has saved none yet: it does at its end and every run.checkpoint_every "
               "steps"
             : "; expected the folder of a run, such as `lockstep logs ls DIR` lists";
}

}  // namespace

fs::path checkpoint_of(const fs::path& target) {
  if (!fs::exists(target))
    throw DataError(concat(target.string(), ": there is no such run or checkpoint"));
  if (!fs::is_directory(target)) return target;
  const fs::path last = RunFolder{target}.checkpoint("last");
  if (!fs::exists(last)) {
    throw DataError(concat(target.string(), ": holds no checkpoint (", last.string(),
                           " is missing)", what_it_holds(target)));
  }
  return last;
}

fs::path config_of(const fs::path& config, const fs::path& checkpoint) {
  if (!config.empty()) return config;
  const fs::path own = RunFolder{fs::absolute(checkpoint).parent_path().parent_path()}.config();
  if (!fs::exists(own)) {
    throw ConfigError(
        concat(checkpoint.string(), ": no config.toml of a run beside it; name one with --config"));
  }
  return own;
}

Config load_config_of(const fs::path& config, const fs::path& checkpoint,
                      const std::vector<std::string>& overrides, std::vector<std::string>& warnings,
                      const Tables& tables) {
  const fs::path file = config_of(config, checkpoint);
  const Config chosen = load_config(file, overrides, &warnings, tables);
  std::vector<std::string> others = overrides;
  std::erase_if(others, is_of_normalization);
  if (!config.empty() || others.size() == overrides.size()) return chosen;
  Config there = load_config(file, others, nullptr, tables), here = chosen;
  for (PixelOptions* data : {&there.data, &here.data})
    data->normalize = data->normalize.value_or(Normalization::kGiven);
  const std::string difference = config_difference(there, here);
  if (!difference.empty()) {
    warnings.push_back(concat("the weights were trained on images that were normalised otherwise: ",
                              difference, "; what comes of it may be wrong"));
  }
  return chosen;
}

std::vector<ReplicaStatistics> saved_statistics(const CheckpointFiles& checkpoint, EvalStats stats,
                                                std::vector<std::string>& warnings) {
  if (checkpoint.state || !checkpoint.problem.empty()) {
    return training_state_of(checkpoint).replicas;
  }
  if (merges(stats)) {
    warnings.push_back(concat(checkpoint.path.string(),
                              ": no training state beside it, so only one device's "
                              "statistics are known: eval_stats ",
                              to_string(stats), " is device0 here"));
  }
  return {};
}

ReplicaStatistics chosen_statistics(const std::vector<ReplicaStatistics>& saved, EvalStats stats) {
  if (saved.front().empty() || !merges(stats)) return saved.front();
  return merge_running_statistics(saved, stats == EvalStats::kPooled);
}

void check_finite(const fs::path& file, const TensorMap& weights) {
  for (const auto& [name, tensor] : weights) {
    const std::size_t broken = count_not_finite(tensor);
    if (broken == 0) continue;
    throw DataError(concat(file.string(), ": ", broken, " of ", tensor.data.size() / sizeof(float),
                           " values of ", name,
                           " are not finite: the training diverged; use a checkpoint of before "
                           "(lockstep inspect FILE shows what one holds)"));
  }
}

ImportSummary load_from(const fs::path& file, const std::function<ImportSummary()>& load) {
  try {
    return load();
  } catch (const DataError& error) {
    throw DataError(concat(file.string(), ": ", error.what()));
  }
}

void warn_of_passed_over(const fs::path& file, const TensorMap& tensors,
                         const ImportSummary& summary, std::vector<std::string>& warnings) {
  constexpr std::size_t kShown = 8;
  if (summary.unexpected.empty()) return;
  const std::string names =
      joined(summary.unexpected | std::views::transform([&](const std::string& name) {
               return concat(name, " (", tensors.at(name).dtype, ")");
             }),
             kShown);
  warnings.push_back(concat(file.string(), ": passed over, since no weights: ", names));
}

std::int64_t iteration_of(const SafetensorsFile& weights) {
  const auto found = weights.metadata.find("lockstep.iteration");
  std::int64_t iteration = -1;
  if (found != weights.metadata.end()) {
    const std::string& text = found->second;
    std::from_chars(text.data(), text.data() + text.size(), iteration);
  }
  return iteration;
}

TrainedModel read_trained_model(const TrainedModelRequest& request) {
  TrainedModel model;
  model.config = load_config_of(request.config, checkpoint_of(request.target), request.overrides,
                                model.warnings, *request.tables);
  if (request.computes && model.config.run.portable) use_cpu_kernels("portable");
  const EvalStats stats = model.config.bn.eval_stats;
  check_statistics_are_there(stats);
  model.architecture = model.config.architecture();
  if (stats == EvalStats::kOwn) {
    model.architecture.model = normalize_by_image(std::move(model.architecture.model));
  }
  CheckpointFiles files = read_checkpoint_of(request.target);
  model.checkpoint = files.path;
  const TensorMap tensors =
      select_prefix(std::move(files.weights.tensors), model.config.model.weights_prefix);
  const ImportSummary summary =
      load_from(files.path, [&] { return read_weights_of(model, request.size, tensors); });
  warn_of_passed_over(files.path, tensors, summary, model.warnings);
  const auto saved = saved_statistics(files, stats, model.warnings);
  if (!saved.empty()) put_statistics(chosen_statistics(saved, stats), model.weights);
  check_finite(model.checkpoint, model.weights);
  model.iteration = iteration_of(files.weights);
  model.about = about(model.config, model.architecture, model.iteration);
  return model;
}

namespace {

std::vector<fs::path> newest_numbered(const fs::path& run, int count) {
  if (!fs::is_directory(run)) {
    throw ConfigError(
        concat("an average is of a run's checkpoints: ", run.string(), " is no folder of a run"));
  }
  std::vector<fs::path> found = numbered_checkpoints(RunFolder{run}.checkpoints());
  if (static_cast<int>(found.size()) < count) {
    throw ConfigError(
        concat(run.string(), ": expected ", count, " numbered checkpoints, got ", found.size(),
               "; run.checkpoint_every writes them, and run.keep says how many stay"));
  }
  found.resize(static_cast<std::size_t>(count));
  return found;
}

using Sums = std::map<std::string, std::vector<double>>;

void add_to(Sums& sums, const TensorMap& weights) {
  for (const auto& [name, tensor] : weights) {
    if (tensor.dtype != "F32") continue;  // counts of batches
    const std::vector<float> values = to_floats(tensor);
    std::vector<double>& sum = sums[name];
    sum.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) sum[i] += static_cast<double>(values[i]);
  }
}

}  // namespace

TrainedModel read_averaged_model(TrainedModelRequest request, int count) {
  const std::vector<fs::path> checkpoints = newest_numbered(request.target, count);
  std::optional<TrainedModel> newest;
  Sums sums;
  std::vector<std::string> names;
  for (const fs::path& checkpoint : checkpoints) {
    request.target = checkpoint;
    TrainedModel model = read_trained_model(request);
    add_to(sums, model.weights);
    names.push_back(checkpoint.stem().string());
    if (!newest) newest = std::move(model);
  }
  for (const auto& [name, sum] : sums) {
    std::vector<float> mean(sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) mean[i] = static_cast<float>(sum[i] / count);
    put(newest->weights, name, mean.data());
  }
  newest->about["lockstep.averaged"] = joined(names);
  return std::move(*newest);
}

}  // namespace lockstep
