#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

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
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return widest_gap(rows[a]) > widest_gap(rows[b]);
  });
  order.resize(kMostClasses);
  std::ranges::sort(order);
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

/// One mode's mean, with a whisker of one standard deviation.
void add_bar(Plot& plot, const ClassRow& row, const std::vector<std::string>& modes, std::size_t m,
             double at, double width) {
  const MeanSpread& spread = row.modes[m];
  if (spread.count == 0 || !std::isfinite(spread.mean)) return;
  const Series series = mode_series(modes[m]);
  std::string title = fmt::format("{}, {}: {:.2f}", row.name, modes[m], spread.mean);
  if (spread.standard_deviation) title += fmt::format(" ± {:.2f}", *spread.standard_deviation);
  plot.marks.push_back(Bar{series, at, 0, spread.mean, title, width});
  if (!spread.standard_deviation) return;
  const Interval whisker{spread.mean - *spread.standard_deviation,
                         spread.mean + *spread.standard_deviation};
  plot.marks.push_back(Mean{series, at, {}, whisker, "", 0});
}

Plot bar_chart(const std::string& measure, const std::vector<ClassRow>& rows,
               const std::vector<std::string>& modes) {
  Plot plot{measure + " by class, in %"};
  plot.row_height = std::max(17.0, 12.0 * static_cast<double>(modes.size()));
  plot.limits = Interval{0, 100};
  const double width = 0.72 / static_cast<double>(modes.size());
  for (const std::size_t c : drawn_classes(rows)) {
    const auto row = static_cast<double>(plot.rows.size());
    plot.rows.push_back(rows[c].name);
    for (std::size_t m = 0; m < modes.size(); ++m) {
      add_bar(plot, rows[c], modes, m, row + width * (static_cast<double>(m) + 0.5) - 0.36, width);
    }
  }
  return plot;
}

std::string describe_bars(const std::vector<ClassRow>& rows) {
  for (const ClassRow& row : rows) {
    for (const MeanSpread& mode : row.modes) {
      if (!mode.standard_deviation) continue;
      return "Mean over seeds; the whisker is one standard deviation either way, cut at 0 and 100.";
    }
  }
  return "";
}

/// Its rows lie beside those of `bars`.
std::optional<Figure> differences_figure(const ReportData& data, const std::string& measure,
                                         const std::vector<ClassRow>& rows, const Plot& bars,
                                         const PairedDifference& pair) {
  Plot plot{fmt::format("{}: {} − {}, seed by seed", measure, pair.a, pair.b)};
  plot.zero = true;
  plot.legend = false;
  plot.least_top = top_of(bars);
  plot.row_height = bars.row_height;
  DataTable table{{"class", "mean"}, {}};
  for (const std::uint64_t seed : pair.seeds) table.header.push_back(fmt::format("seed {}", seed));
  const auto value = [&](const std::string& mode, std::uint64_t seed, std::size_t c) {
    for (const RunRecord* run : data.of_mode(mode)) {
      if (run->seed == seed && run->summary) return figure_of(*run->summary, c);
    }
    return std::optional<double>();
  };
  bool some = false;
  for (const std::size_t c : drawn_classes(rows)) {
    SeedRow row{rows[c].name, pair.a};
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
    some = some || !row.points.empty();
    add_row(plot, row);
  }
  if (!some) return std::nullopt;
  return Figure{"class_differences", draw(plot), "A mark is a seed, the line their mean.",
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
  const Plot bars = bar_chart(measure, rows, modes);
  figures.push_back({"classes", draw(bars), describe_bars(rows), table_of(rows, modes)});
  for (const PairedDifference& pair : data.comparison->pairs) {  // the first of modes
    if (auto differences = differences_figure(data, measure, rows, bars, pair)) {
      figures.push_back(std::move(*differences));
      break;
    }
  }
  page.figures(std::move(figures));
}

}  // namespace lockstep
