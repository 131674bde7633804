#include "core/words.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "core/percentiles.h"

namespace lockstep {
namespace {

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("words: a count, names in a sentence, and no more of them than are read") {
  CHECK(count_of(0, "seed") == "0 seeds");
  CHECK(count_of(1, "seed") == "1 seed");
  CHECK(enumerated(Names{}).empty());
  CHECK(enumerated(Names{"a"}) == "a");
  CHECK(enumerated(Names{"a", "b"}) == "a and b");
  CHECK(enumerated(Names{"a", "b", "c"}) == "a, b and c");
  CHECK(enumerated(std::vector<int>{1, 2, 4}) == "1, 2 and 4");
  CHECK(joined(Names{}).empty());
  CHECK(joined(Names{"a", "b"}, 2) == "a, b");
  CHECK(joined(Names{"a", "b", "c", "d"}, 2) == "a, b and 2 more");
}

TEST_CASE("percentiles lie between the nearest values") {
  const Percentiles result = percentiles(std::vector<double>{30, 10, 20, 50, 40});
  CHECK(result.median == doctest::Approx(30));
  CHECK(result.p10 == doctest::Approx(14));
  CHECK(result.p90 == doctest::Approx(46));
  CHECK(percentiles(std::vector<double>{3, 1}).median == 2);
  CHECK(percentiles(std::vector<double>{7}).p90 == 7);
  CHECK(std::isnan(percentiles({}).median));
}

}  // namespace lockstep
