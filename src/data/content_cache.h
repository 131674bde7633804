#pragma once
// Hashes of files' contents, kept from one process to the next.

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// 16 hexadecimal digits.
std::string hex(std::uint64_t hash);

/// Safe from several threads. A file is told by its path, size and times: of modification, and of
/// any change, which no program sets back.
class ContentCache {
 public:
  /// Of the data set in `root`: $LOCKSTEP_DATA_CACHE (a folder; empty: nothing is kept), or
  /// lockstep/data in $XDG_CACHE_HOME or ~/.cache. What cannot be read is as if it were not there.
  /// `now`: what was changed a moment before is not kept, for it may change again.
  explicit ContentCache(const std::filesystem::path& root, std::time_t now = std::time(nullptr));

  /// Of the file's bytes; 0 where it cannot be read.
  std::uint64_t hash_of(const std::string& path);
  /// Keeps what was asked for; of little that is soon read again, nothing.
  void save() const;
  /// Of files that were not known.
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  using Known = std::pair<std::uint64_t, std::uint64_t>;  // what tells the file, its content

  std::filesystem::path path_;  // empty: nothing is kept
  std::vector<Known> before_;   // in order
  std::time_t now_;
  std::mutex mutex_;  // guards what follows
  std::vector<Known> kept_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace lockstep
