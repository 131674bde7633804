#pragma once
// A figure of one quantity of all runs over steps.

#include <optional>
#include <string>
#include <vector>

#include "report/data/report_data.h"
#include "report/page/page.h"

namespace lockstep {

struct CurveSource {
  std::string name;   // of the figure
  std::string title;  // with the unit
  std::vector<Point> RunRecord::*points;
  bool may_be_logarithmic;
  int digits;     // in the table
  double factor;  // to the unit
};

struct CurveFigure {
  Figure figure;
  bool thinned = false;
};

/// Draws a run's curve between the steps: thinned to what can be seen, and with its points where
/// they are few. Returns whether it was thinned.
bool add_curve(Plot& plot, const std::vector<Point>& points, std::string_view mode,
               const std::string& name, Interval steps);

/// None where no run has a value.
std::optional<CurveFigure> curve_figure(const ReportData& data, const CurveSource& source);

}  // namespace lockstep
