#include "compare/statistics.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// Student's |t| of the pair's mean with the signs of some seeds flipped; 0 of one difference.
double flipped_t(const Differences& pair, const std::vector<std::uint64_t>& seeds,
                 std::size_t flips) {
  std::vector<double> values;
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    const auto found = pair.find(seeds[i]);
    if (found != pair.end())
      values.push_back((flips >> i) % 2 != 0 ? -found->second : found->second);
  }
  const MeanSpread spread = mean_spread(values);
  if (!spread.standard_deviation) return 0;
  return std::abs(spread.mean) / (*spread.standard_deviation / std::sqrt(spread.count));
}

/// step_down_p_values as the paper has it: all patterns, Student's t itself, and the maximum over
/// the pairs that are left, looked for anew for each pair.
std::vector<double> step_down_in_the_open(const std::vector<Differences>& pairs) {
  std::set<std::uint64_t> all;
  for (const Differences& pair : pairs) {
    for (const auto& [seed, difference] : pair) all.insert(seed);
  }
  const std::vector<std::uint64_t> seeds(all.begin(), all.end());
  std::vector<std::size_t> left(pairs.size());
  std::iota(left.begin(), left.end(), std::size_t{0});
  std::vector<double> p_values(pairs.size());
  double before = 0;
  while (!left.empty()) {
    const auto observed = [&](std::size_t pair) { return flipped_t(pairs[pair], seeds, 0); };
    const auto next = std::max_element(left.begin(), left.end(), [&](std::size_t a, std::size_t b) {
      return observed(a) < observed(b);
    });
    std::size_t extreme = 0;
    const std::size_t patterns = std::size_t{1} << seeds.size();
    for (std::size_t flips = 0; flips < patterns; ++flips) {
      const bool reached = std::any_of(left.begin(), left.end(), [&](std::size_t pair) {
        return flipped_t(pairs[pair], seeds, flips) >= observed(*next) * (1 - 1e-9);
      });
      if (reached) ++extreme;
    }
    before = std::max(before, static_cast<double>(extreme) / static_cast<double>(patterns));
    p_values[*next] = before;
    left.erase(next);
  }
  return p_values;
}

Differences by_seed(const std::vector<double>& values) {
  Differences differences;
  for (std::size_t seed = 0; seed < values.size(); ++seed) differences[seed] = values[seed];
  return differences;
}

std::vector<double> values_of(const Differences& differences) {
  std::vector<double> values;
  for (const auto& [seed, difference] : differences) values.push_back(difference);
  return values;
}

}  // namespace

TEST_CASE("mean and spread of a few values") {
  const std::vector<double> values{2, 4, 4, 4, 5, 5, 7, 9};
  const MeanSpread spread = mean_spread(values);
  CHECK(spread.count == 8);
  CHECK(spread.mean == doctest::Approx(5));
  CHECK(spread.standard_deviation.value() == doctest::Approx(std::sqrt(32.0 / 7)));
  CHECK_FALSE(mean_spread(std::vector<double>{3}).standard_deviation);
  CHECK(std::isnan(mean_spread({}).mean));
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

TEST_CASE("step-down: of one pair it is the sign-flip test") {
  const auto same = [](const std::vector<double>& values) {
    CAPTURE(values);
    const Differences pair = by_seed(values);
    return step_down_p_values(std::vector<Differences>{pair}).front() == sign_flip_p_value(values);
  };
  CHECK(same({1, 2, 3}));
  CHECK(same({3, 1, -1}));
  CHECK(same({-1, -2, -3, -4, -5, -6}));
  CHECK(same({4}));
  // Ties: a difference of 0 may be flipped, and so may what adds up to 0 but for rounding.
  CHECK(same({5, 5, 5, 5, 5, 0}));
  CHECK(same({0, 0}));
  CHECK(same({4, 4, 4, 4, 4, 4}));
  CHECK(same({0.1, 0.2, -0.3}));
  CHECK(same({0.1, 0.2, -0.3, 1}));
  std::mt19937 random(1);
  std::uniform_int_distribution<int> tenths(-5, 5);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<double> values(static_cast<std::size_t>(2 + repeat % 7));
    for (double& value : values) value = 0.1 * tenths(random);
    CHECK(same(values));
  }
}

