#include "compare/statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "core/rng.h"
#include "lockstep/core/check.h"

namespace lockstep {

MeanSpread mean_spread(std::span<const double> values) {
  MeanSpread result;
  result.count = static_cast<int>(values.size());
  if (values.empty()) {
    result.mean = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  const auto n = static_cast<double>(values.size());
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  if (values.size() >= 2) {
    double squares = 0;
    for (const double value : values) squares += (value - result.mean) * (value - result.mean);
    result.standard_deviation = std::sqrt(squares / (n - 1));
  }
  return result;
}

std::optional<Interval> t_interval(std::span<const double> values, double confidence) {
  LOCKSTEP_CHECK(confidence > 0 && confidence < 1, "a confidence lies in (0, 1), got ", confidence);
  const MeanSpread spread = mean_spread(values);
  if (!spread.standard_deviation) return std::nullopt;
  const boost::math::students_t distribution(spread.count - 1);
  const double t = boost::math::quantile(distribution, 0.5 + confidence / 2);
  const double half = t * *spread.standard_deviation / std::sqrt(spread.count);
  return Interval{spread.mean - half, spread.mean + half};
}

namespace {

constexpr std::int64_t kDrawnPatterns = std::int64_t{1} << 20;

/// A bit for each difference, set where its sign is changed.
using SignFlips = std::vector<std::uint32_t>;

double flipped(double value, const SignFlips& flips, std::size_t i) {
  return ((flips[i / 32] >> (i % 32)) & 1) != 0 ? -value : value;
}

/// Returns how many patterns `visit` was given; the first one changes no sign.
template <typename Visit>
std::int64_t for_each_sign_pattern(std::size_t count, const Visit& visit) {
  SignFlips flips(count / 32 + 1);
  if (count <= static_cast<std::size_t>(kMaxExactPairs)) {
    // A pattern and its opposite give the same |sum|: half of them will do.
    const std::uint32_t patterns = std::uint32_t{1} << (count - 1);
    for (; flips[0] < patterns; ++flips[0]) visit(flips);
    return patterns;
  }
  Rng rng(0, RngPurpose::kSignFlip, 0);
  for (std::int64_t drawn = 0; drawn < kDrawnPatterns; ++drawn) {
    visit(flips);
    for (std::uint32_t& word : flips) word = rng.next_u32();
  }
  return kDrawnPatterns;
}

}  // namespace

std::optional<double> sign_flip_p_value(std::span<const double> differences) {
  if (differences.empty()) return std::nullopt;
  double observed = 0;
  double magnitude = 0;
  for (const double difference : differences) {
    observed += difference;
    magnitude += std::abs(difference);
  }
  // Patterns that tie with the observed one must count although their sums round differently.
  const double threshold = std::abs(observed) - 1e-9 * magnitude;
  std::int64_t extreme = 0;
  const std::int64_t patterns = for_each_sign_pattern(differences.size(), [&](const auto& flips) {
    double sum = 0;
    for (std::size_t i = 0; i < differences.size(); ++i) sum += flipped(differences[i], flips, i);
    if (std::abs(sum) >= threshold) ++extreme;
  });
  return static_cast<double>(extreme) / static_cast<double>(patterns);
}

double smallest_p_value(int pairs) {
  return pairs > kMaxExactPairs ? 1.0 / static_cast<double>(kDrawnPatterns)
                                : std::min(1.0, std::ldexp(2.0, -pairs));
}

int pairs_needed(double level) {
  LOCKSTEP_CHECK(level > 0, "a level is positive, got ", level);
  int pairs = 1;
  while (smallest_p_value(pairs) > level) ++pairs;
  return pairs;
}

namespace {

/// (n - 1) r^2 / (1 - r^2), which grows with |t|, of a pair under flips of its seeds: t^2 of a mean
/// depends on the signs through the sum alone.
class FlippedPair {
 public:
  FlippedPair(const Differences& differences, const std::vector<std::uint64_t>& seeds) {
    for (const std::uint64_t seed : seeds) {
      const auto found = differences.find(seed);
      values_.push_back(found == differences.end() ? 0 : found->second);
    }
    count_ = static_cast<double>(differences.size());
    for (const double value : values_) squares_ += value * value;
  }

  double statistic(const SignFlips& flips) const {
    double sum = 0;
    for (std::size_t i = 0; i < values_.size(); ++i) sum += flipped(values_[i], flips, i);
    if (squares_ == 0) return 0;
    const double share = std::min(1.0, sum * sum / (count_ * squares_));
    return (count_ - 1) * share / std::max(1 - share, 1e-12);
  }

 private:
  std::vector<double> values_;  // [seed of all]; 0 where the pair has none
  double count_ = 0, squares_ = 0;
};

}  // namespace

std::vector<std::optional<double>> step_down_p_values(std::span<const Differences> pairs) {
  std::set<std::uint64_t> all;
  for (const Differences& pair : pairs) {
    for (const auto& [seed, difference] : pair) all.insert(seed);
  }
  std::vector<std::optional<double>> p_values(pairs.size());
  if (all.empty()) return p_values;
  const std::vector<std::uint64_t> seeds(all.begin(), all.end());
  std::vector<FlippedPair> flipped;
  std::vector<double> observed;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const FlippedPair& pair = flipped.emplace_back(pairs[i], seeds);
    observed.push_back(pair.statistic(SignFlips(seeds.size() / 32 + 1)));
    if (!pairs[i].empty()) order.push_back(i);
  }
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t pair) { return observed[pair]; });
  // As in sign_flip_p_value: ties count although their sums round differently, those to 0, too.
  std::vector<double> thresholds;
  for (const double statistic : observed) thresholds.push_back(statistic * (1 - 1e-9) - 1e-12);
  std::vector<std::int64_t> extreme(pairs.size());
  const std::int64_t patterns = for_each_sign_pattern(seeds.size(), [&](const SignFlips& flips) {
    double largest = 0;  // of the pairs from the least significant one on
    for (std::size_t rank = order.size(); rank-- > 0;) {
      largest = std::max(largest, flipped[order[rank]].statistic(flips));
      if (largest >= thresholds[order[rank]]) ++extreme[order[rank]];
    }
  });
  double running = 0;
  for (const std::size_t pair : order) {
    running = std::max(running, static_cast<double>(extreme[pair]) / static_cast<double>(patterns));
    p_values[pair] = running;
  }
  return p_values;
}

}  // namespace lockstep
