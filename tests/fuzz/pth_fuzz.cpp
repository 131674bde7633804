// Files of weights by what they begin with: zip archives of torch.save and the format before them.

#include "fuzz/fuzz.h"
#include "lockstep/io/weights.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static const test::FuzzFolder folder;
  const auto path = folder.write("w.pth", test::text_of(data, bytes));
  test::may_complain([&] { load_weights(path); });
  return 0;
}
