#include "report/page/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep {
namespace {

double round_step(double span, int wanted) {
  const double raw = span / std::max(1, wanted);
  const double decade = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * decade >= raw * 0.999) return factor * decade;
  }
  return 10 * decade;
}

void widen_if_empty(double& min, double& max) {
  if (!std::isfinite(min) || !std::isfinite(max)) min = 0, max = 1;
  if (max > min) return;
  const double half = min == 0 ? 0.5 : std::abs(min) * 0.1;
  min -= half, max += half;
}

std::vector<double> multiples(double low, double high, double step) {
  std::vector<double> ticks;
  const auto first = static_cast<long long>(std::ceil(low / step - 1e-9));
  const auto last = static_cast<long long>(std::floor(high / step + 1e-9));
  for (long long i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

// 3 / 10 is 0.3; 3 * 0.1 is not.
double scaled(double factor, double decade) {
  return decade < 0 ? factor / std::pow(10, -decade) : factor * std::pow(10, decade);
}

std::vector<double> boundaries_down_from(double most, const std::vector<double>& factors) {
  const double decade = std::floor(std::log10(most));
  std::vector<double> boundaries;
  for (double d = decade; boundaries.size() < kHeatLevels - 1; --d) {
    for (auto factor = factors.rbegin(); factor != factors.rend(); ++factor) {
      const double boundary = scaled(*factor, d);
      if (boundary < most && boundaries.size() < kHeatLevels - 1) boundaries.push_back(boundary);
    }
  }
  std::ranges::reverse(boundaries);
  return boundaries;
}

}  // namespace

double Axis::at(double value) const {
  if (logarithmic) {
    return (std::log10(value) - std::log10(low)) / (std::log10(high) - std::log10(low));
  }
  return (value - low) / (high - low);
}

std::string Axis::label(std::size_t tick) const {
  return labels.empty() ? tick_label(ticks[tick]) : labels[tick];
}

Axis linear_axis(double min, double max, int wanted) {
  widen_if_empty(min, max);
  const double step = round_step(max - min, wanted);
  Axis axis;
  axis.low = std::floor(min / step + 1e-9) * step;
  axis.high = std::ceil(max / step - 1e-9) * step;
  axis.ticks = multiples(axis.low, axis.high, step);
  return axis;
}

Axis exact_axis(double min, double max, int wanted) {
  widen_if_empty(min, max);
  return {min, max, false, multiples(min, max, round_step(max - min, wanted))};
}

Axis log_axis(double min, double max) {
  Axis axis;
  axis.logarithmic = true;
  const double first = std::floor(std::log10(min)), last = std::ceil(std::log10(max));
  const bool few = last - first <= 2;
  const int stride = static_cast<int>(std::ceil((last - first) / 6));
  for (double decade = first; decade <= last; decade += few ? 1 : std::max(1, stride)) {
    axis.ticks.push_back(std::pow(10, decade));
    if (!few || decade == last) continue;
    axis.ticks.push_back(2 * std::pow(10, decade));
    axis.ticks.push_back(5 * std::pow(10, decade));
  }
  // The ends are the ticks next to the data.
  const auto above =
      std::ranges::find_if(axis.ticks, [&](double tick) { return tick >= max * 0.999; });
  if (above != axis.ticks.end()) axis.ticks.erase(above + 1, axis.ticks.end());
  while (axis.ticks.size() > 2 && axis.ticks[1] <= min * 1.001) {
    axis.ticks.erase(axis.ticks.begin());
  }
  axis.low = axis.ticks.front();
  axis.high = std::max(axis.ticks.back(), max);
  if (!(axis.high > axis.low)) axis.high = axis.low * 10;
  return axis;
}

Axis factor_axis(std::vector<double> values) {
  const auto [low, high] = std::ranges::minmax_element(values);
  // Marks at the ends stay clear of the frame.
  return {*low / 1.2, *high * 1.2, true, std::move(values)};
}

Axis column_axis(const std::vector<double>& columns) {
  Axis axis{0, static_cast<double>(columns.size())};
  const std::size_t stride = std::max<std::size_t>(1, (columns.size() + 4) / 5);
  for (std::size_t c = 0; c < columns.size(); c += stride) {
    axis.ticks.push_back(static_cast<double>(c) + 0.5);
    axis.labels.push_back(tick_label(columns[c]));
  }
  return axis;
}

std::string tick_label(double value) {
  if (std::abs(value) < 1e-12) return "0";
  const double size = std::abs(value);
  std::string text =
      size >= 1e-4 && size < 1e7 ? fmt::format("{:.6g}", value) : fmt::format("{:.3g}", value);
  if (text.starts_with('-')) text.replace(0, 1, "−");
  return text;
}

int HeatLevels::of(double value) const {
  return static_cast<int>(std::ranges::upper_bound(boundaries, value) - boundaries.begin());
}

HeatLevels levels_for(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value) || value <= 0; });
  if (values.empty()) values.push_back(1);
  std::ranges::sort(values);
  const double most = values.back(), low = values[values.size() / 20];
  // The finest series that reaches down to nearly all values.
  std::vector<double> boundaries;
  for (const std::vector<double>& factors :
       {std::vector<double>{1, 1.5, 2, 3, 5, 7}, {1, 2, 5}, {1, 3}}) {
    boundaries = boundaries_down_from(most, factors);
    if (boundaries.front() <= 2 * low) break;
  }
  return {boundaries};
}

}  // namespace lockstep
