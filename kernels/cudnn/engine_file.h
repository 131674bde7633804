#pragma once
// Which of cuDNN's engines were chosen, kept on the disk: the choice is made by a clock, and
// another engine may round otherwise, so that only runs with the same choices give the same bits. A
// file that cannot be read or written is as good as none: the engines are then timed again.

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

#include "kernels/cudnn/cudnn_graph.h"

namespace lockstep::gpu {

/// One of find_engines's list.
struct EngineChoice {
  WeightOrder order = WeightOrder::kOutInTaps;
  bool fallback = false;
  std::size_t index = 0;

  friend bool operator==(const EngineChoice&, const EngineChoice&) = default;
};

/// A file of choices by GPU model (with the library's version) and problem. Processes may share it;
/// used under the lock of the process's choices. No method throws for what is wrong with the file.
class EngineFile {
 public:
  /// `path` empty: no file; nothing is found and nothing is kept.
  explicit EngineFile(std::filesystem::path path) : path_(std::move(path)) {}

  /// $LOCKSTEP_CUDNN_ENGINES where it is set (to nothing: no file), else
  /// lockstep/cudnn_engines.json in $XDG_CACHE_HOME or ~/.cache.
  static std::filesystem::path default_path();

  std::optional<EngineChoice> find(const std::string& model, const std::string& problem) const;

  /// Keeps `choice`, unless another process has kept one since: the first one counts, and is
  /// returned. `unusable`: what `find` gave, if it cannot be used; it is replaced.
  EngineChoice settle(const std::string& model, const std::string& problem,
                      const EngineChoice& choice,
                      const std::optional<EngineChoice>& unusable) const;

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::gpu
