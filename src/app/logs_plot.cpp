#include "app/logs_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

struct Bounds {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  /// The place of `value` among `places`, from 0.
  int place(double value, int places) const {
    const double part = high > low ? (value - low) / (high - low) : 0.5;
    return std::clamp(static_cast<int>(std::lround(part * (places - 1))), 0, places - 1);
  }
};

}  // namespace

std::string plot_text(const std::vector<TerminalCurve>& curves, int columns, int rows) {
  Bounds x, y;
  for (const TerminalCurve& curve : curves) {
    for (const auto& [px, py] : curve.points) {
      if (!std::isfinite(py)) continue;
      x.take(px);
      y.take(py);
    }
  }
  if (x.empty()) return "no points\n";
  std::vector<std::string> field(static_cast<std::size_t>(rows),
                                 std::string(static_cast<std::size_t>(columns), ' '));
  std::string names;
  for (std::size_t c = 0; c < curves.size(); ++c) {
    const char mark = static_cast<char>('a' + c % 26);
    for (const auto& [px, py] : curves[c].points) {
      if (!std::isfinite(py)) continue;
      char& place = field[static_cast<std::size_t>(rows - 1 - y.place(py, rows))]
                         [static_cast<std::size_t>(x.place(px, columns))];
      place = place == ' ' || place == mark ? mark : '*';
    }
    names += fmt::format("  {}: {}\n", mark, curves[c].name);
  }
  std::string text;
  for (int row = 0; row < rows; ++row) {
    const std::string label = row == 0          ? fmt::format("{:.4g}", y.high)
                              : row == rows - 1 ? fmt::format("{:.4g}", y.low)
                                                : "";
    text += fmt::format("{:>10} |{}\n", label, field[static_cast<std::size_t>(row)]);
  }
  text += fmt::format("{:>10} +{}\n", "", std::string(static_cast<std::size_t>(columns), '-'));
  const std::string last = fmt::format("{:g}", x.high);
  text += fmt::format("{:>10}  {:<{}}{}\n", "", fmt::format("{:g}", x.low),
                      std::max(columns - static_cast<int>(last.size()), 1), last);
  return text + names;
}

int plot_columns(int terminal_columns) {
  constexpr int kBeside = 12;  // the range of y
  constexpr int kUnknown = 100;
  const int width = terminal_columns > 0 ? std::clamp(terminal_columns, 40, 120) : kUnknown;
  return width - kBeside - 1;  // some terminals begin a line when the last column is filled
}

}  // namespace lockstep
