// EXIF's orientation: of a block, of the segments of a JPEG and of the chunks of a PNG, and images
// that are turned by it.

#include "fuzz/fuzz.h"
#include "io/exif.h"

using namespace lockstep;

namespace {

void check_turn(const Turn& shown) {
  constexpr Size kStored{2, 3};
  LabelMap labels{kStored.height, kStored.width, {0, 1, 2, 3, 4, 5}};
  turn(shown, labels);
  const Size size = shown.size_of(kStored);
  if (labels.height != size.height || labels.width != size.width) std::abort();
  unsigned seen = 0;
  for (const Label label : labels.pixels) seen |= 1U << label;
  if (labels.pixels.size() != 6 || seen != 0x3F) std::abort();  // every pixel once
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const ImageBytes file(data, bytes);
  check_turn(turn_of(file));
  check_turn(turn_of_file(file));
  check_turn(turn_of(find_jpeg_exif(file).block));
  check_turn(turn_of(find_png_exif(file.first(bytes / 2), file.last(bytes / 2)).block));
  return 0;
}
