// Division by multiplication, and the runs of images that keep indices within its reach.

#include "kernels/primitives/divisor.h"

#include <doctest/doctest.h>

#include <random>
#include <utility>
#include <vector>

#include "kernels/primitives/index_runs.h"

namespace lockstep::test {
namespace {

std::vector<std::int64_t> divisors() {
  std::vector<std::int64_t> all = {3, 5, 6, 7, 9, 11, 641, 65537, 1000003, gpu::kMaxItems - 1};
  for (int bits = 0; bits < 31; ++bits) {
    const std::int64_t power = std::int64_t{1} << bits;
    all.push_back(power);
    if (power > 2) all.push_back(power - 1);
    all.push_back(power + 1);
  }
  all.push_back(gpu::kMaxItems);
  return all;
}

TEST_CASE("a Divisor divides every dividend below 2^31") {
  std::mt19937 random(1);
  for (const std::int64_t d : divisors()) {
    const gpu::Divisor divisor(d);
    const auto right = [&](std::int64_t n) {
      if (n < 0 || n > gpu::kMaxItems) return true;
      return std::int64_t{static_cast<std::int32_t>(n) / divisor} == n / d;
    };
    CAPTURE(d);
    for (std::int64_t n = 0; n < 100; ++n) REQUIRE((right(n) && right(gpu::kMaxItems - n)));
    for (int i = 0; i < 2000; ++i) {
      const std::int64_t multiple = random() % (gpu::kMaxItems / d + 1) * d;
      REQUIRE((right(multiple - 1) && right(multiple) && right(multiple + 1)));
      REQUIRE(right(random() % (gpu::kMaxItems + 1)));
    }
  }
  CHECK(7 / gpu::Divisor() == 7);
}

TEST_CASE("a Divisor refuses what 31 bits cannot hold") {
  for (const std::int64_t d : {std::int64_t{0}, std::int64_t{-1}, gpu::kMaxItems + 1}) {
    CHECK_THROWS_AS(gpu::Divisor{d}, Error);
  }
}

using Runs = std::vector<std::pair<std::int64_t, std::int64_t>>;

Runs row_runs(std::int64_t rows, std::int64_t packs) {
  Runs runs;
  gpu::for_row_runs("copy", rows, packs, [&](std::int64_t first, std::int64_t count) {
    runs.emplace_back(first, count);
  });
  return runs;
}

TEST_CASE("rows fall into runs whose packs 31 bits count") {
  CHECK(row_runs(7, 3) == Runs{{0, 7}});
  CHECK(row_runs(7, 0) == Runs{});
  CHECK(row_runs(gpu::kMaxItems, 1) == Runs{{0, gpu::kMaxItems}});
  CHECK(row_runs(gpu::kMaxItems + 1, 1) == Runs{{0, gpu::kMaxItems}, {gpu::kMaxItems, 1}});
  CHECK(row_runs(5, std::int64_t{1} << 30) == Runs{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}});
  CHECK(row_runs(2, gpu::kMaxItems) == Runs{{0, 1}, {1, 1}});
  CHECK_THROWS_WITH_AS(row_runs(1, gpu::kMaxItems + 1),
                       doctest::Contains("copy: expected rows of at most 2147483647 packs"), Error);
}

Runs runs_of(const Shape& from, const Shape& to, int width) {
  const Tensor source(nullptr, from), target(nullptr, to);
  Runs runs;
  gpu::for_image_runs("pool", width, {&source, &target},
                      [&](std::int64_t n, std::int64_t count) { runs.emplace_back(n, count); });
  return runs;
}

TEST_CASE("batches fall into runs whose packs 31 bits count") {
  CHECK(runs_of({5, 8, 8, 4}, {5, 4, 4, 4}, 4) == Runs{{0, 5}});
  CHECK(runs_of({0, 8, 8, 4}, {0, 4, 4, 4}, 4) == Runs{});
  const Shape small{5, 2, 2, 4}, image{5, 32768, 32768, 4};  // an image has 2^30 packs of 4
  CHECK(runs_of(small, image, 4) == Runs{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}});
  CHECK(runs_of({5, 32768, 16384, 4}, small, 4) == Runs{{0, 3}, {3, 2}});  // the source's, too
  CHECK(runs_of({1, 1, 0x7fffffff, 1}, {1, 1, 1, 1}, 1) == Runs{{0, 1}});
  CHECK_THROWS_WITH_AS(runs_of(image, small, 1),
                       doctest::Contains("pool: expected images of at most 2147483647 packs"),
                       Error);
}

}  // namespace
}  // namespace lockstep::test
