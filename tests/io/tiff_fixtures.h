#pragma once
// TIFFs of 16 bits in every layout.

#include <tiffio.h>

#include <cstdint>
#include <filesystem>
#include <functional>

#include "lockstep/io/image.h"

namespace lockstep {

/// How a TIFF lies in its file, and what its tags say.
struct TiffLayout {
  const char* name = "";
  std::uint32_t tile = 0;  // 0: strips
  std::uint32_t strip = 1;
  std::uint16_t planes = PLANARCONFIG_CONTIG;
  std::uint16_t compression = COMPRESSION_LZW;
  std::uint16_t orientation = ORIENTATION_TOPLEFT;
  const char* nodata = nullptr;
  std::uint32_t missing = 0;  // blocks whose number is a multiple of it are not in the file
};

using TiffSamples =
    std::function<std::uint16_t(std::uint32_t y, std::uint32_t x, std::uint16_t channel)>;

/// Tells where it belongs.
std::uint16_t sample_of(std::uint32_t y, std::uint32_t x, std::uint16_t channel);

void write_tiff(const std::filesystem::path& path, Size size, std::uint16_t channels,
                const TiffLayout& layout, const TiffSamples& samples = sample_of);

}  // namespace lockstep
