// The pickle of a file of torch.save, which no checksum guards here, and the tensors that it
// describes.

#include "fuzz/fuzz.h"
#include "io/pth_pickle.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  test::may_complain([&] {
    const Pickle pickle(std::as_bytes(std::span(data, bytes)));
    // A file holds its storages.
    const auto read = [&](const PickleValue& storage) {
      constexpr std::uint64_t kMost = 1 << 16;
      const std::uint64_t elements = static_cast<std::uint64_t>(storage.integer);
      if (elements > kMost) throw DataError("cut off");
      return std::vector<std::byte>(elements * storage.type->bytes);
    };
    read_model_tensors(pickle.root(), bytes, read);
  });
  return 0;
}
