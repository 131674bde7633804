#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "compare/table.h"
#include "report/page/frame.h"
#include "report/page/rows_chart.h"
#include "report/page/style.h"

namespace lockstep {
namespace {

Axis axis_of(const DotChart& chart) {
  double low = chart.from_zero ? 0 : std::numeric_limits<double>::infinity();
  double high = chart.from_zero ? 0 : -low;
  const auto cover = [&](double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  };
  for (const DotRow& row : chart.rows) {
    for (const auto& [seed, value] : row.points) cover(value);
    if (row.interval) cover(row.interval->low), cover(row.interval->high);
  }
  return linear_axis(low, high, 5);
}

struct DotPlace {
  Axis axis;
  double left = 0, right = 0, top = 0, row = 0;
  bool numbers = true;

  double x(double value) const { return left + axis.at(value) * (right - left); }
  // Above the line stands the mean.
  double y(std::size_t index) const {
    return top + row * (static_cast<double>(index) + (numbers ? 0.62 : 0.5));
  }
};

const double* find_seed(const DotRow& row, std::uint64_t seed) {
  const auto found = std::find_if(row.points.begin(), row.points.end(),
                                  [&](const auto& point) { return point.first == seed; });
  return found == row.points.end() ? nullptr : &found->second;
}

void join_seeds(Svg& svg, const DotChart& chart, const DotPlace& place) {
  for (std::size_t row = 0; row + 1 < chart.rows.size(); ++row) {
    for (const auto& [seed, value] : chart.rows[row].points) {
      const double* below = find_seed(chart.rows[row + 1], seed);
      if (below == nullptr) continue;
      svg.line(place.x(value), place.y(row), place.x(*below), place.y(row + 1), "pair",
               fmt::format("seed {}", seed));
    }
  }
}

void draw_number(Svg& svg, const DotChart& chart, double mean, double x, double y) {
  const std::string text = chart.signed_means ? signed_text(mean, 2) : format_number(mean, 2);
  const double half = text_width(text) / 2;
  svg.text(std::min(x, svg.width() - half), y, text, "strong", Anchor::kMiddle);
}

void draw_row(Svg& svg, const DotChart& chart, const DotPlace& place, std::size_t index) {
  const DotRow& row = chart.rows[index];
  const double y = place.y(index);
  const std::string color = mode_class(row.mode);
  if (row.interval) {
    const double low = place.x(row.interval->low), high = place.x(row.interval->high);
    svg.line(low, y, high, y, "whisker");
    for (const double end : {low, high}) svg.line(end, y - 5, end, y + 5, "whisker");
  }
  if (row.mean) {
    const double x = place.x(*row.mean);
    const double half = chart.numbers ? 9 : 6;
    svg.line(x, y - half, x, y + half, "mean " + color);
    if (chart.numbers) draw_number(svg, chart, *row.mean, x, y - 13);
  }
  for (const auto& [seed, value] : row.points) {
    svg.mark(place.x(value), y, chart.numbers ? 3.6 : 2.6, mode_style(row.mode), "mark " + color,
             fmt::format("{}, seed {}: {:.6g}", row.label, seed, value));
  }
}

}  // namespace

Svg draw(const DotChart& chart) {
  std::vector<std::string> names;
  for (const DotRow& row : chart.rows) names.push_back(row.label);
  const double room = room_for(names);
  const double bottom = chart.top + chart.row * static_cast<double>(chart.rows.size()) + 6;
  Svg svg(kChartWidth, bottom + room_below(chart.x_label), chart.title);
  const DotPlace place{axis_of(chart), room + 8 + 8, kChartWidth - 14,
                       chart.top,      chart.row,    chart.numbers};
  svg.text(0, 13, chart.title, "title");
  draw_x_axis(svg, place.axis, place.left, place.right, chart.top, bottom, chart.x_label);
  if (chart.from_zero) svg.line(place.x(0), chart.top, place.x(0), bottom, "axis");
  if (chart.join_seeds) join_seeds(svg, chart, place);
  for (std::size_t row = 0; row < chart.rows.size(); ++row) {
    svg.text(0, place.y(row) + 4, shortened(names[row], room), "strong");
    draw_row(svg, chart, place, row);
  }
  return svg;
}

}  // namespace lockstep
