// Arrays of numpy as images, as labels, and their headers.

#include "fuzz/fuzz.h"
#include "io/codec.h"
#include "io/file_bytes.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const ImageBytes file(data, bytes);
  if (!is_npy(file)) return 0;
  Image image;
  LabelMap labels;
  const FileBytes array(file);
  const ImageRule first{.bands = {0}, .nodata = 0};
  const ImageRule pixel{.part = ImagePart{1, 1, {1, 1}}};
  const LabelRule objects{.objects = true};
  test::may_complain([&] { npy_info(file, bytes, "file", {}); });
  for (const ImageRule& rule : {ImageRule{}, first, pixel})
    test::may_complain([&] { decode_npy(array, "file", rule, image); });
  test::may_complain([&] { decode_npy_mask(array, "file", {}, labels); });
  test::may_complain([&] { decode_npy_mask(array, "file", objects, labels); });
  return 0;
}
