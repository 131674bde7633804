#include "report/page/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/page/axis.h"
#include "report/page/frame.h"
#include "report/page/style.h"

namespace lockstep {
namespace {

constexpr double kHeight = 250;
constexpr std::size_t kMostMarks = 40;

struct Extent {
  double x_min = std::numeric_limits<double>::infinity(), x_max = -x_min;
  double y_min = x_min, y_max = -x_min;
};

Extent extent_of(const LineChart& chart) {
  Extent extent;
  for (const Curve& curve : chart.curves) {
    for (const CurvePoint& point : curve.points) {
      if (!std::isfinite(point.y)) continue;
      extent.x_min = std::min(extent.x_min, point.x);
      extent.x_max = std::max(extent.x_max, point.x);
      extent.y_min = std::min(extent.y_min, point.y);
      extent.y_max = std::max(extent.y_max, point.y);
    }
  }
  return extent;
}

void draw_curve(Svg& svg, const Curve& curve, const std::vector<CurvePoint>& points,
                const Frame& frame) {
  PathBuilder path;
  bool jump = true;
  for (const CurvePoint& point : points) {
    if (std::isfinite(point.y)) path.to(frame.x_of(point.x), frame.y_of(point.y), jump);
    jump = !std::isfinite(point.y);
  }
  const std::string name =
      curve.name.empty() ? fmt::format("{}, seed {}", curve.mode, curve.seed) : curve.name;
  svg.path(path.d(), "curve " + mode_class(curve.mode), name);
  if (points.size() > kMostMarks) return;
  for (const CurvePoint& point : points) {
    if (!std::isfinite(point.y)) continue;
    svg.mark(frame.x_of(point.x), frame.y_of(point.y), 2, mode_style(curve.mode),
             "mark " + mode_class(curve.mode),
             fmt::format("{}, step {:.0f}: {:.6g}", name, point.x, point.y));
  }
}

std::vector<std::string> modes_of(const LineChart& chart) {
  std::vector<std::string> modes;
  for (const Curve& curve : chart.curves) {
    if (std::find(modes.begin(), modes.end(), curve.mode) == modes.end()) {
      modes.push_back(curve.mode);
    }
  }
  return modes;
}

// The first point of each column's extremes; a break in the line stays one.
struct Column {
  long long number = -1;
  std::vector<CurvePoint> points;

  void flush(std::vector<CurvePoint>& out) {
    const auto by_y = [](const CurvePoint& a, const CurvePoint& b) { return a.y < b.y; };
    if (points.empty()) return;
    auto [low, high] = std::minmax_element(points.begin(), points.end(), by_y);
    if (high < low) std::swap(low, high);
    out.push_back(*low);
    if (high != low) out.push_back(*high);
    points.clear();
  }
};

}  // namespace

std::vector<CurvePoint> thin(const std::vector<CurvePoint>& points, double low, double high,
                             int columns) {
  if (points.size() <= 2 * static_cast<std::size_t>(columns) || !(high > low)) return points;
  std::vector<CurvePoint> out;
  Column column;
  for (const CurvePoint& point : points) {
    const auto number =
        static_cast<long long>(std::floor((point.x - low) / (high - low) * columns));
    if (number != column.number || !std::isfinite(point.y)) column.flush(out);
    column.number = number;
    if (std::isfinite(point.y)) {
      column.points.push_back(point);
    } else {
      out.push_back(point);
    }
  }
  column.flush(out);
  return out;
}

LineDrawing draw(const LineChart& chart) {
  const Extent extent = extent_of(chart);
  const bool logarithmic =
      chart.may_be_logarithmic && extent.y_min > 0 && extent.y_max / extent.y_min > 100;
  Frame frame;
  frame.x = exact_axis(extent.x_min, extent.x_max, 5);
  frame.y = logarithmic ? log_axis(extent.y_min, extent.y_max)
                        : linear_axis(extent.y_min, extent.y_max, 5);
  const std::vector<std::string> modes = modes_of(chart);
  frame.place(kChartWidth, kHeight, modes.size() > 1 ? 46 : 28, 38);
  LineDrawing drawing{Svg(kChartWidth, kHeight, chart.title)};
  const std::string title = chart.title + (logarithmic ? ", logarithmic" : "");
  draw_frame(drawing.svg, frame, title, chart.x_label);
  if (modes.size() > 1) draw_legend(drawing.svg, modes, 34, LegendOf::kCurves);
  const int columns = static_cast<int>(frame.right - frame.left);
  for (const Curve& curve : chart.curves) {
    const auto points = thin(curve.points, frame.x.low, frame.x.high, columns);
    drawing.thinned = drawing.thinned || points.size() < curve.points.size();
    draw_curve(drawing.svg, curve, points, frame);
  }
  return drawing;
}

}  // namespace lockstep
