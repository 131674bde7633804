// Files of safetensors: what is read can be written and read again.

#include "fuzz/fuzz.h"
#include "lockstep/io/weights.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static const test::FuzzFolder folder;
  const auto path = folder.write("w.safetensors", test::text_of(data, bytes));
  test::may_complain([&] {
    const SafetensorsFile file = read_safetensors(path);
    write_safetensors(path, file);
    if (read_safetensors(path).tensors.size() != file.tensors.size()) std::abort();
  });
  return 0;
}
