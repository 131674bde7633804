#pragma once
// Axes with round ticks.

#include <string>
#include <vector>

namespace lockstep {

struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;
  std::vector<double> ticks;  // within [low, high]

  /// 0 at `low` to 1 at `high`.
  double at(double value) const;
};

/// Covers [min, max] with about `wanted` round ticks; the ends are ticks. An empty or not finite
/// range becomes one around it.
Axis linear_axis(double min, double max, int wanted);
/// As it is, from `min` to `max`: ticks lie where they fall. For steps, which begin and end
/// anywhere.
Axis exact_axis(double min, double max, int wanted);
/// Decades over positive values; between few of them also 2 and 5.
Axis log_axis(double min, double max);

/// The shortest text that tells a tick from its neighbours: "0.05", "1200", "1e-06".
std::string tick_label(double value);

}  // namespace lockstep
