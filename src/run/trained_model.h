#pragma once
// What a run or a checkpoint leaves to others: the network that it trained, its weights under
// PyTorch's names, and what one must know to use them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "lockstep/io/weights.h"
#include "lockstep/nn/parameter_store.h"
#include "run/checkpoint_files.h"
#include "run/running_statistics.h"

namespace lockstep {

/// The checkpoint that `target` stands for: itself, or the last one of a run folder. Throws
/// DataError when there is none.
std::filesystem::path checkpoint_of(const std::filesystem::path& target);

/// `config` where it is given, else config.toml of the run that the checkpoint lies in. Throws
/// ConfigError when there is none.
std::filesystem::path config_of(const std::filesystem::path& config,
                                const std::filesystem::path& checkpoint);

/// Reads that configuration, with overrides (-s). `warnings` receives what is suspicious, also
/// where they normalise images otherwise than the run did. Throws as config_of and load_config.
Config load_config_of(const std::filesystem::path& config, const std::filesystem::path& checkpoint,
                      const std::vector<std::string>& overrides, std::vector<std::string>& warnings,
                      const Tables& tables);

/// Statistics of every device the checkpoint knows; none where no training state lies beside it,
/// which `warnings` receives if `stats` asks for those of all.
std::vector<ReplicaStatistics> saved_statistics(const CheckpointFiles& checkpoint, EvalStats stats,
                                                std::vector<std::string>& warnings);

/// Returns the statistics with which an evaluation under `stats` begins: merged, or device 0's.
/// REQUIRES: `saved` is not empty.
ReplicaStatistics chosen_statistics(const std::vector<ReplicaStatistics>& saved, EvalStats stats);

/// Throws DataError where a value is not finite: nothing comes of such weights but NaN.
void check_finite(const std::filesystem::path& file, const TensorMap& weights);

/// Calls `load`, and names the file in what it complains of.
ImportSummary load_from(const std::filesystem::path& file,
                        const std::function<ImportSummary()>& load);

/// After a strict load: what of the file was passed over, which `warnings` receives by name and
/// type.
void warn_of_passed_over(const std::filesystem::path& file, const TensorMap& tensors,
                         const ImportSummary& summary, std::vector<std::string>& warnings);

/// Steps behind the weights; -1: the file does not say.
std::int64_t iteration_of(const SafetensorsFile& weights);

struct TrainedModelRequest {
  std::filesystem::path target;        // a run folder (its last checkpoint) or a file of weights
  std::filesystem::path config;        // empty: the run's config.toml
  std::vector<std::string> overrides;  // -s
  /// The size of images; zeros: any, since few models have weights that depend on it.
  Size size = {};
  const Tables* tables = &builtin_tables();
  /// Whether this process will compute with it: then by the kernels that run.portable asks for.
  bool computes = false;
};

struct TrainedModel {
  std::filesystem::path checkpoint;
  Config config;
  Architecture architecture;  // as an evaluation under bn.eval_stats runs it
  /// The whole model under its own names, fp32; running statistics as bn.eval_stats says.
  TensorMap weights;
  /// Layers whose running statistics are in `weights` and not looked at, since they normalise each
  /// image by its own (bn.eval_stats = "own").
  std::vector<std::string> layers_by_image;
  std::int64_t iteration = -1;  // steps behind the weights; -1: unknown
  /// Values that are no plain text are JSON: "lockstep.architecture", "lockstep.description" for
  /// people, "lockstep.task", "lockstep.num_classes", "lockstep.class_names", "lockstep.channels",
  /// "lockstep.normalize", "lockstep.size_divisor", "lockstep.eval_stats", and where there are any
  /// "lockstep.pixels" (the files' type that mean and std are of; of uint8 in 0..1),
  /// "lockstep.mean", "lockstep.std", "lockstep.percentiles", "lockstep.bands",
  /// "lockstep.iteration".
  Metadata about;
  std::vector<std::string> warnings;
};

/// Throws DataError when the weights are not there, damaged, not finite or not those of the
/// configuration's model, ConfigError for bn.eval_stats = "precise" and "batch", which need images
/// and not only weights, and where the process already computes by other kernels than asked for.
TrainedModel read_trained_model(const TrainedModelRequest& request);

/// The mean of the weights and running statistics of a run's newest `count` numbered checkpoints
/// (Izmailov et al. 2018, Averaging Weights Leads to Wider Optima), which "lockstep.averaged" of
/// `about` names; the rest is the newest one's. Throws as read_trained_model, and ConfigError where
/// `target` is no run folder or has fewer.
TrainedModel read_averaged_model(TrainedModelRequest request, int count);

}  // namespace lockstep
