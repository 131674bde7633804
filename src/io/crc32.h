#pragma once
// The checksum of zip archives.

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

/// CRC-32 (ISO 3309: polynomial 0xEDB88320, reflected).
std::uint32_t crc32(std::span<const std::byte> bytes);

}  // namespace lockstep
