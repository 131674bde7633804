#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "report/sections/curve_figure.h"
#include "report/sections/sections.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostRows = 100;
constexpr std::size_t kMostDots = 40;  // on a curve
constexpr int kColumns = 380;          // of a chart: about its pixels

std::string run_name(const RunRecord& run) { return fmt::format("{} s{}", run.mode, run.seed); }

std::map<double, std::vector<double>> by_step(const std::vector<const RunRecord*>& runs,
                                              const CurveSource& source) {
  std::map<double, std::vector<double>> rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const Point& point : runs[i]->*source.points) {
      auto& row = rows[point.at];
      row.resize(runs.size(), std::nan(""));
      row[i] = source.factor * point.value;
    }
  }
  return rows;
}

DataTable table_of(const std::vector<const RunRecord*>& runs, const CurveSource& source) {
  DataTable table{{"step"}, {}};
  for (const RunRecord* run : runs) table.header.push_back(run_name(*run));
  const auto rows = by_step(runs, source);
  const std::size_t stride = (rows.size() + kMostRows - 1) / kMostRows;
  if (stride > 1) table.header[0] = fmt::format("step (1 of {})", stride);
  std::size_t index = rows.size();
  for (const auto& [step, values] : rows) {
    // Counted from the end, so that the last step is there.
    if (--index % std::max<std::size_t>(1, stride) != 0) continue;
    std::vector<Markup> row{escaped(fmt::format("{:.0f}", step))};
    for (const double value : values) row.push_back(number(value, source.digits));
    table.rows.push_back(std::move(row));
  }
  return table;
}

bool has_values(const std::vector<Point>& points) {
  return std::ranges::any_of(points, [](const Point& point) { return std::isfinite(point.value); });
}

Interval steps_of(const std::vector<const RunRecord*>& runs, const CurveSource& source) {
  Interval steps{std::numeric_limits<double>::infinity(), 0};
  for (const RunRecord* run : runs) {
    for (const Point& point : run->*source.points) {
      steps = {std::min(steps.low, point.at), std::max(steps.high, point.at)};
    }
  }
  return steps;
}

bool add_run(Plot& plot, const RunRecord& run, const CurveSource& source, Interval steps) {
  std::vector<Point> points = run.*source.points;
  for (Point& point : points) point.value *= source.factor;
  return add_curve(plot, points, run.mode, fmt::format("{}, seed {}", run.mode, run.seed), steps);
}

}  // namespace

bool add_curve(Plot& plot, const std::vector<Point>& all, std::string_view mode,
               const std::string& name, Interval steps) {
  const std::vector<Point> points = thin(all, steps.low, steps.high, kColumns);
  const Series series = mode_series(mode);
  plot.marks.push_back(Line{series, points, name});
  const bool dots = points.size() <= kMostDots;
  for (std::size_t i = 0; dots && i < points.size(); ++i) {
    const Point& point = points[i];
    plot.marks.push_back(
        Dot{series, point, fmt::format("{}, step {:.0f}: {:.6g}", name, point.at, point.value), 2});
  }
  return points.size() < all.size();
}

std::optional<CurveFigure> curve_figure(const ReportData& data, const CurveSource& source) {
  Plot plot{source.title};
  plot.x_label = "step";
  plot.may_be_logarithmic = source.may_be_logarithmic;
  std::vector<const RunRecord*> runs;
  for (const RunRecord& run : data.runs) {
    if (has_values(run.*source.points)) runs.push_back(&run);
  }
  if (runs.empty()) return std::nullopt;
  const Interval steps = steps_of(runs, source);
  bool thinned = false;
  for (const RunRecord* run : runs) thinned = add_run(plot, *run, source, steps) || thinned;
  return CurveFigure{{source.name, draw(plot), "", table_of(runs, source)}, thinned};
}

void add_curves(const ReportData& data, Page& page) {
  const CurveSource sources[] = {
      {"train_loss", "Training loss", &RunRecord::train_loss, true, 4, 1},
      {"val_score", "Validation " + data.score() + ", in %", &RunRecord::val_score, false, 2, 1},
      {"learning_rate", "Learning rate", &RunRecord::learning_rate, false, 6, 1},
      {"gradient_norm", "Gradient norm", &RunRecord::gradient_norm, true, 4, 1}};
  std::vector<Figure> figures;
  bool thinned = false;
  for (const CurveSource& source : sources) {
    auto figure = curve_figure(data, source);
    if (!figure) continue;
    thinned = thinned || figure->thinned;
    figures.push_back(std::move(figure->figure));
  }
  if (figures.empty()) return;
  page.section("curves", "Training");
  page.note(
      std::string(
          "A line is a run. Points are as the run logged them, not smoothed: a loss is the mean "
          "over the steps since the point before, learning rate and gradient norm are those of "
          "the step.") +
      (thinned ? " Long curves show of each pixel column the smallest and the largest value."
               : ""));
  page.figures(std::move(figures));
}

}  // namespace lockstep
