#pragma once
// Training samples as the network sees them, as pictures.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "config/config.h"

namespace lockstep {

/// Writes `count` augmented training samples into `folder`, which is made: of segmentations
/// NNN_image.png, NNN_labels.png (a palette PNG) and NNN_overlay.png, of classifications
/// NNN_CLASS.png. Returns what each is a view of.
std::vector<std::string> preview_data(const Config& config, std::int64_t count,
                                      const std::filesystem::path& folder);

}  // namespace lockstep
