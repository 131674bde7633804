// JPEG as an image, and its size.

#include "fuzz/fuzz.h"
#include "io/codec.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const ImageBytes file(data, bytes);
  if (!is_jpeg(file)) return 0;
  Image image;
  test::may_complain([&] { jpeg_info(file, "file"); });
  test::may_complain([&] { decode_jpeg(file, "file", {}, image); });
  return 0;
}
