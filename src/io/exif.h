#pragma once
// Which way a viewer turns an image before it shows it: EXIF's tag Orientation, which cameras write
// into a JPEG (a segment APP1) and programs into a PNG (a chunk eXIf). Nothing of a file is
// believed: what is damaged says nothing, and the image stays as it is.

#include "io/codec.h"
#include "lockstep/io/image.h"

namespace lockstep {

/// How an image is turned: first its rows and its columns are reversed, then the two change places.
struct Turn {
  bool rows_reversed = false, columns_reversed = false, transposed = false;

  bool turns() const { return rows_reversed || columns_reversed || transposed; }
  Size size_of(Size stored) const {
    return transposed ? Size{stored.width, stored.height} : stored;
  }
  friend bool operator==(const Turn&, const Turn&) = default;
};

/// Bytes at either end of a file in which EXIF is looked for first: so much of a large one is read
/// where only its size is asked for.
constexpr std::size_t kExifReach = 65536;

/// An EXIF block in a file, and whether enough of the file was there to know that.
struct FoundExif {
  ImageBytes block;  // empty: none
  bool certain = true;
};

/// Of a JPEG, or its first bytes: the first one before the pixels.
FoundExif find_jpeg_exif(ImageBytes file);
/// Of a PNG's first and last bytes, where the pixels begin in the first ones.
FoundExif find_png_exif(ImageBytes head, ImageBytes tail);
/// What a value of the tag says; of none it is nothing.
Turn turn_of_orientation(std::uint32_t value);
/// What an EXIF block says.
Turn turn_of(ImageBytes exif);
/// What a whole file says, JPEG or PNG.
Turn turn_of_file(ImageBytes file);

/// Turns what a file stores to what a viewer shows.
void turn(const Turn& turn, Image& image);
void turn(const Turn& turn, LabelMap& labels);

}  // namespace lockstep
