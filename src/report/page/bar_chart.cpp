#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/page/frame.h"
#include "report/page/rows_chart.h"
#include "report/page/style.h"

namespace lockstep {
namespace {

constexpr double kBar = 8, kGap = 7;

double deviation(const Bar& bar) { return bar.spread.standard_deviation.value_or(0); }

double end_of(const BarChart& chart) {
  if (chart.most > 0) return chart.most;
  double end = 0;
  for (const BarGroup& group : chart.groups) {
    for (const Bar& bar : group.bars) {
      if (bar.spread.count > 0) end = std::max(end, bar.spread.mean + deviation(bar));
    }
  }
  return end;
}

std::string describe(const BarGroup& group, const Bar& bar) {
  std::string text = fmt::format("{}, {}: {:.2f}", group.label, bar.mode, bar.spread.mean);
  if (bar.spread.standard_deviation) text += fmt::format(" ± {:.2f}", deviation(bar));
  return text;
}

struct BarPlace {
  Axis axis;
  double left = 0, right = 0;
  double x(double value) const { return left + axis.at(value) * (right - left); }
};

void draw_bar(Svg& svg, const BarGroup& group, const Bar& bar, const BarPlace& place, double y) {
  if (bar.spread.count == 0 || !std::isfinite(bar.spread.mean)) return;
  svg.rectangle(place.left, y, place.x(bar.spread.mean) - place.left, kBar,
                "bar " + mode_class(bar.mode), describe(group, bar));
  if (!bar.spread.standard_deviation) return;
  const double low = std::max(0.0, bar.spread.mean - deviation(bar));
  const double high = std::min(place.axis.high, bar.spread.mean + deviation(bar));
  svg.line(place.x(low), y + kBar / 2, place.x(high), y + kBar / 2, "whisker");
}

std::vector<std::string> modes_of(const BarChart& chart) {
  std::vector<std::string> modes;
  for (const BarGroup& group : chart.groups) {
    for (const Bar& bar : group.bars) {
      if (std::find(modes.begin(), modes.end(), bar.mode) == modes.end()) modes.push_back(bar.mode);
    }
  }
  return modes;
}

}  // namespace

double top_of_rows(const BarChart& chart) { return modes_of(chart).size() > 1 ? 46 : 28; }

double row_height(const BarChart& chart) {
  std::size_t bars = 1;
  for (const BarGroup& group : chart.groups) bars = std::max(bars, group.bars.size());
  // One bar alone is thinner than its label.
  return std::max(17.0, static_cast<double>(bars) * (kBar + 1) + kGap);
}

Svg draw(const BarChart& chart) {
  std::vector<std::string> names;
  for (const BarGroup& group : chart.groups) names.push_back(group.label);
  const double room = room_for(names);
  const std::vector<std::string> modes = modes_of(chart);
  const double top = top_of_rows(chart), row = row_height(chart);
  const double bottom = top + row * static_cast<double>(names.size()) + 2;
  Svg svg(kChartWidth, bottom + room_below(chart.x_label), chart.title);
  const BarPlace place{linear_axis(0, end_of(chart), 5), room + 8 + 2, kChartWidth - 14};
  svg.text(0, 13, chart.title, "title");
  if (modes.size() > 1) draw_legend(svg, modes, 34, LegendOf::kBars);
  draw_x_axis(svg, place.axis, place.left, place.right, top, bottom, chart.x_label);
  for (std::size_t g = 0; g < chart.groups.size(); ++g) {
    const BarGroup& group = chart.groups[g];
    const double middle = top + row * (static_cast<double>(g) + 0.5);
    svg.text(0, middle + 4, shortened(group.label, room), "strong");
    double y = middle - static_cast<double>(group.bars.size()) * (kBar + 1) / 2;
    for (const Bar& bar : group.bars) draw_bar(svg, group, bar, place, y), y += kBar + 1;
  }
  return svg;
}

}  // namespace lockstep
