#include "train/settled_data.h"

#include "data/normalize.h"
#include "lockstep/core/check.h"
#include "run/run_folder.h"

namespace lockstep {
namespace {

/// Whether the run in the folder had measured what this one would.
bool take_from_run(const std::filesystem::path& run, Config& config) {
  const std::filesystem::path file = RunFolder{run}.config();
  std::error_code unreadable;
  if (run.empty() || config.data.pixels || !std::filesystem::exists(file, unreadable)) return false;
  DataOptions known;
  try {
    known = load_config(file, {}, nullptr, *config.tables).data;
  } catch (const Error&) {
    return false;  // whoever needs the run says what is wrong with it
  }
  DataOptions& data = config.data;
  const bool measured = known.normalize == Normalization::kDataset && known.pixels;
  const bool asked = !data.normalize || data.normalize == Normalization::kDataset;
  if (!measured || !asked || known.channels != data.channels || known.bands != data.bands) {
    return false;
  }
  data.normalize = known.normalize;
  data.pixels = known.pixels;
  data.mean = known.mean;
  data.std = known.std;
  return true;
}

}  // namespace

std::string settle_data(Config& config, const std::filesystem::path& run) {
  return take_from_run(run, config) ? "" : settle_normalization(config.data, config.run.seed);
}

}  // namespace lockstep
