#pragma once
// Layers over steps: a cell's colour is the level of its value on a logarithmic ramp.

#include <string>
#include <vector>

#include "report/page/style.h"
#include "report/page/svg.h"

namespace lockstep {

/// With more rows blocks are named instead.
constexpr std::size_t kMostNamedRows = 40;

/// Where the levels of a ramp begin: values below the first boundary are of the lowest.
struct HeatLevels {
  std::vector<double> boundaries;  // kHeatLevels - 1, ascending

  int of(double value) const;
};

/// Round boundaries up to the largest value: six, three or two per decade, by how far the values
/// span. The same levels for all maps that are to be compared.
HeatLevels levels_for(std::vector<double> values);

struct HeatMap {
  std::string title;
  std::vector<std::string> rows;
  std::vector<double> columns;              // steps, ascending
  std::vector<std::vector<double>> values;  // [row][column]; NaN: not drawn
  HeatLevels levels;
};

/// Of more than kMostNamedRows rows their blocks are named, "layer3.5" for "layer3.5.bn1"; a row's
/// title names it. REQUIRES: a row and a column.
Svg draw(const HeatMap& map);

}  // namespace lockstep
