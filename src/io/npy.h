#pragma once
// Arrays as files that numpy.load reads.

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace lockstep {

/// Writes `values` as an array of float32, row by row (the last axis is dense): format 1.0 of
/// numpy's .npy. REQUIRES: as many values as the shape has. Throws Error when the file cannot be
/// written.
void write_npy(const std::filesystem::path& path, const std::vector<std::int64_t>& shape,
               std::span<const float> values);

}  // namespace lockstep
