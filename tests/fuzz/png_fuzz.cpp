// PNG as an image, as labels, and as much of it as its size needs.

#include "fuzz/fuzz.h"
#include "io/codec.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const ImageBytes file(data, bytes);
  if (!is_png(file)) return 0;
  Image image;
  LabelMap labels;
  test::may_complain([&] { png_info(file, "file"); });
  const ImageRule first{.bands = {0}};
  const ImageRule pixel{.part = ImagePart{1, 1, {1, 1}}};
  for (const ImageRule& rule : {ImageRule{}, first, pixel})
    test::may_complain([&] { decode_png(file, "file", rule, image); });
  test::may_complain([&] { decode_png_mask(file, "file", {}, labels, image); });
  return 0;
}
