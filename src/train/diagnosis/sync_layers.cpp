#include "train/diagnosis/sync_layers.h"

#include <limits>
#include <utility>

#include "core/json.h"
#include "lockstep/core/check.h"
#include "train/diagnosis/diagnosis.h"

namespace lockstep {

std::vector<std::string> rank_layers(const Config& config, const std::string& devices,
                                     const std::filesystem::path& init) {
  const Diagnosis diagnosis =
      diagnose({.config = config, .weights = init, .device = devices, .images_per_device = {1}});
  return layers_apart(diagnosis, std::numeric_limits<std::size_t>::max());
}

std::vector<std::string> first_layers(const std::vector<std::string>& ranking, int top,
                                      const std::string& asked) {
  const std::size_t count = ranking.size();
  if (top >= 1 && static_cast<std::size_t>(top) <= count) {
    return {ranking.begin(), ranking.begin() + top};
  }
  if (count == 0) {
    throw ConfigError(concat(asked,
                             ": no layer of this network takes statistics of several images ",
                             "in training, so that none can synchronize; leave it out"));
  }
  throw ConfigError(concat(asked, ": the network has ", count, " layers that take statistics in ",
                           "training; choose a number from 1 to ", count));
}

Config with_sync_layers(Config config, const std::string& devices,
                        const std::filesystem::path& init, World& world) {
  const std::optional<int> top = config.bn.sync_top();
  if (!top || !config.bn.synchronizes()) return config;
  const std::string names = world.from_first([&] {
    return Json(first_layers(rank_layers(config, devices, init), *top,
                             concat("bn.sync_layers = \"", config.bn.sync_layers.front(), "\"")))
        .dump();
  });
  config.bn.sync_layers = Json::parse(names).get<std::vector<std::string>>();
  return config;
}

TrainRequest with_sync_layers(TrainRequest request) {
  const BatchNormConfig& bn = request.config.bn;
  if (bn.synchronizes()) request.cell.sync_top = bn.sync_top().value_or(request.cell.sync_top);
  request.config =
      with_sync_layers(std::move(request.config), request.devices, request.init, request.world);
  return request;
}

}  // namespace lockstep
