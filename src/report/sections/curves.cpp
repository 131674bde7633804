#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report/page/line_chart.h"
#include "report/sections/curve_figure.h"
#include "report/sections/sections.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostRows = 100;

std::string run_name(const RunRecord& run) { return fmt::format("{} s{}", run.mode, run.seed); }

std::map<double, std::vector<double>> by_step(const std::vector<const RunRecord*>& runs,
                                              const CurveSource& source) {
  std::map<double, std::vector<double>> rows;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const CurvePoint& point : runs[i]->*source.points) {
      auto& row = rows[point.x];
      row.resize(runs.size(), std::nan(""));
      row[i] = source.factor * point.y;
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

}  // namespace

std::optional<CurveFigure> curve_figure(const ReportData& data, const CurveSource& source) {
  LineChart chart{source.title, "step", {}, source.may_be_logarithmic};
  std::vector<const RunRecord*> runs;
  for (const RunRecord& run : data.runs) {
    Curve curve{run.mode, run.seed, run.*source.points};
    for (CurvePoint& point : curve.points) point.y *= source.factor;
    const bool some = std::any_of(curve.points.begin(), curve.points.end(),
                                  [](const CurvePoint& point) { return std::isfinite(point.y); });
    if (!some) continue;
    chart.curves.push_back(std::move(curve));
    runs.push_back(&run);
  }
  if (runs.empty()) return std::nullopt;
  LineDrawing drawing = draw(chart);
  return CurveFigure{{source.name, std::move(drawing.svg), "", table_of(runs, source)},
                     drawing.thinned};
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
