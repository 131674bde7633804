// Numbers in bf16 on the CPU, one by one and in vectors.

#include "backend/bfloat16.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>

#include "backend/cpu/vec.h"
#include "support/storage_type.h"

namespace lockstep::test {
namespace {

/// Every number in bf16, halfway to the next one, and about that.
constexpr std::uint32_t kRests[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};

}  // namespace

TEST_CASE("vectors round to bf16 as numbers do: to the nearest, ties to even, NaN stays NaN") {
  for (std::uint32_t upper = 0; upper < 0x10000U; ++upper) {
    for (const std::uint32_t rest : kRests) {
      const auto value = std::bit_cast<float>(upper << 16 | rest);
      BFloat16 one;
      one = value;
      BFloat16 several[vec::kLanes];
      vec::store(several, vec::broadcast(value));
      REQUIRE(several[vec::kLanes - 1].bits == one.bits);
      const vec::Floats back = vec::load(several);
      if (std::isnan(value)) {
        REQUIRE(std::isnan(static_cast<float>(one)));
      } else {
        REQUIRE(static_cast<float>(one) == stored(DType::kBFloat16, value));
        REQUIRE(back[0] == static_cast<float>(one));
      }
    }
  }
}

}  // namespace lockstep::test
