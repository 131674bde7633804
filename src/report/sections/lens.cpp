#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <ranges>

#include "core/words.h"
#include "report/sections/sections.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostColumns = 100;
constexpr std::size_t kTableColumns = 8;
constexpr std::size_t kNamedLayers = 3;
constexpr std::size_t kMostNamedRows = 40;  // of more rows the blocks are named

struct Measure {
  std::string name, title, caption;
  std::function<double(const BatchNormDiagnostics&)> value;
};

std::vector<Measure> measures() {
  return {
      {"between_within", "Variance between parts / within",
       "Variance of the parts' means over the mean variance inside them, mean over channels:",
       [](const BatchNormDiagnostics& lens) { return lens.ratio_mean; }},
      {"log_variance", "|log| of part's / whole variance",
       "How far a part's variance lies from the whole batch's, as |log|: 0.7 is a factor of two. "
       "Mean "
       "over channels and parts:",
       [](const BatchNormDiagnostics& lens) { return lens.log_var_ratio; }},
      {"running_mean", "Devices' running means apart",
       "Largest distance of a device's running mean from device 0's, in standard deviations of the "
       "batch:",
       [](const BatchNormDiagnostics& lens) {
         const double variance = lens.within + lens.between;
         return variance > 0 ? lens.running_mean_spread / std::sqrt(variance) : 0;
       }}};
}

/// Means over the runs of a mode: [layer][step].
struct Grid {
  std::vector<std::string> layers;
  std::vector<double> steps;
  std::vector<std::vector<double>> values;  // NaN: not logged

  bool any() const {
    return std::ranges::any_of(values, [](const auto& row) {
      return std::ranges::any_of(row, [](double value) { return value > 0; });
    });
  }
};

struct RunningMean {
  double sum = 0;
  int count = 0;
  void add(double value) { sum += value, ++count; }
  double value() const { return count > 0 ? sum / count : std::nan(""); }
};

Grid grid_of(const std::vector<const RunRecord*>& runs, const Measure& measure) {
  Grid grid;
  std::map<double, std::map<std::string, RunningMean>> cells;
  for (const RunRecord* run : runs) {
    for (const BatchNormDiagnostics& lens : run->lens) {
      if (std::ranges::find(grid.layers, lens.layer) == grid.layers.end()) {
        grid.layers.push_back(lens.layer);
      }
      cells[static_cast<double>(lens.step)][lens.layer].add(measure.value(lens));
    }
  }
  grid.values.resize(grid.layers.size());
  for (auto& [step, layers] : cells) {
    grid.steps.push_back(step);
    for (std::size_t l = 0; l < grid.layers.size(); ++l) {
      grid.values[l].push_back(layers[grid.layers[l]].value());
    }
  }
  return grid;
}

/// At most kMostColumns columns, each the mean of as many neighbours, named by the last of them.
Grid merge_columns(const Grid& grid) {
  const std::size_t stride = (grid.steps.size() + kMostColumns - 1) / kMostColumns;
  if (stride <= 1) return grid;
  Grid merged{grid.layers, {}, std::vector<std::vector<double>>(grid.layers.size())};
  for (std::size_t first = 0; first < grid.steps.size(); first += stride) {
    const std::size_t end = std::min(first + stride, grid.steps.size());
    merged.steps.push_back(grid.steps[end - 1]);
    for (std::size_t l = 0; l < grid.layers.size(); ++l) {
      RunningMean mean;
      for (std::size_t c = first; c < end; ++c) {
        if (std::isfinite(grid.values[l][c])) mean.add(grid.values[l][c]);
      }
      merged.values[l].push_back(mean.value());
    }
  }
  return merged;
}

DataTable table_of(const Grid& grid) {
  DataTable table{{"layer"}, {}};
  std::vector<std::size_t> columns;
  const std::size_t count = grid.steps.size(), shown = std::min(count, kTableColumns);
  for (std::size_t i = 0; i < shown; ++i) {
    columns.push_back(shown == 1 ? 0 : i * (count - 1) / (shown - 1));
    table.header.push_back(fmt::format("step {:.0f}", grid.steps[columns.back()]));
  }
  for (std::size_t l = 0; l < grid.layers.size(); ++l) {
    std::vector<Markup> row{escaped(grid.layers[l])};
    for (const std::size_t c : columns) row.push_back(number(grid.values[l][c], 4));
    table.rows.push_back(std::move(row));
  }
  return table;
}

