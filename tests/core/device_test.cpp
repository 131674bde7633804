#include "lockstep/core/device.h"

#include <doctest/doctest.h>

#include <string>
#include <tuple>
#include <vector>

#include "lockstep/core/check.h"

namespace lockstep {

TEST_CASE("every accepted form of DEVICES") {
  CHECK(parse_devices("cpu", 0) == std::vector<Device>{{DeviceKind::kCpu, 0, 0}});
  CHECK(parse_devices("cpu:3", 0).size() == 3);
  CHECK(parse_devices("cpu:3", 0)[2] == Device{DeviceKind::kCpu, 2, 0});
  CHECK(parse_devices("cuda:1,3", 4) ==
        std::vector<Device>{{DeviceKind::kCuda, 1, 0}, {DeviceKind::kCuda, 3, 0}});
  CHECK(parse_devices("cuda:0x2", 1) ==
        std::vector<Device>{{DeviceKind::kCuda, 0, 0}, {DeviceKind::kCuda, 0, 1}});
  CHECK(parse_devices("cuda:all", 2).size() == 2);
}

TEST_CASE("what DEVICES rejects") {
  for (const char* text : {"cpu:0", "cpu:x", "cpu:-1", "tpu:1", "", "cuda:", "cpu:1000"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(parse_devices(text, 0), ConfigError);
  }
  CHECK_THROWS_WITH_AS(parse_devices("cuda:0,0", 1), doctest::Contains("listed twice"),
                       ConfigError);
}

TEST_CASE("a GPU that is not there is a failure, not a usage error") {
  const std::vector<std::tuple<const char*, int, const char*>> cases{
      {"cuda:5", 2, "2 CUDA devices answer"},
      {"cuda:0", 0, "0 CUDA devices answer"},
      {"cuda:all", 0, "cuda:0 is not there"}};
  for (const auto& [text, count, message] : cases) {
    try {
      parse_devices(text, count);
      FAIL("accepted " << text);
    } catch (const ConfigError&) {
      FAIL("a usage error for " << text);
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find(message) != std::string::npos);
    }
  }
}

TEST_CASE("devices print as they are written") {
  CHECK(to_string(Device{DeviceKind::kCpu, 2, 0}) == "cpu:2");
  CHECK(to_string(Device{DeviceKind::kCuda, 0, 1}) == "cuda:0#1");
}

}  // namespace lockstep
