#pragma once
// Which layers synchronize where a configuration says bn.sync_layers = "top:K": the K whose
// statistics differ most from device to device, by a diagnosis of the weights that the training
// starts from. Nothing is trained to find them. The same configuration, seed and weights choose the
// same layers.

#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"
#include "lockstep/sync/world.h"
#include "train/trainer.h"

namespace lockstep {

/// All layers that take statistics in training, in the order of layers_apart with one image per
/// device. `devices`: DEVICES, of which the first is used; empty: the default. `init`: as
/// TrainRequest. Throws as diagnose.
std::vector<std::string> rank_layers(const Config& config, const std::string& devices,
                                     const std::filesystem::path& init = {});

/// The first `top` of them. Throws ConfigError, which begins with `asked`, where there are fewer.
std::vector<std::string> first_layers(const std::vector<std::string>& ranking, int top,
                                      const std::string& asked);

/// The configuration with names in the place of "top:K"; as it is where it says something else, or
/// its mode does not mind. Every process calls it; process 0 ranks for all.
Config with_sync_layers(Config config, const std::string& devices,
                        const std::filesystem::path& init = {}, World& world = World::alone());
/// The same for a training, which tells how many they are.
TrainRequest with_sync_layers(TrainRequest request);

}  // namespace lockstep
