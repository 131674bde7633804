// The training state of a checkpoint: a file of safetensors whose hashes are right, whatever it
// says.

#include "fuzz/fuzz.h"
#include "run/checkpoint.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static const test::FuzzFolder folder;
  static const auto weights = folder.path() / "w.safetensors";
  static const std::string pair = [] {
    SafetensorsFile file{{{"w", {"F32", {1}, std::vector<std::byte>(4)}}}, {}};
    file.metadata["lockstep.hash"] = content_hash(file);
    write_safetensors(weights, file);
    return file.metadata["lockstep.hash"];
  }();
  const auto state = folder.write("w.state.safetensors", test::text_of(data, bytes));
  test::may_complain([&] {
    SafetensorsFile file = read_safetensors(state);
    file.metadata["lockstep.pair"] = pair;
    file.metadata["lockstep.hash"] = content_hash(file);
    write_safetensors(state, file);
    load_checkpoint(weights);
  });
  return 0;
}
