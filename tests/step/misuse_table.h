#pragma once
// A table of wrong arguments, each of which must be an exception whose text says something.

#include <doctest/doctest.h>

#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "support/devices.h"
#include "support/errors.h"

namespace lockstep::test {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

struct Misuse {
  const char* what;
  std::function<void()> make;
};

inline void check_throw(const std::vector<Misuse>& all) {
  for (const Misuse& misuse : all) {
    CAPTURE(std::string(misuse.what));
    std::exception_ptr thrown;
    try {
      misuse.make();
    } catch (...) {
      thrown = std::current_exception();
    }
    CHECK(is_a<std::exception>(thrown));
    CHECK(text_of(thrown).size() > 10);
  }
}

/// A network that is there.
struct Built {
  std::unique_ptr<Backend> backend = cpu(1);
  ParameterStore store;
  std::unique_ptr<Network> network;

  explicit Built(bool training = true) {
    NetworkBuilder net(*backend, store);
    Value* x = net.input({2, 8, 8, 4});
    network =
        net.build(net.conv2d(x, "c", {.out_channels = 3, .bias = true}), {.training = training});
  }
};

}  // namespace lockstep::test
