#pragma once
// What a training goes on from: which checkpoint --resume finds, whether this run may go on from
// it, and its state.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/fingerprint.h"
#include "lockstep/parallel/data_parallel.h"
#include "run/checkpoint.h"
#include "run/run_folder.h"

namespace lockstep {

/// Whether --resume leaves it to the trainer which checkpoint to take.
bool resumes_newest(const std::string& resume);

/// The run folder of RUN/ckpt/NAME.safetensors; empty for a checkpoint that lies elsewhere.
std::filesystem::path run_of(const std::filesystem::path& checkpoint);

/// A training that goes on from nothing begins at step 0, from an empty state.
class ResumePoint {
 public:
  ResumePoint() = default;
  /// What `resume` (--resume) stands for, the newest whole checkpoint of `folder` among them, as
  /// process 0 finds it. All processes make one. Throws ConfigError and DataError.
  ResumePoint(World& world, const std::optional<std::string>& resume, const RunFolder& folder,
              std::vector<std::string>& warnings);

  bool found() const { return !path_.empty(); }
  const std::filesystem::path& path() const { return path_; }
  const TrainingState& state() const { return checkpoint_.state; }
  std::int64_t step() const { return checkpoint_.state.iteration; }

  /// Throws ConfigError for a run that ends before.
  void check_steps(std::int64_t max_iters) const;
  /// Brings the replicas to it, and the checkpoints of `folder` that are newer out of the way. Says
  /// in `warnings` why the run will not end as it would have. Throws ConfigError.
  void restore(DataParallel& replicas, const Config& config, const Fingerprint& data,
               const RunFolder& folder, World& world, std::vector<std::string>& warnings) const;

 private:
  void find(const std::string& resume, const RunFolder& folder, std::vector<std::string>& warnings);
  void compare_data(const Fingerprint& data, std::vector<std::string>& warnings) const;
  void set_aside_newer(const RunFolder& folder, std::vector<std::string>& warnings) const;

  std::filesystem::path path_;
  bool newest_ = true;  // nobody has named it
  Checkpoint checkpoint_;
};

}  // namespace lockstep
