#pragma once
// How a training's images are normalised, said before it begins.

#include <filesystem>
#include <functional>
#include <string>

#include "config/config.h"
#include "lockstep/sync/world.h"

namespace lockstep {

/// What one run, or one measurement, says of another's images.
void take_normalization(const DataOptions& from, DataOptions& to);

/// settle_normalization (data/normalize.h) for a run: where `run` is the folder of one that has
/// begun, what that measured is kept, so that it goes on as it was whatever has become of the data.
/// Returns a sentence for people; empty: nothing was measured. Throws as settle_normalization.
std::string settle_data(Config& config, const std::filesystem::path& run = {});

/// What `settle` does to the configuration's data and returns, done by process 0, which may alone
/// have the run's folder; the others take what it found. Every process calls this.
std::string settle_by_first(Config& config, World& world,
                            const std::function<std::string()>& settle);

}  // namespace lockstep
