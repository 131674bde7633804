// TIFF as an image of three channels, of one and of another's, as labels, and its header.

#include "fuzz/fuzz.h"
#include "io/codec.h"
#include "io/file_bytes.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  FileBytes file{ImageBytes(data, bytes)};
  Image image;
  LabelMap labels;
  const ImageRule first{.bands = {0}};
  const ImageRule pixel{.part = ImagePart{1, 1, {1, 1}}};
  test::may_complain([&] { tiff_info(file, "file", {}); });
  for (const ImageRule& rule : {ImageRule{}, first, pixel})
    test::may_complain([&] { decode_tiff(file, "file", rule, image); });
  test::may_complain([&] { decode_tiff_mask(file, "file", {}, labels, image); });
  return 0;
}
