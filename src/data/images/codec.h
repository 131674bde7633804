#pragma once
// The two image formats, decoding from memory. `name` is the file's, for messages. All throw
// DataError.

#include <cstdint>
#include <span>
#include <string>

#include "data/images/image_io.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

/// Throws for a size that only a damaged header claims, before memory is asked for.
void check_image_size(Size size, const std::string& name);

using FileBytes = std::span<const std::uint8_t>;

bool is_jpeg(FileBytes file);
bool is_png(FileBytes file);

Size jpeg_size(FileBytes file, const std::string& name);
void decode_jpeg(FileBytes file, const std::string& name, Image& image);

/// Works on the first 24 bytes of a file too.
Size png_size(FileBytes file, const std::string& name);
void decode_png(FileBytes file, const std::string& name, Image& image);
MaskKind decode_png_mask(FileBytes file, const std::string& name, LabelMap& labels, Image& colored);

}  // namespace lockstep
