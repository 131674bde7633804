#pragma once
// Whether files are there, asked for very many of them.

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep {

/// Reads a folder of which many files are asked for, once, in place of asking for each. Used by one
/// thread, while no file comes or goes.
class KnownFiles {
 public:
  /// Whether a regular file, or a link to one, has this path.
  bool has(const std::string& path);

 private:
  struct Folder {
    int asked = 0;
    std::vector<std::uint64_t> names;  // hashes, in order; empty until it is read
  };

  std::unordered_map<std::string, Folder> folders_;
};

}  // namespace lockstep
