#include "compare/present_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "core/json.h"
#include "lockstep/core/check.h"
#include "run/run_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// A run's configuration without what a comparison varies: mode, slices, the layers that
/// synchronize, and seed.
Config common_config(const TrainSummary& run, const Tables& tables) {
  Config config = load_config(run.run / "config.toml", {}, nullptr, tables);
  config.run.seed = 0;
  config.bn.mode = BatchNormMode::kLocal;
  config.bn.sync_layers.clear();
  config.bn.virtual_devices = 1;
  config.bn.renorm_slices = 1;
  config.batch.global = run.global_batch;
  config.batch.per_device.reset();
  return config;
}

/// Of a folder without any that is finished.
std::string why_none(const fs::path& folder) {
  if (RunFolder{folder}.holds_run())
    return ": its run has not finished, or its events.jsonl is not whole";
  const std::vector<std::string> unfinished = left_out_runs(folder);
  if (unfinished.empty())
    return " (expected a folder that `lockstep train` or `lockstep compare` made)";
  return concat("; ", unfinished.front(),
                unfinished.size() == 1 ? "" : concat("; and ", unfinished.size() - 1, " more"));
}

}  // namespace

std::vector<fs::path> finished_run_folders(const fs::path& folder) {
  if (read_summary(folder)) return {folder};
  std::vector<fs::path> inside;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && read_summary(entry.path())) inside.push_back(entry.path());
  }
  if (inside.empty()) {
    throw DataError(concat(folder.string(), " holds no finished run", why_none(folder)));
  }
  std::ranges::sort(inside);
  return inside;
}

std::vector<std::string> left_out_runs(const fs::path& folder) {
  std::vector<std::string> warnings;
  if (read_summary(folder)) return warnings;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const bool run = entry.is_directory() && RunFolder{entry.path()}.holds_run();
    if (!run || read_summary(entry.path())) continue;
    warnings.push_back(
        fmt::format("{} is left out: its run has not finished, or its events.jsonl "
                    "is not whole",
                    entry.path().string()));
  }
  std::ranges::sort(warnings);
  return warnings;
}

std::vector<FailedRun> failed_runs(const fs::path& folder) {
  const fs::path path = folder / "comparison.json";
  std::vector<FailedRun> failed;
  std::error_code unknown;
  if (!fs::exists(path, unknown)) return failed;
  try {
    std::ifstream file(path);
    const Json written = Json::parse(file);
    for (const Json& run : written.at("failed"))
      failed.push_back({run.at("mode"), run.at("seed"), run.at("error")});
  } catch (const Json::exception& error) {
    throw DataError(concat(path.string(), ": damaged: ", error.what(),
                           "; remove it, and `lockstep compare` writes it again"));
  }
  return failed;
}

std::vector<std::string> config_differences(const std::vector<TrainSummary>& runs,
                                            const Tables& tables) {
  std::vector<std::string> warnings;
  const Config first = common_config(runs.front(), tables);
  for (const TrainSummary& run : runs) {
    Config here = common_config(run, tables);
    const bool same_data = !run.data_hash.empty() && run.data_hash == runs.front().data_hash;
    if (same_data) here.data.root = first.data.root;
    const std::string difference = config_difference(first, here);
    if (difference.empty()) continue;
    warnings.push_back(
        fmt::format("the configurations of {} (there) and {} (here) differ in more than mode and "
                    "seed: {}",
                    runs.front().run.string(), run.run.string(), difference));
  }
  return warnings;
}

}  // namespace lockstep
