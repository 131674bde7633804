#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "report/page/rows_chart.h"
#include "report/sections/sections.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostClasses = 30;

/// [class] of a run.
const std::vector<std::optional<double>>& figures_of(const TrainSummary& run) {
  const bool segments = run.evaluation.task == Task::kSegmentation;
  return segments ? run.evaluation.metrics.iou : run.evaluation.metrics.acc;
}

std::optional<double> figure_of(const TrainSummary& run, std::size_t index) {
  const auto& figures = figures_of(run);
  return index < figures.size() ? figures[index] : std::nullopt;
}

struct ClassRow {
  std::string name;
  std::vector<MeanSpread> modes;  // [mode]
};

std::vector<ClassRow> class_rows(const ReportData& data, const std::vector<std::string>& modes) {
  std::vector<ClassRow> rows;
  for (const RunRecord& run : data.runs) {
    if (!run.summary) continue;
    for (std::size_t c = rows.size(); c < run.summary->classes.size(); ++c) {
      rows.push_back({run.summary->classes[c], {}});
    }
  }
  for (std::size_t c = 0; c < rows.size(); ++c) {
    for (const std::string& mode : modes) {
      std::vector<double> values;
      for (const RunRecord* run : data.of_mode(mode)) {
        const auto value = run->summary ? figure_of(*run->summary, c) : std::nullopt;
        if (value) values.push_back(*value);
      }
      rows[c].modes.push_back(mean_spread(values));
    }
  }
  return rows;
}

double widest_gap(const ClassRow& row) {
  double low = 100, high = 0;
  for (const MeanSpread& mode : row.modes) {
    if (mode.count == 0) continue;
    low = std::min(low, mode.mean);
    high = std::max(high, mode.mean);
  }
  return high - low;
}

/// The classes that are drawn, in their order: all, or those where the modes differ most.
std::vector<std::size_t> drawn_classes(const std::vector<ClassRow>& rows) {
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (rows.size() <= kMostClasses) return order;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return widest_gap(rows[a]) > widest_gap(rows[b]);
  });
  order.resize(kMostClasses);
  std::sort(order.begin(), order.end());
  return order;
}

DataTable table_of(const std::vector<ClassRow>& rows, const std::vector<std::string>& modes) {
  DataTable table{{"class"}, {}};
  for (const std::string& mode : modes) {
    table.header.push_back(mode);
    table.header.push_back("± sd");
  }
  for (const ClassRow& row : rows) {
    std::vector<Markup> cells{escaped(row.name)};
    for (const MeanSpread& mode : row.modes) {
      cells.push_back(number(mode.mean, 2));
      cells.push_back(number(mode.standard_deviation, 2));
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

BarChart bar_chart(const std::string& measure, const std::vector<ClassRow>& rows,
                   const std::vector<std::string>& modes) {
  BarChart chart{measure + " by class, in %", "", {}, 100};
  for (const std::size_t c : drawn_classes(rows)) {
    BarGroup group{rows[c].name, {}};
    for (std::size_t m = 0; m < modes.size(); ++m) {
      group.bars.push_back({modes[m], rows[c].modes[m]});
    }
    chart.groups.push_back(std::move(group));
  }
  return chart;
}

std::string describe_bars(const BarChart& chart) {
  for (const BarGroup& group : chart.groups) {
    for (const Bar& bar : group.bars) {
      if (!bar.spread.standard_deviation) continue;
      return "Mean over seeds; the whisker is one standard deviation either way, cut at 0 and 100.";
    }
  }
  return "";
}

/// Its rows lie beside those of `bars`.
std::optional<Figure> differences_figure(const ReportData& data, const std::string& measure,
                                         const std::vector<ClassRow>& rows, const BarChart& bars) {
  const PairedDifference& pair = data.comparison->pairs.front();
  DotChart chart{fmt::format("{}: {} − {}, seed by seed", measure, pair.a, pair.b), "", {}};
  chart.from_zero = true;
  chart.numbers = false;
  chart.top = top_of_rows(bars);
  chart.row = row_height(bars);
  DataTable table{{"class", "mean"}, {}};
  for (const std::uint64_t seed : pair.seeds) table.header.push_back(fmt::format("seed {}", seed));
  const auto value = [&](const std::string& mode, std::uint64_t seed, std::size_t c) {
    for (const RunRecord* run : data.of_mode(mode)) {
      if (run->seed == seed && run->summary) return figure_of(*run->summary, c);
    }
    return std::optional<double>();
  };
  for (const std::size_t c : drawn_classes(rows)) {
    DotRow row{rows[c].name, pair.a, {}};
    std::vector<double> differences;
    std::vector<Markup> cells;
    for (const std::uint64_t seed : pair.seeds) {
      const auto a = value(pair.a, seed, c), b = value(pair.b, seed, c);
      cells.push_back(a && b ? signed_number(*a - *b, 2) : Markup{"–"});
      if (!a || !b) continue;
      row.points.emplace_back(seed, *a - *b);
      differences.push_back(*a - *b);
    }
    const MeanSpread spread = mean_spread(differences);
    if (spread.count > 1) row.mean = spread.mean;
    cells.insert(cells.begin(), {escaped(row.label), signed_number(spread.mean, 2)});
    table.rows.push_back(std::move(cells));
    chart.rows.push_back(std::move(row));
  }
  const bool some = std::any_of(chart.rows.begin(), chart.rows.end(),
                                [](const DotRow& row) { return !row.points.empty(); });
  if (!some) return std::nullopt;
  return Figure{"class_differences", draw(chart), "A mark is a seed, the line their mean.",
                std::move(table)};
}

}  // namespace

void add_classes(const ReportData& data, Page& page) {
  if (!data.comparison) return;
  std::vector<std::string> modes;
  for (const ModeResult& mode : data.comparison->modes) modes.push_back(mode.mode);
  const std::vector<ClassRow> rows = class_rows(data, modes);
  if (rows.empty()) return;
  const std::string measure = data.score() == "top1" ? "Accuracy" : "IoU";
  page.section("classes", "Classes");
  if (rows.size() > kMostClasses) {
    page.note(
        fmt::format("Drawn are the {} of {} classes in which the modes differ most; the table "
                    "has all.",
                    kMostClasses, rows.size()));
  }
  std::vector<Figure> figures;
  const BarChart bars = bar_chart(measure, rows, modes);
  figures.push_back({"classes", draw(bars), describe_bars(bars), table_of(rows, modes)});
  if (data.compares()) {
    if (auto differences = differences_figure(data, measure, rows, bars)) {
      figures.push_back(std::move(*differences));
    }
  }
  page.figures(std::move(figures));
}

}  // namespace lockstep
