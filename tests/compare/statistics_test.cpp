#include "compare/statistics.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "lockstep/core/check.h"

namespace lockstep {

TEST_CASE("mean and spread of a few values") {
  const std::vector<double> values{2, 4, 4, 4, 5, 5, 7, 9};
  const MeanSpread spread = mean_spread(values);
  CHECK(spread.count == 8);
  CHECK(spread.mean == doctest::Approx(5));
  CHECK(spread.standard_deviation.value() == doctest::Approx(std::sqrt(32.0 / 7)));
  CHECK_FALSE(mean_spread(std::vector<double>{3}).standard_deviation);
  CHECK(std::isnan(mean_spread({}).mean));
}

TEST_CASE("percentiles lie between the nearest values") {
  const Percentiles result = percentiles(std::vector<double>{30, 10, 20, 50, 40});
  CHECK(result.median == doctest::Approx(30));
  CHECK(result.p10 == doctest::Approx(14));
  CHECK(result.p90 == doctest::Approx(46));
  CHECK(percentiles(std::vector<double>{7}).p90 == 7);
  CHECK(std::isnan(percentiles({}).median));
}

TEST_CASE("Student's t interval against published quantiles") {
  // t(0.975) is 4.30265 for 2 and 2.57058 for 5 degrees of freedom.
  const std::vector<double> three{1, 2, 3};
  const Interval interval = t_interval(three, 0.95).value();
  CHECK(interval.high - 2 == doctest::Approx(4.30265 / std::sqrt(3.0)).epsilon(1e-5));
  CHECK(2 - interval.low == doctest::Approx(interval.high - 2));
  const std::vector<double> six{-1, 1, -1, 1, -1, 1};
  const double deviation = std::sqrt(6.0 / 5);
  CHECK(t_interval(six, 0.95)->high ==
        doctest::Approx(2.57058 * deviation / std::sqrt(6.0)).epsilon(1e-5));
  CHECK_FALSE(t_interval(std::vector<double>{1}, 0.95));
  CHECK_THROWS_AS(t_interval(three, 1.0), Error);
}

TEST_CASE("the sign-flip test enumerates all patterns") {
  // All of one sign: only the observed pattern and its mirror are as extreme.
  CHECK(sign_flip_p_value(std::vector<double>{1, 2, 3}).value() == 0.25);
  CHECK(sign_flip_p_value(std::vector<double>{-1, -2, -3, -4, -5, -6}).value() == 2.0 / 64);
  // Worked by hand: |1 + 2 - 3| = 0, so every pattern counts; |3 + 1 - 1| = 3: 3+1+1, 3+1-1, 3-1+1
  // and mirrors.
  CHECK(sign_flip_p_value(std::vector<double>{1, 2, -3}).value() == 1.0);
  CHECK(sign_flip_p_value(std::vector<double>{3, 1, -1}).value() == 6.0 / 8);
  CHECK(sign_flip_p_value(std::vector<double>{0, 0}).value() == 1.0);
  CHECK_FALSE(sign_flip_p_value({}));
}

TEST_CASE("ties count although their sums round differently") {
  // 0.1 + 0.2 - 0.3 is not 0 in floating point, and depends on the order of the signs.
  CHECK(sign_flip_p_value(std::vector<double>{0.1, 0.2, -0.3}).value() == 1.0);
}

TEST_CASE("few seeds cannot reach the level, and that is known beforehand") {
  CHECK(smallest_p_value(1) == 1.0);
  CHECK(smallest_p_value(5) == 0.0625);
  CHECK(smallest_p_value(6) == 0.03125);
  CHECK(pairs_needed(0.05) == 6);
  CHECK(pairs_needed(1.0) == 1);
}

TEST_CASE("Holm's adjustment is monotone and keeps the order given") {
  const std::vector<double> adjusted = holm_adjust(std::vector<double>{0.04, 0.01, 0.03, 0.5});
  CHECK(adjusted[1] == doctest::Approx(0.04));
  CHECK(adjusted[2] == doctest::Approx(0.09));
  CHECK(adjusted[0] == doctest::Approx(0.09));  // 2 * 0.04 would be below the one before it
  CHECK(adjusted[3] == doctest::Approx(0.5));
  CHECK(holm_adjust({}).empty());
}

}  // namespace lockstep
