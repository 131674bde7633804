#pragma once
// The run folder: which file lies where, and the rule that nothing already saved is overwritten.

#include <filesystem>
#include <string>

#include "config/config.h"

namespace lockstep {

struct RunFolder {
  std::filesystem::path root;

  std::filesystem::path config() const { return root / "config.toml"; }
  std::filesystem::path log() const { return root / "run.log"; }
  std::filesystem::path scalars() const { return root / "scalars.json"; }
  std::filesystem::path timing() const { return root / "timing.jsonl"; }
  std::filesystem::path events() const { return root / "events.jsonl"; }
  std::filesystem::path environment() const { return root / "env.json"; }
  /// What its data set held, file by file (Fingerprint::write).
  std::filesystem::path data() const { return root / "data.tsv"; }
  std::filesystem::path tensorboard() const { return root / "tensorboard"; }
  std::filesystem::path rank_logs() const { return root / "ranks"; }
  std::filesystem::path rank_log(int rank) const {
    return rank_logs() / (std::to_string(rank) + ".jsonl");
  }
  std::filesystem::path checkpoints() const { return root / "ckpt"; }
  std::filesystem::path checkpoint(const std::string& name) const {
    return checkpoints() / (name + ".safetensors");
  }

  /// Whether a run has written here.
  bool holds_run() const;
  /// Makes the folders; that of the rank logs only where there will be some. Throws Error naming
  /// the folder and the cause.
  void create(bool with_rank_logs) const;
};

/// <work_dir>/<name>/<YYYYmmdd_HHMMSS>-s<seed>.
RunFolder new_run_folder(const Config& config);

/// The newest run under <work_dir>/<name> with this seed; an empty root when there is none.
RunFolder newest_run_folder(const Config& config);

}  // namespace lockstep
