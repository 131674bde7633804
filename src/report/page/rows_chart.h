#pragma once
// Charts of rows: points with their mean (scores, differences), bars side by side with whiskers
// (classes), and bars of parts (times).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/statistics.h"
#include "report/page/svg.h"

namespace lockstep {

struct DotRow {
  std::string label;
  std::string mode;                                      // how it is drawn
  std::vector<std::pair<std::uint64_t, double>> points;  // (seed, value)
  std::optional<double> mean = {};                       // a line across
  std::optional<Interval> interval = {};                 // of the mean
};

struct DotChart {
  std::string title;
  std::string x_label;
  std::vector<DotRow> rows;
  bool from_zero = false;     // the axis has 0, with a line
  bool join_seeds = false;    // a seed's points in neighbouring rows are joined
  bool signed_means = false;  // means are differences
  bool numbers = true;        // above the means: takes high rows
  double top = 28, row = 44;  // where rows begin and how high they are
};

/// REQUIRES: a point.
Svg draw(const DotChart& chart);

struct Bar {
  std::string mode;
  MeanSpread spread;
};

struct BarGroup {
  std::string label;
  std::vector<Bar> bars;
};

struct BarChart {
  std::string title;
  std::string x_label;
  std::vector<BarGroup> groups;
  double most = 0;  // the axis's end and where whiskers are cut; 0: by the data
};

/// Whiskers of one standard deviation, cut at 0 and at `most`.
Svg draw(const BarChart& chart);
/// Where the rows begin and how high they are: for a chart beside it.
double top_of_rows(const BarChart& chart);
double row_height(const BarChart& chart);

struct StackedRow {
  std::string label;
  std::vector<double> parts;  // as long as `phases`; negative ones count as 0
};

struct StackedChart {
  std::string title;
  std::string x_label;
  std::vector<std::string> phases;  // at most five; an empty name: not in the legend
  std::vector<StackedRow> rows;
};

Svg draw(const StackedChart& chart);

}  // namespace lockstep
