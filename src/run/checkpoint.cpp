#include "run/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "io/weight_files.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

const char* const kHashKey = "lockstep.hash";
const char* const kPairKey = "lockstep.pair";
const char* const kKindKey = "lockstep.kind";
const char* const kIterationKey = "lockstep.iteration";
const char* const kLossScale = "loss_scale";
const char* const kOptimizer = "optimizer";
const char* const kDataHash = "data_hash";
const char* const kSuffix = ".safetensors";
const char* const kStateSuffix = ".state.safetensors";

template <typename T>
HostTensor to_tensor(const char* dtype, const std::vector<T>& values) {
  HostTensor tensor{dtype, {static_cast<std::int64_t>(values.size())}, {}};
  tensor.data.resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

/// Reads tensors and metadata of a state file; every miss is an error that names the file.
class StateReader {
 public:
  StateReader(const SafetensorsFile& file, const fs::path& path) : file_(file), path_(path) {}

  template <typename T>
  std::vector<T> values(const std::string& name, const char* dtype) const {
    const auto found = file_.tensors.find(name);
    if (found == file_.tensors.end()) fail(concat("tensor '", name, "' is missing"));
    const HostTensor& tensor = found->second;
    if (tensor.dtype != dtype || tensor.data.size() % sizeof(T) != 0) {
      fail(concat("tensor '", name, "': expected ", dtype, ", got ", tensor.dtype));
    }
    std::vector<T> values(tensor.data.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    return values;
  }
  std::string text(const std::string& key) const {
    const auto found = file_.metadata.find(key);
    if (found == file_.metadata.end()) fail(concat("'", key, "' is missing"));
    return found->second;
  }
  std::int64_t number(const std::string& key) const {
    const std::string digits = text(key);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      fail(concat("'", key, "' should be a number, is '", digits, "'"));
    }
    return value;
  }
  std::size_t tensors() const { return file_.tensors.size(); }
  std::size_t count(const std::string& key, std::size_t most) const {
    const std::int64_t value = number(key);
    if (value < 0 || static_cast<std::uint64_t>(value) > most) {
      fail(concat("'", key, "' is ", value, ", expected at most ", most));
    }
    return static_cast<std::size_t>(value);
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(concat(path_.string(), ": not a usable training state: ", what));
  }

 private:
  const SafetensorsFile& file_;
  const fs::path& path_;
};

std::string layer_key(std::size_t rank, std::size_t layer, const char* what) {
  return fmt::format("replica.{}.{}.{}", rank, layer, what);
}

void write_replicas(const std::vector<ReplicaStatistics>& replicas, SafetensorsFile& file) {
  file.metadata["replicas"] = std::to_string(replicas.size());
  file.metadata["layers"] = std::to_string(replicas.empty() ? 0 : replicas.front().size());
  for (std::size_t rank = 0; rank < replicas.size(); ++rank) {
    for (std::size_t i = 0; i < replicas[rank].size(); ++i) {
      const BatchNormStatistics& layer = replicas[rank][i];
      if (rank == 0) file.metadata[fmt::format("layer.{}", i)] = layer.layer;
      file.tensors[layer_key(rank, i, "running_mean")] = to_tensor("F32", layer.mean);
      file.tensors[layer_key(rank, i, "running_var")] = to_tensor("F32", layer.var);
      file.tensors[layer_key(rank, i, "num_batches_tracked")] =
          to_tensor("I64", std::vector<std::int64_t>{layer.num_batches_tracked});
    }
  }
}

std::vector<ReplicaStatistics> read_replicas(const StateReader& reader) {
  // Every replica has tensors of its own for every layer.
  constexpr std::size_t kMostReplicas = 1 << 16;
  const std::size_t tensors = reader.tensors(), layers = reader.count("layers", tensors);
  std::vector<ReplicaStatistics> replicas(
      reader.count("replicas", layers == 0 ? kMostReplicas : tensors / layers));
  for (std::size_t rank = 0; rank < replicas.size(); ++rank) {
    for (std::size_t i = 0; i < layers; ++i) {
      const auto tracked =
          reader.values<std::int64_t>(layer_key(rank, i, "num_batches_tracked"), "I64");
      if (tracked.size() != 1) reader.fail("num_batches_tracked is not one number");
      replicas[rank].push_back({reader.text(fmt::format("layer.{}", i)),
                                reader.values<float>(layer_key(rank, i, "running_mean"), "F32"),
                                reader.values<float>(layer_key(rank, i, "running_var"), "F32"),
                                tracked.front()});
    }
  }
  return replicas;
}

/// "optimizer.momentum_buffer".
std::string slot_key(const std::string& slot) { return concat(kOptimizer, ".", slot); }

OptimizerState read_optimizer(const SafetensorsFile& file, const StateReader& reader) {
  OptimizerState state{reader.text(kOptimizer), {}};
  const std::string prefix = slot_key("");
  for (const auto& [name, tensor] : file.tensors) {
    if (!name.starts_with(prefix)) continue;
    state.slots[name.substr(prefix.size())] = reader.values<float>(name, "F32");
  }
  return state;
}

// A slot of the optimizer is as large as the weights: each is let go when it has been copied.
SafetensorsFile to_file(TrainingState state) {
  SafetensorsFile file;
  file.metadata = {{kKindKey, "state"},
                   {kIterationKey, std::to_string(state.iteration)},
                   {"best_iter", std::to_string(state.best_iter)},
                   {"config_hash", state.config_hash},
                   {"devices", state.devices}};
  if (!state.data_hash.empty()) file.metadata[kDataHash] = state.data_hash;
  file.metadata[kOptimizer] = state.optimizer.optimizer;
  for (auto& [slot, values] : state.optimizer.slots) {
    file.tensors[slot_key(slot)] = to_tensor("F32", std::exchange(values, {}));
  }
  file.tensors["losses"] = to_tensor("F64", state.losses);
  std::vector<double> best;
  if (state.best_score) best.push_back(*state.best_score);
  // The name in files is that of the first score there was.
  file.tensors["best_m_iou"] = to_tensor("F64", best);
  if (state.loss_scale) {
    file.tensors[kLossScale] =
        to_tensor("F64", std::vector<double>{static_cast<double>(state.loss_scale->scale),
                                             static_cast<double>(state.loss_scale->good_steps),
                                             static_cast<double>(state.loss_scale->skipped)});
  }
  write_replicas(state.replicas, file);
  return file;
}

/// None in the state of a run without a loss scale.
std::optional<LossScaleState> read_loss_scale(const SafetensorsFile& file,
                                              const StateReader& reader) {
  if (!file.tensors.contains(kLossScale)) return std::nullopt;
  const std::vector<double> values = reader.values<double>(kLossScale, "F64");
  if (values.size() != 3 || !(values[0] >= 1)) {
    reader.fail("loss_scale is not a scale of at least 1 and two counts");
  }
  LossScaleState state{.scale = static_cast<float>(values[0])};
  state.good_steps = static_cast<std::int64_t>(values[1]);
  state.skipped = static_cast<std::int64_t>(values[2]);
  state.inverse = 1.0F / state.scale;
  return state;
}

TrainingState to_state(const SafetensorsFile& file, const fs::path& path) {
  const StateReader reader(file, path);
  if (reader.text(kKindKey) != "state") reader.fail("it holds something else");
  TrainingState state;
  state.iteration = reader.number(kIterationKey);
  state.best_iter = reader.number("best_iter");
  state.config_hash = reader.text("config_hash");
  state.devices = reader.text("devices");
  if (file.metadata.contains(kDataHash)) state.data_hash = reader.text(kDataHash);
  state.optimizer = read_optimizer(file, reader);
  state.losses = reader.values<double>("losses", "F64");
  const std::vector<double> best = reader.values<double>("best_m_iou", "F64");
  if (!best.empty()) state.best_score = best.front();
  state.loss_scale = read_loss_scale(file, reader);
  state.replicas = read_replicas(reader);
  return state;
}

}  // namespace

