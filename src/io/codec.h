#pragma once
// The two image formats, decoding from memory. `name` is the file's, for messages. All throw
// DataError.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/image_io.h"
#include "lockstep/io/image.h"

namespace lockstep {

/// Throws for a size that only a damaged header claims, before memory is asked for.
void check_image_size(Size size, const std::string& name);

using ImageBytes = std::span<const std::uint8_t>;

bool is_jpeg(ImageBytes file);
bool is_png(ImageBytes file);

Size jpeg_size(ImageBytes file, const std::string& name);
void decode_jpeg(ImageBytes file, const std::string& name, Image& image);

/// Works on the first 24 bytes of a file too.
Size png_size(ImageBytes file, const std::string& name);
void decode_png(ImageBytes file, const std::string& name, Image& image);
/// What the header says: bits per channel, and whether values are indices of a palette.
struct PngValues {
  int bits = 0;
  bool indexed = false;
};
/// Works on the first 26 bytes of a file too.
PngValues png_values(ImageBytes file);
std::vector<Color> png_palette(ImageBytes file, const std::string& name);
/// REQUIRES: 16 bits.
int largest_png_value(ImageBytes file, const std::string& name);
MaskKind decode_png_mask(ImageBytes file, const std::string& name, LabelMap& labels,
                         Image& colored);

}  // namespace lockstep
