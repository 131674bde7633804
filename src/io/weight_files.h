#pragma once
// What a file of weights is, by what it begins with and not by its name, and its numbers as the
// fp32 that parameters are.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/io/weights.h"

namespace lockstep {

enum class WeightFileKind : std::uint8_t {
  kSafetensors,
  kZip,        // torch.save's since PyTorch 1.6
  kLegacyPth,  // torch.save's before, and with _use_new_zipfile_serialization=False
  kOther,
};

/// The bytes of the file that write_safetensors writes.
std::string safetensors_bytes(const SafetensorsFile& file);

/// So many bytes of a file (fewer where it has not got them) tell what it is.
constexpr std::size_t kKindBytes = 512;

WeightFileKind kind_of(std::span<const std::byte> head);
/// Throws DataError naming the file when there is none.
WeightFileKind weight_file_kind(const std::filesystem::path& path);

/// What came instead of weights, and what to do: "a Git LFS pointer, ...: run git lfs pull".
std::string describe_content(std::span<const std::byte> head);

/// Bytes of an element of the types that `to_floats` takes ("F32", "F16", "BF16", "F64"); 0 for
/// others.
std::size_t float_bytes(std::string_view dtype);

/// 1 sign, 5 exponent and 10 fraction bits. Every value is one of fp32, NaN's bits included.
float from_float16(std::uint16_t bits);

/// The values; those of F64 rounded to the nearest. REQUIRES: float_bytes, whole elements.
std::vector<float> to_floats(const HostTensor& tensor);

/// The one whole number of a tensor of any type of numbers, as PyTorch counts batches and averages;
/// an average of counts is rounded. Nullopt for another type, several elements and no number.
std::optional<std::int64_t> to_count(const HostTensor& tensor);

}  // namespace lockstep
