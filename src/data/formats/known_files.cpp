#include "data/formats/known_files.h"

#include <dirent.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

namespace lockstep {
namespace {

constexpr int kManyAsked = 64;  // to read a folder takes as long

std::uint64_t hash_of(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

/// Of its regular files. Links and what the system does not tell are asked for by themselves.
std::vector<std::uint64_t> read_names(const std::string& folder) {
  std::vector<std::uint64_t> names;
  DIR* const open = ::opendir(folder.c_str());
  if (open == nullptr) return names;
  while (const dirent* entry = ::readdir(open)) {
    if (entry->d_type == DT_REG) names.push_back(hash_of(entry->d_name));
  }
  ::closedir(open);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

bool KnownFiles::has(const std::string& path) {
  const std::size_t name = path.rfind('/') + 1;
  Folder& folder = folders_[path.substr(0, name)];
  if (folder.asked++ == kManyAsked) folder.names = read_names(path.substr(0, name));
  const std::uint64_t hash = hash_of(std::string_view(path).substr(name));
  if (std::binary_search(folder.names.begin(), folder.names.end(), hash)) return true;
  std::error_code no_file;  // a name that is too long, say
  return std::filesystem::is_regular_file(path, no_file);
}

}  // namespace lockstep
