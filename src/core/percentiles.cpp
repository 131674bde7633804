#include "core/percentiles.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace lockstep {

Percentiles percentiles(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
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

}  // namespace lockstep