std::string content_hash(const SafetensorsFile& file) {
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  const auto add = [&](const std::string& text) {
    const std::uint64_t size = text.size();
    XXH3_64bits_update(state, &size, sizeof size);
    XXH3_64bits_update(state, text.data(), text.size());
  };
  for (const auto& [key, value] : file.metadata) {
    if (key == kHashKey) continue;
    add(key);
    add(value);
  }
  for (const auto& [name, tensor] : file.tensors) {
    add(name);
    add(tensor.dtype);
    add(fmt::format("{}", fmt::join(tensor.shape, ",")));
    XXH3_64bits_update(state, tensor.data.data(), tensor.data.size());
  }
  const std::string hash = fmt::format("{:016x}", XXH3_64bits_digest(state));
  XXH3_freeState(state);
  return hash;
}

fs::path state_path(const fs::path& weights) {
  return fs::path(weights).replace_extension().concat(kStateSuffix);
}

namespace {

SafetensorsFile weights_file(TensorMap tensors, std::int64_t iteration) {
  SafetensorsFile weights{std::move(tensors), {{"format", "pt"}, {kKindKey, "weights"}}};
  weights.metadata[kIterationKey] = std::to_string(iteration);
  weights.metadata[kHashKey] = content_hash(weights);
  return weights;
}

}  // namespace

void save_weights(const fs::path& path, TensorMap weights, std::int64_t iteration) {
  write_safetensors(path, weights_file(std::move(weights), iteration));
}

