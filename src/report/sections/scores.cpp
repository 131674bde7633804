#include <fmt/format.h>

#include <algorithm>

#include "compare/table.h"
#include "report/sections/sections.h"
#include "run/disparity.h"

namespace lockstep {
namespace {

DataTable table_by_seed(const Comparison& comparison) {
  const std::set<std::uint64_t> seeds = all_seeds(comparison);
  DataTable table{{comparison.score, "mean", "sd"}, {}};
  for (const std::uint64_t seed : seeds) table.header.push_back(fmt::format("seed {}", seed));
  for (const Row* scored : rows_by_mode(comparison)) {
    std::vector<Markup> row{escaped(scored->name), number(scored->score_spread.mean, 2),
                            number(scored->score_spread.standard_deviation, 2)};
    for (const std::uint64_t seed : seeds) {
      const auto found = scored->score.find(seed);
      row.push_back(found == scored->score.end() ? Markup{"–"} : number(found->second, 2));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

Markup p_number(std::optional<double> value) {
  if (!value || *value >= 0.001) return number(value, 3);
  return {fmt::format("<data value=\"{}\">{}</data>", *value, escaped(format_p(value)).text)};
}

DataTable table_of_pairs(const Comparison& comparison) {
  DataTable table{{"difference", "mean", "sd", "95 % from", "to", "p", comparison.adjustment.title,
                   "smallest p"},
                  {}};
  const std::set<std::uint64_t> seeds = all_seeds(comparison);
  for (const std::uint64_t seed : seeds) table.header.push_back(fmt::format("seed {}", seed));
  for (const PairedDifference& pair : comparison.pairs) {
    const bool settles = pair.can_settle();
    const auto bound = [&](double Interval::*end) {
      return settles && pair.interval ? signed_number((*pair.interval).*end, 2) : Markup{"–"};
    };
    const auto p = [&](std::optional<double> value) {
      return settles ? p_number(value) : Markup{"–"};
    };
    std::vector<Markup> row{escaped(pair.a + " − " + pair.b),
                            signed_number(pair.spread.mean, 2),
                            number(pair.spread.standard_deviation, 2),
                            bound(&Interval::low),
                            bound(&Interval::high),
                            p(pair.p_value),
                            p(pair.p_adjusted),
                            p_number(pair.smallest_p)};
    for (const std::uint64_t seed : seeds) {
      const auto found = std::ranges::find(pair.seeds, seed);
      row.push_back(
          found == pair.seeds.end()
              ? Markup{"–"}
              : signed_number(
                    pair.differences[static_cast<std::size_t>(found - pair.seeds.begin())], 2));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

/// Joins each seed's runs in neighbouring rows.
void join_seeds(Plot& plot, const std::vector<const Row*>& rows) {
  for (std::size_t r = 0; r + 1 < rows.size(); ++r) {
    for (const auto& [seed, score] : rows[r]->score) {
      const auto below = rows[r + 1]->score.find(seed);
      if (below == rows[r + 1]->score.end()) continue;
      const auto row = static_cast<double>(r);
      plot.marks.push_back(Line{
          {"", "pair"}, {{row, score}, {row + 1, below->second}}, fmt::format("seed {}", seed)});
    }
  }
}

Figure score_figure(const Comparison& comparison) {
  Plot plot{comparison.score + " on the validation split, in %"};
  plot.legend = false;
  std::vector<const Row*> rows;
  for (const Row* row : rows_by_mode(comparison)) {
    if (!row->score.empty()) rows.push_back(row);
  }
  join_seeds(plot, rows);
  for (const Row* scored : rows) {
    SeedRow row{scored->name, scored->name, {scored->score.begin(), scored->score.end()}};
    if (scored->score.size() > 1) row.mean = scored->score_spread.mean;
    if (row.mean) row.number = format_number(*row.mean, 2);
    add_row(plot, row);
  }
  return {
      "score", draw(plot),
      comparison.pairs.empty()
          ? "A mark is a seed, the line across their mean."
          : "A mark is a seed, the line across their mean; thin lines join a seed's runs, which "
            "had the same initial weights and images.",
      table_by_seed(comparison)};
}

std::optional<Figure> difference_figure(const Comparison& comparison) {
  Plot plot{"Difference in " + comparison.score + ", seed by seed"};
  plot.zero = true;
  plot.legend = false;
  const std::vector<const PairedDifference*> told = told_pairs(comparison);
  for (const PairedDifference* drawn : told) {
    const PairedDifference& pair = *drawn;
    if (pair.seeds.empty()) continue;
    SeedRow row{pair.a + " − " + pair.b, pair.a};
    for (std::size_t i = 0; i < pair.seeds.size(); ++i) {
      row.points.emplace_back(pair.seeds[i], pair.differences[i]);
    }
    if (pair.seeds.size() > 1) row.mean = pair.spread.mean;
    if (row.mean) row.number = signed_text(*row.mean, 2);
    if (pair.can_settle()) row.interval = pair.interval;
    add_row(plot, row);
  }
  if (plot.rows.empty()) return std::nullopt;
  const bool whiskers = std::ranges::any_of(told, &PairedDifference::can_settle);
  std::string caption = whiskers ? "The whisker is Student's 95 % interval of the mean difference."
                                 : "A mark is a seed; so few of them have no interval.";
  for (const PairedDifference* pair : told) caption += " " + answer(*pair) + ".";
  return Figure{"difference", draw(plot), caption, table_of_pairs(comparison)};
}

DataTable summary_table(const Comparison& comparison) {
  DataTable table{
      {"mode", "evaluated by", comparison.score, "± sd", "val loss", "± sd", "train loss", "± sd"},
      {}};
  const bool windows = has_windows(comparison);
  if (windows) table.header.insert(table.header.end(), {"tile mismatch", "± sd"});
  for (const Row* scored : rows_by_mode(comparison)) {
    const ModeResult& mode = comparison.modes[scored->mode];
    std::vector<Markup> row{escaped(mode.mode), escaped(scored->statistics())};
    const auto add = [&](const MeanSpread& spread, int digits) {
      row.push_back(spread.count == 0 ? Markup{"–"} : number(spread.mean, digits));
      row.push_back(number(spread.standard_deviation, digits));
    };
    add(scored->score_spread, 2);
    add(scored->val_loss, 3);
    add(mode.train_loss, 3);
    if (windows) add(scored->mismatch, 4);
    table.rows.push_back(std::move(row));
  }
  return table;
}

void add_other_statistics(const Comparison& comparison, Page& page) {
  DataTable table{{"other statistics", comparison.score, "± sd"}, {}};
  for (const ModeResult& mode : comparison.modes) {
    for (const auto& [stats, spread] : mode.other_stats) {
      if (stats == to_string(EvalStats::kOwn)) continue;
      table.rows.push_back({escaped(mode.mode + ", " + stats), number(spread.mean, 2),
                            number(spread.standard_deviation, 2)});
    }
  }
  if (table.rows.empty()) return;
  page.note(
      "The same weights evaluated with other statistics: where these differ much, "
      "the gap between modes is one of evaluation and not of the weights.");
  page.table(table);
}

/// Whether a bad validation comes from the statistics or from the weights.
void add_disparity(const ReportData& data, Page& page) {
  for (const std::string& mode : data.modes()) {
    std::vector<TrainSummary> runs;
    for (const RunRecord* run : data.of_mode(mode)) {
      if (run->summary) runs.push_back(*run->summary);
    }
    if (const auto scores = compare_statistics(runs)) {
      page.paragraph(fmt::format("{}: {}.", mode, explain(*scores)));
    }
  }
}

}  // namespace

void add_row(Plot& plot, const SeedRow& row) {
  const bool low = plot.row_height < 40;
  const auto at = static_cast<double>(plot.rows.size());
  const Series series = mode_series(row.mode);
  plot.rows.push_back(row.label);
  plot.marks.push_back(Mean{series, at, row.mean, row.interval, row.number, low ? 6.0 : 9.0});
  for (const auto& [seed, value] : row.points) {
    plot.marks.push_back(Dot{series,
                             {at, value},
                             fmt::format("{}, seed {}: {:.6g}", row.label, seed, value),
                             low ? 2.6 : 3.6});
  }
}

void add_scores(const ReportData& data, Page& page) {
  if (!data.comparison || all_seeds(*data.comparison).empty()) return;
  page.section("score", "Score");
  page.table(summary_table(*data.comparison));
  std::vector<Figure> figures;
  if (data.runs.size() > 1) figures.push_back(score_figure(*data.comparison));
  if (data.compares()) {
    if (auto differences = difference_figure(*data.comparison)) {
      figures.push_back(std::move(*differences));
    }
  }
  page.figures(std::move(figures));
  add_other_statistics(*data.comparison, page);
  add_disparity(data, page);
}

}  // namespace lockstep
