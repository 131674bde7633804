// What a user reads where the machine, not the program, is at fault.

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <utility>

#include "cuda/fake_runtime.h"
#include "kernels/cuda_backend.h"
#include "kernels/device/device.h"
#include "lockstep/core/check.h"
#include "lockstep/cuda.h"

namespace lockstep::gpu {
namespace {

TEST_CASE("a driver that is too old is not a machine without a GPU") {
  register_cuda();
  fake_runtime::use({.devices = 1, .count_error = cudaErrorInsufficientDriver, .driver = 12040});
  CHECK(device_count() == 0);
  const char* text =
      "NVIDIA's driver is too old: it is for CUDA 12.4, and this build is for 13.0; "
      "install a driver for CUDA 13.0 or newer";
  CHECK_THROWS_WITH_AS(parse_devices("cuda:0"), doctest::Contains(text), Error);
  CHECK_THROWS_WITH_AS(parse_devices("cuda:all"), doctest::Contains(text), Error);
  CHECK_THROWS_WITH_AS(CudaBackend({DeviceKind::kCuda, 0, 0}), doctest::Contains(text), Error);
  CHECK_THROWS_AS(parse_devices("cuda:zero"), ConfigError);
  CHECK(parse_devices("cpu:2").size() == 2);
}

TEST_CASE("a driver whose parts differ is told") {
  fake_runtime::use({.devices = 1, .count_error = cudaErrorSystemDriverMismatch});
  CHECK_THROWS_WITH_AS(parse_devices("cuda:0"), doctest::Contains("restart the machine"), Error);
}

TEST_CASE("without a driver, or without a GPU, no device answers") {
  for (const auto& [error, driver] :
       {std::pair{int{cudaErrorInsufficientDriver}, 0}, std::pair{int{cudaErrorNoDevice}, 13000}}) {
    fake_runtime::use({.devices = 0, .count_error = error, .driver = driver});
    CHECK(why_no_device().empty());
    CHECK_THROWS_WITH_AS(parse_devices("cuda:0"), doctest::Contains("0 CUDA devices answer"),
                         Error);
  }
}

TEST_CASE("a machine whose fabric manager does not run says what to start") {
  fake_runtime::use({.devices = 8, .count_error = cudaErrorSystemNotReady});
  CHECK_THROWS_WITH_AS(device_count(), doctest::Contains("systemctl start nvidia-fabricmanager"),
                       Error);
}

}  // namespace
}  // namespace lockstep::gpu
