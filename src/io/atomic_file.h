#pragma once
// Replacing a file in one piece. What is no plain file is written through (io/written_file.h).

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// Writes `bytes` beside `path`, syncs file and directory, and renames. Throws Error; `path` is
/// then untouched.
void write_file_atomically(const std::filesystem::path& path, const std::string& bytes);

/// The same of parts one after another, which need not be joined in memory.
void write_parts_atomically(const std::filesystem::path& path,
                            std::span<const std::string_view> parts);

/// The same without waiting for the disk, for files that can be made again.
void write_parts(const std::filesystem::path& path, std::span<const std::string_view> parts);

}  // namespace lockstep
