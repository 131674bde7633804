#include "compare/statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <numeric>

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

Percentiles percentiles(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](double share) {
    if (sorted.empty()) return std::numeric_limits<double>::quiet_NaN();
    const double position = share * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(position);
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] +
           (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
  };
  return {static_cast<int>(values.size()), at(0.1), at(0.5), at(0.9)};
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

std::optional<double> sign_flip_p_value(std::span<const double> differences) {
  const auto n = static_cast<int>(differences.size());
  if (n == 0 || n > kMaxExactPairs) return std::nullopt;
  double observed = 0;
  double magnitude = 0;
  for (const double difference : differences) {
    observed += difference;
    magnitude += std::abs(difference);
  }
  // Patterns that tie with the observed one must count although their sums round differently.
  const double threshold = std::abs(observed) - 1e-9 * magnitude;
  std::int64_t extreme = 0;
  const std::int64_t patterns = std::int64_t{1} << n;
  for (std::int64_t pattern = 0; pattern < patterns; ++pattern) {
    double sum = 0;
    for (int i = 0; i < n; ++i) {
      const double difference = differences[static_cast<std::size_t>(i)];
      sum += ((pattern >> i) & 1) != 0 ? -difference : difference;
    }
    if (std::abs(sum) >= threshold) ++extreme;
  }
  return static_cast<double>(extreme) / static_cast<double>(patterns);
}

double smallest_p_value(int pairs) { return std::min(1.0, std::ldexp(2.0, -pairs)); }

int pairs_needed(double level) {
  LOCKSTEP_CHECK(level > 0, "a level is positive, got ", level);
  int pairs = 1;
  while (smallest_p_value(pairs) > level) ++pairs;
  return pairs;
}

std::vector<double> holm_adjust(std::span<const double> p_values) {
  std::vector<std::size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return p_values[a] < p_values[b]; });
  std::vector<double> adjusted(p_values.size());
  double running = 0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const auto factor = static_cast<double>(order.size() - rank);
    running = std::max(running, std::min(1.0, factor * p_values[order[rank]]));
    adjusted[order[rank]] = running;
  }
  return adjusted;
}

}  // namespace lockstep