void save_checkpoint(const fs::path& path, Checkpoint checkpoint) {
  const SafetensorsFile weights =
      weights_file(std::move(checkpoint.weights), checkpoint.state.iteration);
  SafetensorsFile state = to_file(std::move(checkpoint.state));
  state.metadata[kPairKey] = weights.metadata.at(kHashKey);
  state.metadata[kHashKey] = content_hash(state);
  write_safetensors(state_path(path), state);
  write_safetensors(path, weights);
}

SafetensorsFile read_weights(const fs::path& path) {
  if (weight_file_kind(path) != WeightFileKind::kSafetensors) return {load_weights(path), {}};
  SafetensorsFile file = read_safetensors(path);
  const auto expected = file.metadata.find(kHashKey);
  if (expected != file.metadata.end() && expected->second != content_hash(file)) {
    throw DataError(concat(path.string(), ": damaged: its contents do not match the hash ",
                           expected->second, " written with them; use another checkpoint"));
  }
  return file;
}

bool is_pair(const Metadata& weights, const Metadata& state) {
  const auto hash = weights.find(kHashKey);
  const auto pair = state.find(kPairKey);
  return hash != weights.end() && pair != state.end() && hash->second == pair->second;
}

TrainingState training_state_of(const CheckpointFiles& files) {
  const fs::path beside = state_path(files.path);
  if (!files.problem.empty()) throw DataError(files.problem);
  if (!files.state) {
    throw DataError(concat(files.path.string(), ": has no training state (",
                           beside.filename().string(),
                           ") beside it; to start from its weights use --init"));
  }
  return to_state(*files.state, beside);
}

Checkpoint load_checkpoint(const fs::path& path) {
  CheckpointFiles files = read_checkpoint_files(path);
  TrainingState state = training_state_of(files);
  return {std::move(files.weights.tensors), std::move(state)};
}

std::optional<std::int64_t> checkpoint_iteration(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with("iter_") || !name.ends_with(kSuffix) || name.ends_with(kStateSuffix)) {
    return std::nullopt;
  }
  const std::string digits = name.substr(5, name.size() - 5 - std::strlen(kSuffix));
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  return whole ? std::optional(value) : std::nullopt;
}

std::vector<fs::path> numbered_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing)) {
    if (checkpoint_iteration(entry.path())) found.push_back(entry.path());
  }
  std::ranges::sort(found, [](const fs::path& a, const fs::path& b) {
    return *checkpoint_iteration(a) > *checkpoint_iteration(b);
  });
  return found;
}

// The weights go first, so that weights are never without their state.
void prune_checkpoints(const fs::path& folder, int keep) {
  const std::vector<fs::path> all = numbered_checkpoints(folder);
  for (std::size_t i = static_cast<std::size_t>(keep); i < all.size(); ++i) {
    fs::remove(all[i]);
    fs::remove(state_path(all[i]));
  }
}

void remove_unfinished_files(const fs::path& folder) {
  std::vector<fs::path> unfinished;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing)) {
    if (entry.path().extension() == ".tmp") unfinished.push_back(entry.path());
  }
  for (const fs::path& path : unfinished) fs::remove(path);
}

namespace {

/// Of two checkpoints of a step the later one knows of a later best: `last` is written before the
/// last evaluation, `best` after it.
std::pair<std::int64_t, std::int64_t> age_of(const Checkpoint& checkpoint) {
  return {checkpoint.state.iteration, checkpoint.state.best_iter};
}

}  // namespace

std::optional<FoundCheckpoint> find_newest_checkpoint(const fs::path& folder,
                                                      std::vector<std::string>& warnings) {
  std::vector<fs::path> candidates = numbered_checkpoints(folder);
  for (const char* name : {"last.safetensors", "best.safetensors"}) {
    if (fs::exists(folder / name)) candidates.push_back(folder / name);
  }
  std::optional<FoundCheckpoint> newest;
  std::string damage;
  for (const fs::path& path : candidates) {
    const auto iteration = checkpoint_iteration(path);
    if (newest && iteration && *iteration <= newest->checkpoint.state.iteration) continue;
    try {
      Checkpoint checkpoint = load_checkpoint(path);
      if (!newest || age_of(checkpoint) > age_of(newest->checkpoint)) {
        newest = FoundCheckpoint{path, std::move(checkpoint)};
      }
    } catch (const DataError& error) {
      warnings.push_back(error.what());
      damage += concat("\n  ", error.what());
    }
  }
  // Starting anew would write over the logs of a run that may yet be saved by hand.
  if (!newest && !candidates.empty()) {
    throw DataError(
        concat("none of the ", candidates.size(), " checkpoints in ", folder.string(),
               " can be read; restore one, or train into another folder with -o:", damage));
  }
  return newest;
}

}  // namespace lockstep
