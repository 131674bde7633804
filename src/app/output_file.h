#pragma once
// Where a command writes to, as -o and its like say it.

#include <filesystem>
#include <span>
#include <string>

namespace lockstep {

/// Throws ConfigError where `output` is no file that could be written: its folder is not there, it
/// is a folder itself, or what it would destroy cannot be had again: one of `inputs`, or a file
/// that a run or a comparison has written for itself. `option` is how the user said it.
void check_output_file(const std::string& option, const std::filesystem::path& output,
                       std::span<const std::filesystem::path> inputs = {});

/// As write_file_atomically (io/atomic_file.h); what is no regular file, such as /dev/stdout,
/// is written to as it is. Throws Error naming the file and the cause.
void write_output(const std::filesystem::path& output, const std::string& bytes);

}  // namespace lockstep
