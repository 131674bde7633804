#pragma once
// What a training takes from its training split before it begins: how images are normalised, and
// the weights of its classes.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "lockstep/sync/world.h"

namespace lockstep {

/// What one run, or one measurement, says of another's images and classes.
void take_settled(const Config& from, Config& to);

/// `weights` [class] wherever a loss asks for balanced ones.
void fill_balanced(const std::vector<float>& weights, Config& config);

/// settle_normalization (data/normalize.h) for a run, and median frequency balancing
/// (data/data_check.h) for the losses that ask for it; where `run` is the folder of one that has
/// begun, what that measured is kept, so that it goes on as it was whatever has become of the data.
/// Returns a sentence for people; empty: nothing was measured. Throws as settle_normalization, and
/// DataError for a sample that cannot be read.
std::string settle_data(Config& config, const std::filesystem::path& run = {});

/// What `settle` does to the configuration and returns, done by process 0, which may alone have the
/// run's folder; the others take what it found. Every process calls this.
std::string settle_by_first(Config& config, World& world,
                            const std::function<std::string()>& settle);

}  // namespace lockstep
