#pragma once
// A checkpoint that process 0 has, for all processes: the others may not see its files.

#include <filesystem>

#include "lockstep/sync/world.h"

namespace lockstep {

/// Elsewhere than in process 0 a copy, in a temporary folder that goes with the object, as it lies
/// in a run's folder: the training state beside the weights, and the run's configuration, where
/// process 0 has them. All processes make one together.
class SharedCheckpoint {
 public:
  /// `path`: process 0's; elsewhere it is not looked at. Throws Error.
  SharedCheckpoint(World& world, const std::filesystem::path& path);
  ~SharedCheckpoint();
  SharedCheckpoint(const SharedCheckpoint&) = delete;
  SharedCheckpoint& operator=(const SharedCheckpoint&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  explicit SharedCheckpoint(const std::filesystem::path& path) : path_(path) {}

  std::filesystem::path path_;
  std::filesystem::path copy_;  // the folder; empty in process 0
};

}  // namespace lockstep
