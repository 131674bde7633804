#include "report/page/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/page/axis.h"
#include "report/page/frame.h"

namespace lockstep {
namespace {

constexpr double kTop = 24;
constexpr double kLineHeight = 12;  // of the rows' names

double row_height(std::size_t rows) { return rows > kMostNamedRows ? 7 : 15; }

// "backbone.layer3.5" of "backbone.layer3.5.bn1": up to the first part that is a number.
std::string block_of(const std::string& layer) {
  for (std::size_t dot = layer.find('.'); dot != std::string::npos;) {
    const std::size_t end = layer.find('.', dot + 1);
    const std::string part = layer.substr(dot + 1, end - dot - 1);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) {
      return layer.substr(0, end);
    }
    dot = end;
  }
  return layer;
}

// Beside each row; "" where there is none. Where rows are many their blocks are named, each at the
// first of its rows that lies a line below the name before.
std::vector<std::string> names_beside(const std::vector<std::string>& rows) {
  if (rows.size() <= kMostNamedRows) return rows;
  const auto apart = static_cast<std::size_t>(std::ceil(kLineHeight / row_height(rows.size())));
  std::vector<std::string> names(rows.size());
  std::string named;
  std::size_t free = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string block = block_of(rows[r]);
    if (r < free || block == named) continue;
    named = names[r] = std::move(block);
    free = r + apart;
  }
  return names;
}

struct HeatPlace {
  double left = 0, column = 0, row = 0;
};

// A path per level and not a rectangle per cell: a fifth of the size. Neighbours in a row are one.
std::array<std::string, kHeatLevels> paths_of(const HeatMap& map, const HeatPlace& place) {
  std::array<std::string, kHeatLevels> paths;
  for (std::size_t r = 0; r < map.values.size(); ++r) {
    const std::vector<double>& values = map.values[r];
    const std::string y = coordinate(kTop + place.row * static_cast<double>(r));
    for (std::size_t c = 0; c < values.size();) {
      const std::size_t first = c;
      if (!std::isfinite(values[c++])) continue;
      const int level = map.levels.of(values[first]);
      while (c < values.size() && std::isfinite(values[c]) && map.levels.of(values[c]) == level) {
        ++c;
      }
      const double x1 = place.left + place.column * static_cast<double>(first);
      const double x2 = place.left + place.column * static_cast<double>(c);
      paths[static_cast<std::size_t>(level)] += "M" + coordinate(x1) + " " + y + "H" +
                                                coordinate(x2) + "v" + coordinate(place.row - 1) +
                                                "H" + coordinate(x1) + "z";
    }
  }
  return paths;
}

std::string describe_row(const HeatMap& map, std::size_t r) {
  const std::vector<double>& values = map.values[r];
  double most = values.front();
  for (const double value : values) {
    if (!(most >= value)) most = value;
  }
  return fmt::format("{}: first {:.3g}, last {:.3g}, largest {:.3g}", map.rows[r], values.front(),
                     values.back(), most);
}

void draw_columns(Svg& svg, const HeatMap& map, const HeatPlace& place, double bottom) {
  const std::size_t count = map.columns.size();
  const std::size_t stride = std::max<std::size_t>(1, (count + 4) / 5);
  for (std::size_t c = 0; c < count; c += stride) {
    const double x = place.left + place.column * (static_cast<double>(c) + 0.5);
    svg.line(x, bottom, x, bottom + 4, "axis");
    svg.text(x, bottom + 16, tick_label(map.columns[c]), "", Anchor::kMiddle);
  }
  svg.text(kChartWidth, bottom + 31, "step", "", Anchor::kEnd);
}

void draw_ramp(Svg& svg, const HeatMap& map, double y) {
  const double width = kChartWidth / kHeatLevels;
  for (int level = 0; level < kHeatLevels; ++level) {
    svg.rectangle(width * level, y, width - 1, 9, "h" + std::to_string(level));
    if (level == 0) continue;
    svg.text(width * level, y + 22,
             tick_label(map.levels.boundaries[static_cast<std::size_t>(level - 1)]), "small",
             Anchor::kMiddle);
  }
}

// 3 / 10 is 0.3; 3 * 0.1 is not.
double scaled(double factor, double decade) {
  return decade < 0 ? factor / std::pow(10, -decade) : factor * std::pow(10, decade);
}

std::vector<double> boundaries_down_from(double most, const std::vector<double>& factors) {
  const double decade = std::floor(std::log10(most));
  std::vector<double> boundaries;
  for (double d = decade; boundaries.size() < kHeatLevels - 1; --d) {
    for (auto factor = factors.rbegin(); factor != factors.rend(); ++factor) {
      const double boundary = scaled(*factor, d);
      if (boundary < most && boundaries.size() < kHeatLevels - 1) boundaries.push_back(boundary);
    }
  }
  std::reverse(boundaries.begin(), boundaries.end());
  return boundaries;
}

}  // namespace

int HeatLevels::of(double value) const {
  return static_cast<int>(std::upper_bound(boundaries.begin(), boundaries.end(), value) -
                          boundaries.begin());
}

HeatLevels levels_for(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value) || value <= 0; });
  if (values.empty()) values.push_back(1);
  std::sort(values.begin(), values.end());
  const double most = values.back(), low = values[values.size() / 20];
  // The finest series that reaches down to nearly all values.
  std::vector<double> boundaries;
  for (const std::vector<double>& factors :
       {std::vector<double>{1, 1.5, 2, 3, 5, 7}, {1, 2, 5}, {1, 3}}) {
    boundaries = boundaries_down_from(most, factors);
    if (boundaries.front() <= 2 * low) break;
  }
  return {boundaries};
}

Svg draw(const HeatMap& map) {
  const std::vector<std::string> names = names_beside(map.rows);
  const double room = room_for(names);
  HeatPlace place;
  place.row = row_height(map.rows.size());
  place.left = room + 6;
  place.column = (kChartWidth - place.left) / static_cast<double>(map.columns.size());
  const double bottom = kTop + place.row * static_cast<double>(map.rows.size());
  Svg svg(kChartWidth, bottom + 72, map.title);
  svg.text(0, 13, map.title, "title");
  const auto paths = paths_of(map, place);
  for (std::size_t level = 0; level < paths.size(); ++level) {
    if (!paths[level].empty()) svg.path(paths[level], "h" + std::to_string(level));
  }
  for (std::size_t r = 0; r < map.rows.size(); ++r) {
    const double y = kTop + place.row * static_cast<double>(r);
    if (!names[r].empty()) {
      svg.text(place.left - 6, y + place.row / 2 + 3.5, shortened(names[r], room), "small",
               Anchor::kEnd);
    }
    svg.rectangle(0, y, kChartWidth, place.row, "hit", describe_row(map, r));
  }
  draw_columns(svg, map, place, bottom);
  draw_ramp(svg, map, bottom + 44);
  return svg;
}

}  // namespace lockstep
