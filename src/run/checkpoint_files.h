#pragma once
// Reading a checkpoint beside the training that writes it. Its two files are replaced one after the
// other, so that whoever reads them may meet the one of before and the other of after.

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "lockstep/io/weights.h"
#include "lockstep/sync/world.h"

namespace lockstep {

/// What the files of a checkpoint hold, both of one moment.
struct CheckpointFiles {
  std::filesystem::path path = {};  // of the weights
  SafetensorsFile weights = {};     // also those of other programs
  std::optional<SafetensorsFile> state =
      {};                    // none: no training state lies beside them, or `problem`
  std::string problem = {};  // why what lies beside them is no training state of theirs
  bool torn = false;         // it is one, of other weights: `problem` says so
};

/// Also while a training, here or on another host, replaces them: reads again what has changed
/// meanwhile, and waits up to `patience` for the second of two files that do not belong together;
/// ten times that where a half-written file beside them says that somebody is at it. Throws
/// DataError naming the file where the weights cannot be read.
CheckpointFiles read_checkpoint_files(const std::filesystem::path& path,
                                      std::chrono::milliseconds patience = std::chrono::seconds(1));

/// Reads the last checkpoint of a run folder or, where its files do not belong together, the newest
/// numbered one, which nobody writes again; else the file `target`. Throws DataError where there
/// is none.
CheckpointFiles read_checkpoint_of(const std::filesystem::path& target);

/// A checkpoint that process 0 has, for all processes: the others may not see its files. Elsewhere
/// than in process 0 a copy, in a temporary folder that goes with the object, as it lies
/// in a run's folder: the training state beside the weights, and the run's configuration, where
/// process 0 has them. All processes make one together.
class SharedCheckpoint {
 public:
  /// `path` and `read`: process 0's, which calls `read` where there are others; elsewhere they are
  /// not looked at. Throws Error.
  SharedCheckpoint(World& world, const std::filesystem::path& path,
                   const std::function<CheckpointFiles()>& read);
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
