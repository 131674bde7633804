#pragma once
// Curves over steps: every value that there is, joined by lines, never smoothed.

#include <cstdint>
#include <string>
#include <vector>

#include "report/page/svg.h"

namespace lockstep {

/// y is NaN where there is no value: the line breaks.
struct CurvePoint {
  double x = 0, y = 0;
};

struct Curve {
  std::string mode;
  std::uint64_t seed = 0;
  std::vector<CurvePoint> points;  // x ascending
  std::string name = {};           // shown under the pointer; empty: mode and seed
};

struct LineChart {
  std::string title;  // with the unit
  std::string x_label;
  std::vector<Curve> curves;
  bool may_be_logarithmic = false;  // where positive values span more than a factor of 100
};

struct LineDrawing {
  Svg svg;
  bool thinned = false;  // of each pixel column only the smallest and the largest value are drawn
};

/// REQUIRES: a finite value.
LineDrawing draw(const LineChart& chart);

/// Of every `1 / columns` of [low, high] the points with the smallest and the largest y, in their
/// order. As they are where there are no more than two per column.
std::vector<CurvePoint> thin(const std::vector<CurvePoint>& points, double low, double high,
                             int columns);

}  // namespace lockstep
