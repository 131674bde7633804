// Arrays of numpy as images, as labels, and their headers.

#include "fuzz/fuzz.h"
#include "io/codec.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const ImageBytes file(data, bytes);
  if (!is_npy(file)) return 0;
  Image image;
  LabelMap labels;
  const ImageRule first{.bands = {0}, .nodata = 0};
  const LabelRule objects{.objects = true};
  test::may_complain([&] { npy_info(file, bytes, "file", {}); });
  test::may_complain([&] { decode_npy(file, "file", {}, image); });
  test::may_complain([&] { decode_npy(file, "file", first, image); });
  test::may_complain([&] { decode_npy_mask(file, "file", {}, labels); });
  test::may_complain([&] { decode_npy_mask(file, "file", objects, labels); });
  return 0;
}
