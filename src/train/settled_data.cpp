#include "train/settled_data.h"

#include "core/json.h"
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
  take_normalization(known, data);
  return true;
}

Json packed(const DataOptions& data, const std::string& said) {
  Json packed{{"said", said}, {"mean", data.mean}, {"std", data.std}};
  if (data.normalize) packed["normalize"] = *data.normalize;
  if (data.pixels) packed["pixels"] = *data.pixels;
  return packed;
}

std::string unpack(const Json& packed, DataOptions& data) {
  data.mean = packed.at("mean").get<std::vector<float>>();
  data.std = packed.at("std").get<std::vector<float>>();
  if (packed.contains("normalize")) data.normalize = packed.at("normalize").get<Normalization>();
  if (packed.contains("pixels")) data.pixels = packed.at("pixels").get<PixelType>();
  return packed.at("said").get<std::string>();
}

}  // namespace

void take_normalization(const DataOptions& from, DataOptions& to) {
  to.normalize = from.normalize;
  to.pixels = from.pixels;
  to.mean = from.mean;
  to.std = from.std;
}

std::string settle_data(Config& config, const std::filesystem::path& run) {
  return take_from_run(run, config) ? "" : settle_normalization(config.data, config.run.seed);
}

std::string settle_by_first(Config& config, World& world,
                            const std::function<std::string()>& settle) {
  std::string said;
  const std::string found = world.from_first([&] {
    said = settle();
    return packed(config.data, said).dump();
  });
  return world.first() ? said : unpack(Json::parse(found), config.data);
}

}  // namespace lockstep
