#include "run/run_folder.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "lockstep/core/check.h"

namespace lockstep {

namespace fs = std::filesystem;

bool RunFolder::holds_run() const {
  for (const fs::path& path : {config(), log(), scalars(), events(), checkpoints()}) {
    if (fs::exists(path)) return true;
  }
  return false;
}

void RunFolder::create(bool with_rank_logs) const {
  std::error_code error;
  fs::create_directories(checkpoints(), error);
  if (!error && with_rank_logs) fs::create_directories(rank_logs(), error);
  if (error) {
    throw Error(concat("cannot make the run folder ", root.string(), ": ", error.message()));
  }
}

RunFolder new_run_folder(const Config& config) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  const fs::path parent = config.run.work_dir / config.run.name;
  const std::string stem = fmt::format("{:%Y%m%d_%H%M%S}-s{}", local, config.run.seed);
  fs::path root = parent / stem;
  for (int again = 2; fs::exists(root); ++again) root = parent / fmt::format("{}-{}", stem, again);
  return {root};
}

RunFolder newest_run_folder(const Config& config) {
  const std::string suffix = fmt::format("-s{}", config.run.seed);
  std::vector<fs::path> found;
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(config.run.work_dir / config.run.name, missing)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(suffix) && name.find(suffix + "-") == std::string::npos) continue;
    if (RunFolder{entry.path()}.holds_run()) found.push_back(entry.path());
  }
  if (found.empty()) return {};
  return {*std::ranges::max_element(found)};
}

}  // namespace lockstep
