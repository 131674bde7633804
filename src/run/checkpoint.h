#pragma once
// Checkpoints: NAME.safetensors holds the model (device 0's, under PyTorch's names),
// NAME.state.safetensors beside it what a training run needs to go on bit for bit. The state is
// written first and both carry the same hash, so that a pair is either whole or recognised as
// broken. Random numbers need no state.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/io/weights.h"
#include "lockstep/optim/optimizer.h"
#include "run/checkpoint_files.h"
#include "run/running_statistics.h"

namespace lockstep {

struct TrainingState {
  std::int64_t iteration = 0;  // steps done; the next batch has this number
  OptimizerState optimizer;
  std::optional<LossScaleState> loss_scale;  // of the next step, with fp16
  std::vector<ReplicaStatistics> replicas;   // [rank]; they differ in local mode
  std::vector<double> losses;                // [iteration] of every step
  std::optional<double> best_score;
  std::int64_t best_iter = 0;
  std::string config_hash;
  std::string devices;
  std::string data_hash;  // Fingerprint::hash; empty: of generated images, or not known
};

struct Checkpoint {
  TensorMap weights;
  TrainingState state;
};

/// "ckpt/last.state.safetensors" of "ckpt/last.safetensors".
std::filesystem::path state_path(const std::filesystem::path& weights);

/// Writes both files, each atomically, the state first. Throws Error (disk full, ...): files of
/// this name that were there are then unchanged, or recognisably not a pair.
void save_checkpoint(const std::filesystem::path& path, Checkpoint checkpoint);

/// The weights alone, as those of a checkpoint, but for a training state beside them.
void save_weights(const std::filesystem::path& path, TensorMap weights, std::int64_t iteration);

/// Throws DataError naming the file and what is wrong: missing, damaged (hash), foreign, or not of
/// one pair.
Checkpoint load_checkpoint(const std::filesystem::path& path);
/// The same of files that have been read. Throws DataError as load_checkpoint.
TrainingState training_state_of(const CheckpointFiles& files);

/// 16 hex digits (XXH3 of 64 bits) over metadata (but the hash that a file has of itself) and
/// names, types, shapes and bytes of all tensors.
std::string content_hash(const SafetensorsFile& file);

/// The weights alone, also of files that other programs wrote (`load_weights`; these have no
/// metadata unless they are safetensors); checks the hash if there is one.
SafetensorsFile read_weights(const std::filesystem::path& path);

/// Whether these weights and this training state were written together.
bool is_pair(const Metadata& weights, const Metadata& state);

/// N of a file called iter_N.safetensors; nullopt for other names.
std::optional<std::int64_t> checkpoint_iteration(const std::filesystem::path& file);

/// iter_N.safetensors in `folder`, newest first.
std::vector<std::filesystem::path> numbered_checkpoints(const std::filesystem::path& folder);

/// Removes all but the newest `keep` numbered checkpoints.
void prune_checkpoints(const std::filesystem::path& folder, int keep);

/// Removes the half-written files that a killed process left.
void remove_unfinished_files(const std::filesystem::path& folder);

struct FoundCheckpoint {
  std::filesystem::path path;
  Checkpoint checkpoint;
};

/// The newest whole checkpoint of `folder` (last, iter_N, best); nullopt when there is none. What
/// could not be loaded is said in `warnings`. Throws DataError when there are some and none is
/// whole.
std::optional<FoundCheckpoint> find_newest_checkpoint(const std::filesystem::path& folder,
                                                      std::vector<std::string>& warnings);

}  // namespace lockstep
