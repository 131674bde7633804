#include "lockstep/core/shape.h"

#include <doctest/doctest.h>

#include "lockstep/core/check.h"

namespace lockstep {

TEST_CASE("rows and channels of every rank") {
  CHECK(Shape{8, 10}.rows() == 8);
  CHECK(Shape{8, 5, 10}.rows() == 40);
  CHECK(Shape{8, 3, 4, 10}.rows() == 96);
  CHECK(Shape{8, 2, 3, 4, 10}.rows() == 192);
  CHECK(Shape{8, 2, 3, 4, 10}.rows_per_sample() == 24);
  CHECK(Shape{8, 2, 3, 4, 10}.channels() == 10);
  CHECK(Shape{0, 3, 4, 10}.elements() == 0);
  CHECK(Shape{}.elements() == 0);
}

TEST_CASE("shapes print and refuse nonsense") {
  CHECK(to_string(Shape{1, 2, 3}) == "[1, 2, 3]");
  CHECK(Shape{4, 2}.with_batch(1) == Shape{1, 2});
  CHECK(Shape{4, 2}.with_channels(7) == Shape{4, 7});
  CHECK_THROWS_AS((Shape{1, -1}), Error);
  CHECK_THROWS_AS((Shape{1, 1, 1, 1, 1, 1}), Error);
}

}  // namespace lockstep
