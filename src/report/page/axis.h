#pragma once
// Axes with round ticks, and levels with round boundaries.

#include <string>
#include <vector>

namespace lockstep {

struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;
  std::vector<double> ticks = {};        // within [low, high]
  std::vector<std::string> labels = {};  // of the ticks; empty: their numbers

  /// 0 at `low` to 1 at `high`.
  double at(double value) const;
  std::string label(std::size_t tick) const;
};

/// Covers [min, max] with about `wanted` round ticks; the ends are ticks. An empty or not finite
/// range becomes one around it.
Axis linear_axis(double min, double max, int wanted);
/// As it is, from `min` to `max`: ticks lie where they fall. For steps, which begin and end
/// anywhere.
Axis exact_axis(double min, double max, int wanted);
/// Decades over positive values; between few of them also 2 and 5.
Axis log_axis(double min, double max);
/// With a tick at each of the positive values, which are apart by factors: 1, 2, 4, 8.
Axis factor_axis(std::vector<double> values);
/// With a tick for one of every few columns, named by the column's value, below its middle.
Axis column_axis(const std::vector<double>& columns);

/// The shortest text that tells a tick from its neighbours: "0.05", "1200", "1e-06".
std::string tick_label(double value);

/// Levels of a ramp of colours.
constexpr int kHeatLevels = 8;

/// Where the levels of a ramp begin: values below the first boundary are of the lowest.
struct HeatLevels {
  std::vector<double> boundaries;  // kHeatLevels - 1, ascending

  int of(double value) const;
};

/// Round boundaries up to the largest value: six, three or two per decade, by how far the values
/// span. The same levels for all maps that are to be compared.
HeatLevels levels_for(std::vector<double> values);

}  // namespace lockstep
