// The self-test on GPUs of the fake runtime, as `lockstep selftest -d cuda:...` runs it on real
// ones.

#include <doctest/doctest.h>

#include "checks/checks.h"
#include "cuda/fake_runtime.h"
#include "cuda/tf32_problems.h"
#include "lockstep/cuda.h"

namespace lockstep::test {
namespace {

void check_all(const std::vector<Device>& devices) {
  int rows = 0;
  for (const SelftestCheck& check : selftest_checks({devices})) {
    CAPTURE(check.group);
    CAPTURE(check.name);
    const SelftestOutcome outcome = run_check(check);
    CAPTURE(outcome.trouble);
    CAPTURE(outcome.measured.relative.value_or(0));
    CHECK(outcome.ok);
    ++rows;
  }
  CHECK(rows > 70);
}

TEST_CASE("selftest: every check is ok on GPUs") {
  fake_runtime::use({.devices = 2});
  const std::int64_t rounded = tf32_problems();
  check_all({{DeviceKind::kCuda, 0, 0}, {DeviceKind::kCuda, 1, 0}});
  CHECK(tf32_problems() == rounded);  // its tolerances are those of fp32
}

}  // namespace
}  // namespace lockstep::test
