#pragma once
// Statistics of a paired comparison over a few seeds. The rule: differences are taken seed by seed,
// never between means of unpaired runs, and a p-value is given beside the smallest one that so few
// seeds can reach.

#include <cstdint>
#include <map>
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

/// Confidence interval of a mean.
struct Interval {
  double low = 0, high = 0;
};

/// Student's t interval of the mean; none below two values. `confidence` in (0, 1).
std::optional<Interval> t_interval(std::span<const double> values, double confidence);

/// Up to this many differences the sign-flip test enumerates all sign patterns. Of more it takes
/// the differences as they are and 2^20 - 1 patterns drawn at random, always the same ones: a Monte
/// Carlo permutation test (Phipson and Smyth 2010, "Permutation p-values should never be zero").
constexpr int kMaxExactPairs = 24;

/// Two-sided sign-flip (paired permutation) test that the differences are symmetric about 0: the
/// share of the sign patterns whose |sum| is at least the observed one (Fisher 1935, "The Design of
/// Experiments", section 21). None for no differences.
std::optional<double> sign_flip_p_value(std::span<const double> differences);

/// The smallest p-value that the test can give for `pairs` differences: 2 / 2^n, at most 1; where
/// patterns are drawn, 1 / 2^20.
double smallest_p_value(int pairs);

/// The fewest pairs whose smallest p-value is at or below `level` (level 0.05: 6).
int pairs_needed(double level);

/// Differences of one pair, seed by seed.
using Differences = std::map<std::uint64_t, double>;  // [seed]

/// P-values of several pairs that are tested together, in the order given: step-down with the
/// largest |t| under joint sign flips of whole seeds (Westfall and Young 1993, "Resampling-based
/// multiple testing", algorithm 4.1; Romano and Wolf 2005). They hold the level for all pairs at
/// once as Holm's do, and know that pairs share runs: six seeds can show several differences. Of
/// one pair it is sign_flip_p_value. None for pairs without differences.
std::vector<std::optional<double>> step_down_p_values(std::span<const Differences> pairs);

}  // namespace lockstep
