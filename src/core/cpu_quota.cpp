#include "core/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// A line of /proc/self/mountinfo: what of a hierarchy of groups lies where.
struct GroupMount {
  fs::path group, folder;
  bool second = false;  // of version 2; else of the controller `cpu`
};

bool has_word(const std::string& list, const std::string& word) {
  std::istringstream words(list);
  for (std::string each; std::getline(words, each, ',');) {
    if (each == word) return true;
  }
  return false;
}

std::vector<GroupMount> group_mounts(const fs::path& root) {
  std::vector<GroupMount> mounts;
  std::ifstream lines(root / "proc/self/mountinfo");
  for (std::string line; std::getline(lines, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::string skipped, group, folder, type, source, options;
    std::istringstream(line) >> skipped >> skipped >> skipped >> group >> folder;
    std::istringstream(line.substr(dash + 3)) >> type >> source >> options;
    if (type == "cgroup2") mounts.push_back({group, folder, true});
    if (type == "cgroup" && has_word(options, "cpu")) mounts.push_back({group, folder, false});
  }
  return mounts;
}

/// The process's group in one of the hierarchies: "7:cpu,cpuacct:/docker/1" or "0::/user".
fs::path own_group(const fs::path& root, bool second) {
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), last = line.find(':', first + 1);
    if (last == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, last - first - 1);
    if (second ? controllers.empty() : has_word(controllers, "cpu")) return line.substr(last + 1);
  }
  return "/";
}

/// Of one group; nullopt: none. "max" is no number, and version 1 has -1.
std::optional<double> quota_of(const fs::path& folder, bool second) {
  double quota = 0, period = 0;
  if (second) {
    std::ifstream(folder / "cpu.max") >> quota >> period;
  } else {
    std::ifstream(folder / "cpu.cfs_quota_us") >> quota;
    std::ifstream(folder / "cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

/// The group as a path below the mount. A container may see its own group as the root, under
/// another name than the host has for it.
fs::path below_mount(const GroupMount& mount, const fs::path& group) {
  const fs::path relative = group.lexically_relative(mount.group);
  return relative.empty() || *relative.begin() == ".." ? fs::path() : relative;
}

}  // namespace

std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> least;
  for (const GroupMount& mount : group_mounts(root)) {
    fs::path folder = root / mount.folder.relative_path();
    std::vector<fs::path> folders{folder};
    for (const fs::path& level : below_mount(mount, own_group(root, mount.second)))
      folders.push_back(folder /= level);
    for (const fs::path& each : folders) {
      const auto quota = quota_of(each, mount.second);
      if (quota) least = std::min(least.value_or(*quota), *quota);
    }
  }
  return least;
}

}  // namespace lockstep
