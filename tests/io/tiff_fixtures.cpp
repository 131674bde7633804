#include "io/tiff_fixtures.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "io/tiff_tags.h"

namespace lockstep {
namespace {

/// A block of the file: of all channels, or of one.
struct Block {
  std::uint32_t y, x, height, width;
  std::uint16_t first, channels;
};

std::vector<std::uint16_t> samples_in(const Block& block, const TiffSamples& samples) {
  std::vector<std::uint16_t> values;
  for (std::uint32_t y = block.y; y < block.y + block.height; ++y) {
    for (std::uint32_t x = block.x; x < block.x + block.width; ++x) {
      for (std::uint16_t c = 0; c < block.channels; ++c)
        values.push_back(samples(y, x, static_cast<std::uint16_t>(block.first + c)));
    }
  }
  return values;
}

void set_tags(TIFF* tiff, Size size, std::uint16_t channels, const TiffLayout& layout) {
  TIFFSetField(tiff, TIFFTAG_IMAGEWIDTH, size.width);
  TIFFSetField(tiff, TIFFTAG_IMAGELENGTH, size.height);
  TIFFSetField(tiff, TIFFTAG_SAMPLESPERPIXEL, channels);
  TIFFSetField(tiff, TIFFTAG_BITSPERSAMPLE, 16);
  TIFFSetField(tiff, TIFFTAG_PHOTOMETRIC, PHOTOMETRIC_MINISBLACK);
  TIFFSetField(tiff, TIFFTAG_PLANARCONFIG, layout.planes);
  TIFFSetField(tiff, TIFFTAG_COMPRESSION, layout.compression);
  TIFFSetField(tiff, TIFFTAG_ORIENTATION, layout.orientation);
  TIFFMergeFieldInfo(tiff, kCarriedTags.data(), kCarriedTags.size());
  if (layout.nodata != nullptr) TIFFSetField(tiff, kNodataTag, layout.nodata);
  if (layout.tile > 0) {
    TIFFSetField(tiff, TIFFTAG_TILEWIDTH, layout.tile);
    TIFFSetField(tiff, TIFFTAG_TILELENGTH, layout.tile);
  } else {
    TIFFSetField(tiff, TIFFTAG_ROWSPERSTRIP, layout.strip);
  }
}

}  // namespace

std::uint16_t sample_of(std::uint32_t y, std::uint32_t x, std::uint16_t channel) {
  return static_cast<std::uint16_t>(1 + (y * 131 + x * 7 + channel * 5003U) % 60000);
}

void write_tiff(const std::filesystem::path& path, Size size, std::uint16_t channels,
                const TiffLayout& layout, const TiffSamples& samples) {
  TIFF* const tiff = TIFFOpen(path.c_str(), "w");
  REQUIRE(tiff != nullptr);
  set_tags(tiff, size, channels, layout);
  std::uint32_t number = 0;  // of the next block
  const bool tiled = layout.tile > 0, planar = layout.planes == PLANARCONFIG_SEPARATE;
  const auto height = static_cast<std::uint32_t>(size.height);
  const auto width = static_cast<std::uint32_t>(size.width);
  const std::uint32_t rows = tiled ? layout.tile : layout.strip;
  const std::uint32_t columns = tiled ? layout.tile : width;
  REQUIRE(TIFFWriteCheck(tiff, tiled, "") == 1);  // also where no block is written
  for (std::uint16_t plane = 0; plane < (planar ? channels : 1); ++plane) {
    for (std::uint32_t y = 0; y < height; y += rows) {
      for (std::uint32_t x = 0; x < width; x += columns) {
        if (layout.missing > 0 && number++ % layout.missing == 0) continue;
        const std::uint32_t count = tiled ? rows : std::min(rows, height - y);
        const Block block{y, x, count, columns, plane, planar ? std::uint16_t{1} : channels};
        std::vector<std::uint16_t> values = samples_in(block, samples);
        const auto bytes = static_cast<tmsize_t>(values.size() * 2);
        const tmsize_t written =
            tiled ? TIFFWriteEncodedTile(tiff, TIFFComputeTile(tiff, x, y, 0, plane), values.data(),
                                         bytes)
                  : TIFFWriteEncodedStrip(tiff, TIFFComputeStrip(tiff, y, plane), values.data(),
                                          bytes);
        REQUIRE(written == bytes);
      }
    }
  }
  TIFFClose(tiff);
}

}  // namespace lockstep
