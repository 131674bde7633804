#pragma once
// How a training's images are normalised, said before it begins.

#include <filesystem>
#include <string>

#include "config/config.h"

namespace lockstep {

/// settle_normalization (data/normalize.h) for a run: where `run` is the folder of one that has
/// begun, what that measured is kept, so that it goes on as it was whatever has become of the data.
/// Returns a sentence for people; empty: nothing was measured. Throws as settle_normalization.
std::string settle_data(Config& config, const std::filesystem::path& run = {});

}  // namespace lockstep
