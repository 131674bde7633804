#pragma once
// Statistics of a paired comparison over a few seeds. The rule: differences are taken seed by seed,
// never between means of unpaired runs, and a p-value is given beside the smallest one that so few
// seeds can reach.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace lockstep {

struct MeanSpread {
  int count = 0;
  double mean = 0;                           // NaN without values
  std::optional<double> standard_deviation;  // of the sample (n - 1); none below two values
};

MeanSpread mean_spread(std::span<const double> values);

/// For times, whose spread is skewed.
struct Percentiles {
  int count = 0;
  double p10 = 0, median = 0, p90 = 0;  // linear between the two nearest values; NaN without values
};

Percentiles percentiles(std::span<const double> values);

/// Confidence interval of a mean.
struct Interval {
  double low = 0, high = 0;
};

/// Student's t interval of the mean; none below two values. `confidence` in (0, 1).
std::optional<Interval> t_interval(std::span<const double> values, double confidence);

/// Up to this many differences the sign-flip test enumerates all sign patterns.
constexpr int kMaxExactPairs = 24;

/// Exact two-sided sign-flip (paired permutation) test that the differences are symmetric about 0:
/// the share of the 2^n sign patterns whose |sum| is at least the observed one (Fisher 1935, "The
/// Design of Experiments", section 21). None for no differences or more than kMaxExactPairs.
std::optional<double> sign_flip_p_value(std::span<const double> differences);

/// The smallest p-value that the test can give for `pairs` differences: 2 / 2^n, at most 1.
double smallest_p_value(int pairs);

/// The fewest pairs whose smallest p-value is at or below `level` (level 0.05: 6).
int pairs_needed(double level);

/// Adjusts p-values for testing all of them (Holm 1979): monotone, at most 1, in the order given.
std::vector<double> holm_adjust(std::span<const double> p_values);

}  // namespace lockstep
