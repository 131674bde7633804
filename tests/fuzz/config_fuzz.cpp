// A configuration and, behind zero bytes, settings of the command line (key=value). What is
// accepted means the same when it has been written down and read again.

#include "config/config.h"
#include "fuzz/fuzz.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static const test::FuzzFolder folder;
  const auto parts = test::parts_of(test::text_of(data, bytes));
  const auto path = folder.write("c.toml", parts.front());
  const std::vector<std::string> settings(parts.begin() + 1, parts.end());
  test::may_complain([&] {
    const Config config = load_config(path, settings);
    const auto again = folder.write("again.toml", to_toml(config));
    if (to_toml(load_config(again, {})) != to_toml(config)) std::abort();
  });
  return 0;
}
