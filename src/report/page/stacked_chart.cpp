#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "report/page/frame.h"
#include "report/page/rows_chart.h"

namespace lockstep {
namespace {

double total(const StackedRow& row) {
  return std::accumulate(row.parts.begin(), row.parts.end(), 0.0,
                         [](double sum, double part) { return sum + std::max(0.0, part); });
}

std::string phase_class(std::size_t phase) { return "p" + std::to_string(phase); }

// Names of phases in as many lines as they take; the height below the last.
double draw_phases(Svg& svg, const std::vector<std::string>& phases) {
  double x = 0, y = 34;
  for (std::size_t phase = 0; phase < phases.size(); ++phase) {
    if (phases[phase].empty()) continue;
    const double width = 17 + text_width(phases[phase]) + 14;
    if (x > 0 && x + width > svg.width()) x = 0, y += 17;
    svg.rectangle(x, y - 9, 12, 9, phase_class(phase));
    svg.text(x + 17, y, phases[phase]);
    x += width;
  }
  return y + 12;
}

double height_of_phases(const std::vector<std::string>& phases) {
  Svg trial(kChartWidth, 0, "");
  return draw_phases(trial, phases);
}

}  // namespace

Svg draw(const StackedChart& chart) {
  std::vector<std::string> names;
  double most = 0;
  for (const StackedRow& row : chart.rows) {
    names.push_back(row.label);
    most = std::max(most, total(row));
  }
  const bool tight = chart.rows.size() > 6;
  const double row_height = tight ? 17 : 27, bar = tight ? 11 : 16;
  const double room = room_for(names);
  const double top = height_of_phases(chart.phases);
  const double bottom = top + row_height * static_cast<double>(names.size());
  Svg svg(kChartWidth, bottom + room_below(chart.x_label), chart.title);
  const double left = room + 8 + 2, right = kChartWidth - 14;
  const Axis axis = linear_axis(0, most, 5);
  svg.text(0, 13, chart.title, "title");
  draw_phases(svg, chart.phases);
  draw_x_axis(svg, axis, left, right, top, bottom, chart.x_label);
  for (std::size_t r = 0; r < chart.rows.size(); ++r) {
    const StackedRow& row = chart.rows[r];
    const double middle = top + row_height * (static_cast<double>(r) + 0.5);
    svg.text(0, middle + 4, shortened(row.label, room), "strong");
    double sum = 0;
    for (std::size_t p = 0; p < row.parts.size(); ++p) {
      const double part = std::max(0.0, row.parts[p]);
      const double x1 = left + axis.at(sum) * (right - left);
      const double x2 = left + axis.at(sum + part) * (right - left);
      sum += part;
      if (x2 - x1 < 0.05) continue;
      svg.rectangle(x1, middle - bar / 2, x2 - x1, bar, phase_class(p),
                    fmt::format("{}, {}: {:.4g}", row.label, chart.phases[p], part));
    }
  }
  return svg;
}

}  // namespace lockstep
