#pragma once
// The two image formats, decoding from memory. `name` is the file's, for messages. All throw
// DataError.

#include <cstdint>
#include <span>
#include <string>

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
MaskKind decode_png_mask(ImageBytes file, const std::string& name, LabelMap& labels,
                         Image& colored);

}  // namespace lockstep