TEST_CASE("step-down: six seeds settle several strong effects at once") {
  const std::vector<Differences> pairs{by_seed({3, 4, 5, 3.5, 4.5, 4}),
                                       by_seed({-9, -8, -9.5, -8.5, -9, -8}),
                                       by_seed({0.2, 0.3, 0.25, 0.2, 0.35, 0.3})};
  for (const std::optional<double>& p : step_down_p_values(pairs)) CHECK(p.value() == 2.0 / 64);
  // One that shows nothing does not hide them, and stays what it is.
  std::vector<Differences> more = pairs;
  more.insert(more.begin(), by_seed({1, -1, 2, -2, 1.5, -1}));
  const std::vector<std::optional<double>> p_values = step_down_p_values(more);
  CHECK(p_values[0].value() > 0.5);
  for (const std::size_t pair : {1U, 2U, 3U}) CHECK(p_values[pair].value() == 2.0 / 64);
}

TEST_CASE("step-down: pairs that are one are one, and the order does not matter") {
  const Differences pair = by_seed({3, -1, 2, 4, 1, -0.5});
  Differences opposite;
  for (const auto& [seed, difference] : pair) opposite[seed] = -difference;
  const double alone = sign_flip_p_value(values_of(pair)).value();
  for (const std::optional<double>& p :
       step_down_p_values(std::vector<Differences>{pair, opposite, pair})) {
    CHECK(p.value() == alone);
  }
  const Differences other = by_seed({1, 2, -1, 3, 2, 2.5});
  const auto forward = step_down_p_values(std::vector<Differences>{pair, other});
  const auto backward = step_down_p_values(std::vector<Differences>{other, pair});
  CHECK(forward[0] == backward[1]);
  CHECK(forward[1] == backward[0]);
}

TEST_CASE("of more seeds than can be enumerated patterns are drawn, always the same ones") {
  constexpr double kSmallest = 1.0 / (1 << 20);
  CHECK(smallest_p_value(kMaxExactPairs) < kSmallest);
  CHECK(smallest_p_value(kMaxExactPairs + 1) == kSmallest);
  std::vector<double> values(kMaxExactPairs + 1, 1.0);
  values[3] = 2;
  CHECK(sign_flip_p_value(values).value() == kSmallest);
  CHECK(step_down_p_values(std::vector<Differences>{by_seed(values)}).front() == kSmallest);
  // The sum of 40 signs is 12 or more, or -12 or less, in 0.0807 of all patterns.
  std::vector<double> signs(40, 1.0);
  std::fill_n(signs.begin(), 14, -1.0);
  const std::optional<double> p = sign_flip_p_value(signs);
  CHECK(p.value() == doctest::Approx(0.0807).epsilon(0.01));
  CHECK(sign_flip_p_value(signs) == p);
  const auto several = step_down_p_values(std::vector<Differences>{
      by_seed(signs), by_seed(std::vector<double>(40, 2.5)), by_seed({1, -1})});
  CHECK(several[0].value() >= *p);
  CHECK(several[1].value() == kSmallest);
}

TEST_CASE("step-down: pairs without differences have no p-value") {
  const std::vector<std::optional<double>> p_values =
      step_down_p_values(std::vector<Differences>{{}, by_seed({1, 2, 3}), {}});
  CHECK_FALSE(p_values[0]);
  CHECK(p_values[1].value() == 0.25);
  CHECK_FALSE(p_values[2]);
  CHECK(step_down_p_values({}).empty());
  CHECK_FALSE(step_down_p_values(std::vector<Differences>{{}}).front());
}

TEST_CASE("step-down: as the definition says it, also where pairs have different seeds") {
  std::mt19937 random(7);
  std::normal_distribution<double> noise;
  for (int repeat = 0; repeat < 40; ++repeat) {
    CAPTURE(repeat);
    std::vector<Differences> pairs(static_cast<std::size_t>(2 + repeat % 4));
    for (Differences& pair : pairs) {
      const double effect = 2 * noise(random);
      for (std::uint64_t seed = 0; seed < 6; ++seed) {
        const bool missing = repeat % 2 != 0 && random() % 4 == 0;
        if (!missing || pair.empty()) pair[seed] = effect + noise(random);
      }
    }
    const std::vector<std::optional<double>> p_values = step_down_p_values(pairs);
    const std::vector<double> expected = step_down_in_the_open(pairs);
    std::vector<std::pair<double, double>> by_t;  // |t|, p
    std::set<std::uint64_t> seeds;
    for (const Differences& pair : pairs) {
      for (const auto& [seed, difference] : pair) seeds.insert(seed);
    }
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      CHECK(p_values[i].value() == doctest::Approx(expected[i]).epsilon(1e-12));
      CHECK(*p_values[i] >= sign_flip_p_value(values_of(pairs[i])).value());
      by_t.emplace_back(-flipped_t(pairs[i], {seeds.begin(), seeds.end()}, 0), *p_values[i]);
    }
    std::sort(by_t.begin(), by_t.end());
    for (std::size_t i = 1; i < by_t.size(); ++i) CHECK(by_t[i].second >= by_t[i - 1].second);
  }
}

}  // namespace lockstep
