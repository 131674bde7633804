#pragma once
// The one chart: marks over rows, or over an axis of numbers. The rule: a mark says in units of the
// data where it stands; what is a row's height or an axis's length, only `draw` knows.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "compare/statistics.h"
#include "report/page/axis.h"
#include "report/page/style.h"
#include "report/page/svg.h"

namespace lockstep {

/// `at`: the number of a row, or where it is along the x axis. `value`: NaN where there is none.
struct Point {
  double at = 0, value = 0;
};

// The marks. `title` is shown under the pointer.

/// Joins points, and breaks where one has no value.
struct Line {
  Series series;
  std::vector<Point> points;
  std::string title = {};
};

/// One value: a seed's, a step's.
struct Dot {
  Series series;
  Point point;
  std::string title = {};
  double radius = 3.6;
  bool filled = false;  // with the series' colour
};

/// A line across the mean, the whisker of its interval, and the mean's number beside it.
struct Mean {
  Series series;
  double at = 0;
  std::optional<double> mean = {};
  std::optional<Interval> interval = {};
  std::string number = {};
  double half = 9;       // length of the line to either side; 0: the whisker has no ends
  bool colored = false;  // the whisker, as the series
};

/// Only over rows: lengthwise, and `width` of a row across.
struct Bar {
  Series series;
  double at = 0, from = 0, to = 0;
  std::string title = {};
  double width = 0.72;
};

/// Only over rows: colours of a ramp. A column is a value's width.
struct Cells {
  std::vector<double> columns;              // what they are called, ascending
  std::vector<std::vector<double>> values;  // [row][column]; NaN: not drawn
  HeatLevels levels;
};

using Mark = std::variant<Line, Dot, Mean, Bar, Cells>;

struct Plot {
  std::string title;                   // with the unit
  std::vector<std::string> rows = {};  // their names; empty: marks stand over an x axis
  std::vector<Mark> marks = {};        // later ones lie on earlier ones
  std::string x_label = {};
  double row_height = 44;               // rows too low for names have names of their blocks
  std::optional<Axis> positions = {};   // the x axis; none: as far as the marks reach
  double height = 170;                  // between the axes, where there are no rows
  std::optional<Interval> limits = {};  // the ends of the values' axis; whiskers are cut there
  bool zero = false;                    // the values' axis has 0, with a line
  bool may_be_logarithmic = false;      // where positive values span more than a factor of 100
  bool legend = true;                   // of the series, where there are several
  double least_top = 0;                 // where rows begin at the earliest: beside another plot
};

/// REQUIRES: a finite value.
Svg draw(const Plot& plot);

/// Where the rows begin.
double top_of(const Plot& plot);

/// Returns the points with the smallest and the largest value in every `1 / columns` of [low,
/// high], in their order. All of them where there are no more than two per column.
std::vector<Point> thin(const std::vector<Point>& points, double low, double high, int columns);

}  // namespace lockstep