void add_measure(const ReportData& data, const Measure& measure, Page& page) {
  std::vector<std::pair<std::string, Grid>> grids;
  std::vector<double> all;
  for (const std::string& mode : data.modes()) {
    Grid grid = grid_of(data.of_mode(mode), measure);
    if (!grid.any()) continue;
    Grid merged = merge_columns(grid);
    for (const auto& row : merged.values) all.insert(all.end(), row.begin(), row.end());
    grids.emplace_back(mode, std::move(merged));
  }
  const HeatLevels levels = levels_for(all);
  std::vector<Figure> figures;
  for (const auto& [mode, grid] : grids) {
    Plot plot{measure.title + ", " + mode, grid.layers};
    plot.marks = {Cells{grid.steps, grid.values, levels}};
    plot.x_label = "step";
    plot.row_height = grid.layers.size() > kMostNamedRows ? 7 : 15;
    figures.push_back(
        {"lens_" + measure.name + "_" + folder_of_label(mode), draw(plot), "", table_of(grid)});
  }
  if (figures.empty()) return;
  page.note(measure.caption);
  page.figures(std::move(figures));
}

/// "bn1 (0.035), ...": the layers whose parts differ most at the end.
std::string worst_layers(const Grid& grid) {
  std::vector<std::pair<double, std::string>> layers;
  for (std::size_t l = 0; l < grid.layers.size(); ++l) {
    const double last = grid.values[l].back();
    if (std::isfinite(last)) layers.emplace_back(last, grid.layers[l]);
  }
  std::ranges::stable_sort(layers, [](const auto& a, const auto& b) { return a.first > b.first; });
  return joined(layers | std::views::take(kNamedLayers) |
                std::views::transform([](const auto& layer) {
                  return fmt::format("{} ({:.3g})", layer.second, layer.first);
                }));
}

bool averaged(const ReportData& data) {
  const auto modes = data.modes();
  return std::ranges::any_of(
      modes, [&](const std::string& mode) { return data.of_mode(mode).size() > 1; });
}

std::size_t most(const ReportData& data, const Measure& measure,
                 const std::function<std::size_t(const Grid&)>& of) {
  std::size_t most = 0;
  for (const std::string& mode : data.modes()) {
    most = std::max(most, of(grid_of(data.of_mode(mode), measure)));
  }
  return most;
}

}  // namespace

void add_lens(const ReportData& data, Page& page) {
  const std::vector<Measure> all = measures();
  std::string worst;
  for (const std::string& mode : data.modes()) {
    const Grid grid = grid_of(data.of_mode(mode), all.front());
    if (!grid.any()) continue;
    worst += fmt::format("{}{}: {}", worst.empty() ? "" : "; ", mode, worst_layers(grid));
  }
  if (worst.empty()) return;
  page.section("batchnorm", "BatchNorm");
  page.paragraph(
      "How much the parts of a batch (devices, or slices of a virtual one) differ from the whole. "
      "Near 0 they are alike and the modes nearly the same computation. In the last step they "
      "differ most in these layers, by variance between over within – " +
      worst + ".");
  std::string note =
      "Layers in forward order; colours are logarithmic, and the same for the modes.";
  if (averaged(data)) note += " Cells are means over seeds.";
  const auto layers = [](const Grid& grid) { return grid.layers.size(); };
  if (most(data, all.front(), layers) > kMostNamedRows) {
    note += " Beside the rows stand the blocks of layers; the tables name every layer.";
  }
  const std::size_t steps =
      most(data, all.front(), [](const Grid& grid) { return grid.steps.size(); });
  if (steps > kMostColumns) {
    note += fmt::format(" A column is the mean of {} logged steps.",
                        (steps + kMostColumns - 1) / kMostColumns);
  }
  page.note(note);
  for (const Measure& measure : all) add_measure(data, measure, page);
}

}  // namespace lockstep
