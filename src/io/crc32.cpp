#include "io/crc32.h"

#include <zlib.h>

namespace lockstep {

std::uint32_t crc32(std::span<const std::byte> bytes) {
  const uLong start = ::crc32_z(0, nullptr, 0);
  return static_cast<std::uint32_t>(
      ::crc32_z(start, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace lockstep
