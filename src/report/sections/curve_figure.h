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

/// None where no run has a value.
std::optional<CurveFigure> curve_figure(const ReportData& data, const CurveSource& source);

}  // namespace lockstep
