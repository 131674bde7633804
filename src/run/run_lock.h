#pragma once
// That a run folder is written by one training at a time.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lockstep/core/check.h"

namespace lockstep {

/// Another training is at work in the folder.
class RunInUseError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Holds the lock of a run folder (flock on its file `lock`, which says who holds it) while it
/// lives, and makes the folder. In the end the file goes, and so do the folders that it made and
/// that nobody has written to. A file system that cannot lock, or that nothing can be written to,
/// is no error: then there is no lock. Process 0 holds it for all processes of a run.
class RunLock {
 public:
  /// Throws RunInUseError naming the folder and who holds it when another training does.
  explicit RunLock(const std::filesystem::path& root);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  ~RunLock();

 private:
  void make_folders(const std::filesystem::path& root);
  void remove_empty_folders() const;
  bool names_what_is_held() const;
  void write_holder() const;

  std::filesystem::path file_;
  std::vector<std::filesystem::path> made_;  // folders, from the outermost in
  int descriptor_ = -1;
};

/// What the lock of a run folder says of its training.
enum class RunLockState : std::uint8_t {
  kUnknown,  // there is no lock, it is another machine's, or the file system cannot lock
  kHeld,     // it is at work
  kLeft,     // it was on this machine and ended without a word: it was killed
};

/// Safe beside a training, also one that is about to begin.
RunLockState run_lock_state(const std::filesystem::path& root);

}  // namespace lockstep
