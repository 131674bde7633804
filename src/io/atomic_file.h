#pragma once
// Replacing a file in one piece, from parts that need not be joined in memory.

#include <filesystem>
#include <span>
#include <string_view>

namespace lockstep {

/// As write_file_atomically (weights.h), for the parts one after another.
void write_parts_atomically(const std::filesystem::path& path,
                            std::span<const std::string_view> parts);

}  // namespace lockstep
