#include "train/settled_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "core/json.h"
#include "data/data_check.h"
#include "data/normalize.h"
#include "lockstep/core/check.h"
#include "run/run_folder.h"

namespace lockstep {
namespace {

/// The configuration of the run in the folder, where it can be read: whoever needs the run says
/// what is wrong with it.
std::optional<Config> known_config(const std::filesystem::path& run, const Tables& tables) {
  const std::filesystem::path file = RunFolder{run}.config();
  std::error_code unreadable;
  if (run.empty() || !std::filesystem::exists(file, unreadable)) return std::nullopt;
  try {
    return load_config(file, {}, nullptr, tables);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Whether `known` had measured what `data` would be.
bool measured_for(const PixelOptions& known, const PixelOptions& data) {
  const bool measured = known.normalize == Normalization::kDataset && known.pixels;
  const bool asked = !data.normalize || data.normalize == Normalization::kDataset;
  return measured && asked && known.channels == data.channels && known.bands == data.bands;
}

template <typename Use>
void with_balanced(Config& config, Use use) {
  for (LossOptions& loss : config.losses) {
    with_class_weights(loss, [&](const char*, ClassWeights& weights) {
      if (weights.balanced) use(weights);
    });
  }
}

std::vector<float> balanced_weights(Config config) {
  std::vector<float> found;
  with_balanced(config, [&](const ClassWeights& weights) { found = weights; });
  return found;
}

bool lacks_balanced(Config& config) {
  bool lacks = false;
  with_balanced(config, [&](const ClassWeights& weights) { lacks = lacks || weights.empty(); });
  return lacks;
}

std::string measure_balanced(Config& config) {
  const auto train = make_dataset(config.data, Split::kTrain, config.run.seed);
  const SplitReport split = examine_split(*train, config.data, Split::kTrain,
                                          sample_evenly(*train, 0), config.data.workers);
  if (!split.broken.empty()) throw DataError(split.broken.front());
  const std::vector<double> weights = median_frequency_weights(split);
  fill_balanced({weights.begin(), weights.end()}, config);
  return fmt::format("class weights, balanced over {} images: [{:.4g}]", train->size(),
                     fmt::join(weights, ", "));
}

Json packed(const Config& config, const std::string& said) {
  const PixelOptions& data = config.data;
  Json packed{{"said", said},
              {"mean", data.mean},
              {"std", data.std},
              {"weights", balanced_weights(config)}};
  if (data.normalize) packed["normalize"] = *data.normalize;
  if (data.pixels) packed["pixels"] = *data.pixels;
  return packed;
}

std::string unpack(const Json& packed, Config& config) {
  PixelOptions& data = config.data;
  data.mean = packed.at("mean").get<std::vector<float>>();
  data.std = packed.at("std").get<std::vector<float>>();
  if (packed.contains("normalize")) data.normalize = packed.at("normalize").get<Normalization>();
  if (packed.contains("pixels")) data.pixels = packed.at("pixels").get<PixelType>();
  fill_balanced(packed.at("weights").get<std::vector<float>>(), config);
  return packed.at("said").get<std::string>();
}

void take_normalization(const PixelOptions& from, PixelOptions& to) {
  to.normalize = from.normalize;
  to.pixels = from.pixels;
  to.mean = from.mean;
  to.std = from.std;
}

}  // namespace

void fill_balanced(const std::vector<float>& weights, Config& config) {
  with_balanced(config,
                [&](ClassWeights& of_loss) { of_loss.assign(weights.begin(), weights.end()); });
}

void take_settled(const Config& from, Config& to) {
  take_normalization(from.data, to.data);
  fill_balanced(balanced_weights(from), to);
}

std::string settle_data(Config& config, const std::filesystem::path& run) {
  const bool measures = !config.data.pixels || lacks_balanced(config);
  if (const auto known = measures ? known_config(run, *config.tables) : std::nullopt) {
    if (!config.data.pixels && measured_for(known->data, config.data))
      take_normalization(known->data, config.data);
    fill_balanced(balanced_weights(*known), config);
  }
  std::string said = settle_normalization(config.data, config.run.seed);
  if (lacks_balanced(config)) said += (said.empty() ? "" : "; ") + measure_balanced(config);
  return said;
}

std::string settle_by_first(Config& config, World& world,
                            const std::function<std::string()>& settle) {
  std::string said;
  const std::string found = world.from_first([&] {
    said = settle();
    return packed(config, said).dump();
  });
  return world.first() ? said : unpack(Json::parse(found), config);
}

}  // namespace lockstep
