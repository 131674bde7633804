#include "report/page/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

constexpr double kWidth = 440, kRightGap = 14;
constexpr double kLineHeight = 12;  // of the rows' names
constexpr double kLegendLine = 17;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void cover(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

/// What the axes have to reach.
struct Extent {
  Range at, value;

  void add(const Point& point) {
    if (!std::isfinite(point.value)) return;
    at.cover(point.at);
    value.cover(point.value);
  }
  void add(const Line& line) {
    for (const Point& point : line.points) add(point);
  }
  void add(const Dot& dot) { add(dot.point); }
  void add(const Bar& bar) {
    value.cover(bar.from);
    value.cover(bar.to);
  }
  void add(const Mean& mean) {
    if (mean.mean) add(Point{mean.at, *mean.mean});
    if (!mean.interval) return;
    add(Point{mean.at, mean.interval->low});
    add(Point{mean.at, mean.interval->high});
  }
  void add(const Cells&) {}
};

Extent extent_of(const Plot& plot) {
  Extent extent;
  for (const Mark& mark : plot.marks) std::visit([&](const auto& m) { extent.add(m); }, mark);
  if (plot.zero) extent.value.cover(0);
  return extent;
}

const Cells* cells_of(const Plot& plot) {
  for (const Mark& mark : plot.marks) {
    if (const auto* cells = std::get_if<Cells>(&mark)) return cells;
  }
  return nullptr;
}

Axis value_axis(const Plot& plot, const Range& range) {
  if (const Cells* cells = cells_of(plot)) return column_axis(cells->columns);
  if (plot.limits) return linear_axis(plot.limits->low, plot.limits->high, 5);
  const bool logarithmic = plot.may_be_logarithmic && range.low > 0 && range.high / range.low > 100;
  return logarithmic ? log_axis(range.low, range.high) : linear_axis(range.low, range.high, 5);
}

Axis position_axis(const Plot& plot, const Range& range) {
  return plot.positions ? *plot.positions : exact_axis(range.low, range.high, 5);
}

/// A series in the legend, as the first of its marks shows it.
using Key = const Mark*;

Series series_of(const Mark& mark) {
  return std::visit(
      [](const auto& m) {
        if constexpr (requires { m.series; }) return m.series;
        return Series();
      },
      mark);
}

std::vector<Key> keys_of(const Plot& plot) {
  std::vector<Key> keys;
  if (!plot.legend) return keys;
  for (const Mark& mark : plot.marks) {
    const std::string name = series_of(mark).name;
    const bool known =
        std::ranges::any_of(keys, [&](Key key) { return series_of(*key).name == name; });
    if (!name.empty() && !known) keys.push_back(&mark);
  }
  if (keys.size() == 1) keys.clear();
  return keys;
}

/// A sample of the series at (x, y); returns its width.
double draw_sample(Svg& svg, const Mark& mark, double x, double y) {
  const Series series = series_of(mark);
  if (std::holds_alternative<Bar>(mark)) {
    svg.rectangle(x, y - 9, 12, 9, "bar " + series.style);
    return 17;
  }
  const bool line = std::holds_alternative<Line>(mark);
  if (line) svg.line(x, y - 4, x + 24, y - 4, "curve " + series.style);
  svg.mark(x + (line ? 12 : 5), y - 4, line ? 2.4 : 4, series.shape, "mark " + series.style);
  return line ? 29 : 15;
}

/// In as many lines as the names take; returns where the drawing goes on.
double draw_legend(Svg& svg, const std::vector<Key>& keys) {
  if (keys.empty()) return 28;
  double x = 0, y = 34;
  for (const Key key : keys) {
    const std::string name = series_of(*key).name;
    const double room = 29 + text_width(name);
    if (x > 0 && x + room > svg.width()) x = 0, y += kLegendLine;
    x += draw_sample(svg, *key, x, y);
    svg.text(x, y, name);
    x += text_width(name) + 18;
  }
  return y + 12;
}

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

/// Beside each row; "" where there is none. Blocks are named where rows are too low, each at the
/// first of its rows that lies a line below the name before.
std::vector<std::string> names_beside(const Plot& plot) {
  const std::vector<std::string>& rows = plot.rows;
  if (plot.row_height >= kLineHeight) return rows;
  const auto apart = static_cast<std::size_t>(std::ceil(kLineHeight / plot.row_height));
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

/// Room to the left of the plot.
double room_of(const std::vector<std::string>& names) {
  double widest = 0;
  for (const std::string& name : names) widest = std::max(widest, text_width(name));
  return std::min(widest, 0.42 * kWidth);
}

std::vector<std::string> labels_of(const Axis& axis) {
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < axis.ticks.size(); ++i) labels.push_back(axis.label(i));
  return labels;
}

// Labels at the ends of an axis stay within the drawing.
Anchor anchor_at(double x, double half_width, double right_end) {
  return x + half_width > right_end ? Anchor::kEnd : Anchor::kMiddle;
}

std::string describe_row(const std::string& name, const std::vector<double>& values) {
  double most = values.front();
  for (const double value : values) {
    if (!(most >= value)) most = value;
  }
  return fmt::format("{}: first {:.3g}, last {:.3g}, largest {:.3g}", name, values.front(),
                     values.back(), most);
}

/// Where things lie, and how marks are drawn there.
class Canvas {
 public:
  explicit Canvas(const Plot& plot)
      : plot_(plot), names_(names_beside(plot)), top_(top_of(plot)), svg_(size_of(plot)) {
    const Extent extent = extent_of(plot);
    values_ = value_axis(plot, extent.value);
    if (!over_rows()) positions_ = position_axis(plot, extent.at);
    left_ = (over_rows() ? type_size() * room_of(names_) : room_of(labels_of(values_))) + 10;
    right_ = kWidth - kRightGap;
    bottom_ = svg_.height() - below(plot);
  }

  Svg finish() {
    svg_.text(0, 13, plot_.title + (values_.logarithmic ? ", logarithmic" : ""), "title");
    draw_legend(svg_, keys_of(plot_));
    if (over_rows()) {
      draw_names();
      draw_below(values_, cells_of(plot_) == nullptr);
    } else {
      draw_left();
      draw_below(positions_, false);
    }
    if (plot_.zero) draw_zero();
    for (const Mark& mark : plot_.marks) std::visit([&](const auto& m) { draw(m); }, mark);
    return std::move(svg_);
  }

 private:
  struct Spot {
    double x = 0, y = 0;
  };

  static double below(const Plot& plot) {
    return 4 + 16 + (plot.x_label.empty() ? 0 : 16) + (cells_of(plot) == nullptr ? 0 : 36);
  }
  static Svg size_of(const Plot& plot) {
    const double rows = plot.row_height * static_cast<double>(plot.rows.size());
    const double height = plot.rows.empty() ? plot.height : rows;
    return {kWidth, top_of(plot) + height + below(plot), plot.title};
  }

  bool small_names() const { return plot_.row_height < kLegendLine; }
  /// Of the names, over that of other text.
  double type_size() const { return small_names() ? 10.5 / 12 : 1; }
  bool over_rows() const { return !plot_.rows.empty(); }
  double along_x(const Axis& axis, double value) const {
    return left_ + axis.at(value) * (right_ - left_);
  }
  double row_y(double row) const { return top_ + plot_.row_height * (row + 0.5); }
  Spot spot(double at, double value) const {
    if (over_rows()) return {along_x(values_, value), row_y(at)};
    return {along_x(positions_, at), bottom_ - values_.at(value) * (bottom_ - top_)};
  }
  /// From `half` before the spot to as far behind it, at right angles to the values' axis.
  void across(double at, double value, double half, const std::string& classes) {
    const Spot s = spot(at, value);
    const double dx = over_rows() ? 0 : half, dy = over_rows() ? half : 0;
    svg_.line(s.x - dx, s.y - dy, s.x + dx, s.y + dy, classes);
  }

  void draw_names() {
    for (std::size_t r = 0; r < names_.size(); ++r) {
      if (names_[r].empty()) continue;
      const double y = row_y(static_cast<double>(r)) + (small_names() ? 3.5 : 4);
      svg_.text(0, y, shortened(names_[r], (left_ - 10) / type_size()),
                small_names() ? "small" : "strong");
    }
  }
  void draw_left() {
    for (std::size_t i = 0; i < values_.ticks.size(); ++i) {
      const double y = spot(positions_.low, values_.ticks[i]).y;
      svg_.line(left_, y, right_, y, "grid");
      svg_.text(left_ - 7, y + 4, values_.label(i), "", Anchor::kEnd);
    }
    svg_.line(left_, bottom_, right_, bottom_, "axis");
  }
  void draw_below(const Axis& axis, bool grid) {
    for (std::size_t i = 0; i < axis.ticks.size(); ++i) {
      const double x = along_x(axis, axis.ticks[i]);
      svg_.line(x, grid ? top_ : bottom_, x, bottom_ + (grid ? 0 : 4), grid ? "grid" : "axis");
      const std::string label = axis.label(i);
      svg_.text(x, bottom_ + 16, label, "", anchor_at(x, text_width(label) / 2, kWidth));
    }
    if (!plot_.x_label.empty()) svg_.text(right_, bottom_ + 32, plot_.x_label, "", Anchor::kEnd);
  }
  void draw_zero() {
    const Axis& along = over_rows() ? values_ : positions_;
    const Spot zero = spot(along.low, 0);
    if (over_rows()) {
      svg_.line(zero.x, top_, zero.x, bottom_, "axis");
    } else {
      svg_.line(left_, zero.y, right_, zero.y, "axis");
    }
  }

  void draw(const Line& line) {
    PathBuilder path;
    bool jump = true;
    for (const Point& point : line.points) {
      const Spot s = spot(point.at, point.value);
      if (std::isfinite(point.value)) path.to(s.x, s.y, jump);
      jump = !std::isfinite(point.value);
    }
    svg_.path(path.d(), "curve " + line.series.style, line.title);
  }
  void draw(const Dot& dot) {
    if (!std::isfinite(dot.point.value)) return;
    const Spot s = spot(dot.point.at, dot.point.value);
    svg_.mark(s.x, s.y, dot.radius, dot.series.shape,
              (dot.filled ? "mark full " : "mark ") + dot.series.style, dot.title);
  }
  void draw(const Bar& bar) {
    const Spot from = spot(bar.at, bar.from), to = spot(bar.at, bar.to);
    const double height = plot_.row_height * bar.width - 1;
    if (!(to.x - from.x >= 0.05)) return;
    svg_.rectangle(from.x, from.y - height / 2, to.x - from.x, height, "bar " + bar.series.style,
                   bar.title);
  }
  void draw(const Mean& mean) {
    if (mean.interval) draw_whisker(mean);
    if (!mean.mean) return;
    across(mean.at, *mean.mean, mean.half, "mean " + mean.series.style);
    if (mean.number.empty()) return;
    const Spot s = spot(mean.at, *mean.mean);
    const double x = std::min(s.x, kWidth - text_width(mean.number) / 2);
    svg_.text(x, s.y - mean.half - 4, mean.number, "strong", Anchor::kMiddle);
  }
  void draw_whisker(const Mean& mean) {
    Interval interval = *mean.interval;
    if (plot_.limits) {
      interval.low = std::max(interval.low, plot_.limits->low);
      interval.high = std::min(interval.high, plot_.limits->high);
    }
    const Spot low = spot(mean.at, interval.low), high = spot(mean.at, interval.high);
    svg_.line(low.x, low.y, high.x, high.y,
              mean.colored ? "whisker own " + mean.series.style : "whisker");
    if (mean.half <= 0) return;
    for (const double end : {interval.low, interval.high}) across(mean.at, end, 5, "whisker");
  }

  // A path per level and not a rectangle per cell: a fifth of the size. Neighbours in a row are
  // one.
  void draw(const Cells& cells) {
    std::array<std::string, kHeatLevels> paths;
    for (std::size_t r = 0; r < cells.values.size(); ++r) {
      const std::vector<double>& values = cells.values[r];
      for (std::size_t c = 0; c < values.size();) {
        const std::size_t first = c;
        if (!std::isfinite(values[c++])) continue;
        const int level = cells.levels.of(values[first]);
        while (c < values.size() && std::isfinite(values[c]) &&
               cells.levels.of(values[c]) == level) {
          ++c;
        }
        paths[static_cast<std::size_t>(level)] += piece(r, first, c);
      }
    }
    for (std::size_t level = 0; level < paths.size(); ++level) {
      if (!paths[level].empty()) svg_.path(paths[level], "h" + std::to_string(level));
    }
    for (std::size_t r = 0; r < cells.values.size(); ++r) {
      svg_.rectangle(0, row_y(static_cast<double>(r) - 0.5), kWidth, plot_.row_height, "hit",
                     describe_row(plot_.rows[r], cells.values[r]));
    }
    draw_ramp(cells.levels);
  }
  /// The path around columns [first, end) of a row.
  std::string piece(std::size_t row, std::size_t first, std::size_t end) const {
    const std::string x1 = coordinate(along_x(values_, static_cast<double>(first)));
    const std::string x2 = coordinate(along_x(values_, static_cast<double>(end)));
    const std::string y = coordinate(row_y(static_cast<double>(row) - 0.5));
    return "M" + x1 + " " + y + "H" + x2 + "v" + coordinate(plot_.row_height - 1) + "H" + x1 + "z";
  }
  void draw_ramp(const HeatLevels& levels) {
    const double width = right_ / kHeatLevels, y = svg_.height() - 28;
    for (int level = 0; level < kHeatLevels; ++level) {
      svg_.rectangle(width * level, y, width - 1, 9, "h" + std::to_string(level));
      if (level == 0) continue;
      svg_.text(width * level, y + 22,
                tick_label(levels.boundaries[static_cast<std::size_t>(level - 1)]), "small",
                Anchor::kMiddle);
    }
  }

  const Plot& plot_;
  std::vector<std::string> names_;
  double top_, left_ = 0, right_ = 0, bottom_ = 0;
  Svg svg_;
  Axis values_, positions_;
};

// The first point of each column's extremes; a break in the line stays one.
struct Column {
  long long number = -1;
  std::vector<Point> points;

  void flush(std::vector<Point>& out) {
    if (points.empty()) return;
    auto [low, high] = std::ranges::minmax_element(points, {}, &Point::value);
    if (high < low) std::swap(low, high);
    out.push_back(*low);
    if (high != low) out.push_back(*high);
    points.clear();
  }
};

}  // namespace

Svg draw(const Plot& plot) { return Canvas(plot).finish(); }

double top_of(const Plot& plot) {
  Svg trial(kWidth, 0, "");
  return std::max(plot.least_top, draw_legend(trial, keys_of(plot)));
}

std::vector<Point> thin(const std::vector<Point>& points, double low, double high, int columns) {
  if (points.size() <= 2 * static_cast<std::size_t>(columns) || !(high > low)) return points;
  std::vector<Point> out;
  Column column;
  for (const Point& point : points) {
    const auto number =
        static_cast<long long>(std::floor((point.at - low) / (high - low) * columns));
    if (number != column.number || !std::isfinite(point.value)) column.flush(out);
    column.number = number;
    if (std::isfinite(point.value)) {
      column.points.push_back(point);
    } else {
      out.push_back(point);
    }
  }
  column.flush(out);
  return out;
}

}  // namespace lockstep
