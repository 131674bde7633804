#pragma once
// Tags that libtiff does not know: where an image lies, and what is not there.

#include <tiffio.h>

#include <array>
#include <cstdint>

namespace lockstep {

constexpr std::uint32_t kNodataTag = 42113;   // GDAL's, a text
constexpr std::uint32_t kGeoTextTag = 34737;  // GeoAsciiParams

// GeoTIFF's, OGC 19-008r4: ModelPixelScale, ModelTiepoint, ModelTransformation, GeoKeyDirectory,
// GeoDoubleParams, GeoAsciiParams; then GDAL's.
inline constexpr std::array<TIFFFieldInfo, 7> kCarriedTags{{
    {33550, -1, -1, TIFF_DOUBLE, FIELD_CUSTOM, 1, 1, const_cast<char*>("ModelPixelScale")},
    {33922, -1, -1, TIFF_DOUBLE, FIELD_CUSTOM, 1, 1, const_cast<char*>("ModelTiepoint")},
    {34264, -1, -1, TIFF_DOUBLE, FIELD_CUSTOM, 1, 1, const_cast<char*>("ModelTransformation")},
    {34735, -1, -1, TIFF_SHORT, FIELD_CUSTOM, 1, 1, const_cast<char*>("GeoKeyDirectory")},
    {34736, -1, -1, TIFF_DOUBLE, FIELD_CUSTOM, 1, 1, const_cast<char*>("GeoDoubleParams")},
    {kGeoTextTag, -1, -1, TIFF_ASCII, FIELD_CUSTOM, 1, 0, const_cast<char*>("GeoAsciiParams")},
    {kNodataTag, -1, -1, TIFF_ASCII, FIELD_CUSTOM, 1, 0, const_cast<char*>("GDAL_NODATA")},
}};

}  // namespace lockstep
