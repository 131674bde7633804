#pragma once
// What charts share: their width, the frame with grid and ticks, the legend of the modes.

#include <string>
#include <vector>

#include "report/page/axis.h"
#include "report/page/svg.h"

namespace lockstep {

constexpr double kChartWidth = 440;

/// The plot's place in the drawing and its two axes.
struct Frame {
  Axis x, y;
  double left = 0, right = 0, top = 0, bottom = 0;

  /// Leaves room for the labels of both axes.
  void place(double width, double height, double above, double below);
  double x_of(double value) const { return left + x.at(value) * (right - left); }
  double y_of(double value) const { return bottom - y.at(value) * (bottom - top); }
};

/// Title, horizontal grid lines, both axes' ticks and the x axis's label.
void draw_frame(Svg& svg, const Frame& frame, const std::string& title, const std::string& x_label);
/// Vertical grid lines, their ticks below `bottom` and the label: for charts of rows.
void draw_x_axis(Svg& svg, const Axis& axis, double left, double right, double top, double bottom,
                 const std::string& label);

enum class LegendOf { kCurves, kMarks, kBars };
/// The modes' names behind samples of how they are drawn, in a row at height y.
void draw_legend(Svg& svg, const std::vector<std::string>& modes, double y, LegendOf of,
                 double x = 0);

/// Room for the names of rows: as wide as the longest, up to 42 % of the drawing.
double room_for(const std::vector<std::string>& names);
/// Below a chart with an x axis: its ticks and, where there is one, its label.
double room_below(const std::string& x_label);

}  // namespace lockstep
