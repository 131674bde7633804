// The sets of CPU kernels in a program, and the choice of one.

#include "backend/cpu_kernels.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "lockstep/core/check.h"

namespace lockstep::test {

TEST_CASE("the kernels of a process are one set, for all that it computes") {
  const std::string chosen = cpu_kernels().name;
  CHECK_NOTHROW(use_cpu_kernels(chosen));
  for (const CpuKernels& kernels : usable_cpu_kernels()) {
    if (kernels.name == chosen) continue;
    CAPTURE(kernels.name);
    std::string error;
    try {
      use_cpu_kernels(kernels.name);
    } catch (const ConfigError& thrown) {
      error = thrown.what();
    }
    CHECK(error.find("'" + chosen + "'") != std::string::npos);
    CHECK(error.find("LOCKSTEP_CPU=" + kernels.name) != std::string::npos);
  }
  CHECK(cpu_kernels().name == chosen);
  CHECK_THROWS_AS(use_cpu_kernels("sse2"), ConfigError);
}

TEST_CASE("kernels of AVX2 refuse a process in which oneDNN has used more") {
  make_backend(Device{}, 1);
  if (cpu_kernels().conv_machine().empty() || cpu_kernels().name != "avx512") return;
  for (const CpuKernels& kernels : usable_cpu_kernels()) {
    if (kernels.name == "avx512") continue;
    CAPTURE(kernels.name);
    CHECK_THROWS_AS(kernels.make_backend(Device{}, 1, {}), Error);
  }
}

TEST_CASE("the fastest kernels are the last that the processor can run") {
  const auto& usable = usable_cpu_kernels();
  REQUIRE_FALSE(usable.empty());
  CHECK_FALSE(usable.back().fixed_convolutions);
  if (std::getenv("LOCKSTEP_CPU") == nullptr) CHECK(cpu_kernels().name == usable.back().name);
  for (const CpuKernels& kernels : usable) CHECK(kernels.multiply_add(1000) >= 2 * 12 * 4 * 1000);
}

}  // namespace lockstep::test
