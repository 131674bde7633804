#pragma once
// What a file of weights is, by what it begins with and not by its name.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace lockstep {

enum class WeightFileKind : std::uint8_t {
  kSafetensors,
  kZip,        // torch.save's since PyTorch 1.6
  kLegacyPth,  // torch.save's before, and with _use_new_zipfile_serialization=False
  kOther,
};

/// So many bytes of a file (fewer where it has not got them) tell what it is.
constexpr std::size_t kKindBytes = 512;

WeightFileKind kind_of(std::span<const std::byte> head);
/// Throws DataError naming the file when there is none.
WeightFileKind weight_file_kind(const std::filesystem::path& path);

/// What came instead of weights, and what to do: "a Git LFS pointer, ...: run git lfs pull".
std::string describe_content(std::span<const std::byte> head);

}  // namespace lockstep
