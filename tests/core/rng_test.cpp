#include "core/rng.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

namespace lockstep {

TEST_CASE("a stream is a function of its four coordinates") {
  const auto draw = [](std::uint64_t seed, RngPurpose purpose, std::uint64_t index,
                       std::uint32_t sub) {
    Rng rng(seed, purpose, index, sub);
    return std::vector<std::uint32_t>{rng.next_u32(), rng.next_u32(), rng.next_u32(),
                                      rng.next_u32(), rng.next_u32()};
  };
  const auto base = draw(1, RngPurpose::kTest, 2, 3);
  CHECK(base == draw(1, RngPurpose::kTest, 2, 3));
  const std::set<std::vector<std::uint32_t>> streams = {
      base, draw(2, RngPurpose::kTest, 2, 3), draw(1, RngPurpose::kShuffle, 2, 3),
      draw(1, RngPurpose::kTest, 1ULL << 32, 3), draw(1, RngPurpose::kTest, 2, 4)};
  CHECK(streams.size() == 5);
}

TEST_CASE("normal numbers have mean 0 and variance 1") {
  Rng rng(5, RngPurpose::kTest, 0);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 100'000;
  for (int i = 0; i < kCount; ++i) {
    const double x = static_cast<double>(rng.normal());
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / kCount) < 0.02);
  CHECK(std::abs(squares / kCount - 1) < 0.02);
}

TEST_CASE("below stays below and reaches every value") {
  Rng rng(7, RngPurpose::kTest, 0);
  std::vector<int> seen(7, 0);
  for (int i = 0; i < 7000; ++i) ++seen[rng.below(7)];
  for (const int count : seen) CHECK(count > 800);
}

}  // namespace lockstep
