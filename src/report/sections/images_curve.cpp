#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "compare/table.h"
#include "report/sections/sections.h"

namespace lockstep {
namespace {

constexpr double kHeight = 250;

/// Where modes that are the same with any number of images stand: behind the last number.
double place_of_flat(const Curve& curve) { return 2.4 * static_cast<double>(curve.images.back()); }

Axis images_axis(const Curve& curve, bool flat) {
  std::vector<double> at(curve.images.begin(), curve.images.end());
  std::vector<std::string> labels;
  for (const std::int64_t images : curve.images) labels.push_back(std::to_string(images));
  if (flat) at.push_back(place_of_flat(curve)), labels.emplace_back("any");
  Axis axis = factor_axis(at);
  axis.labels = std::move(labels);
  return axis;
}

/// Lines that stand at the same place lie side by side: `number` of `count`.
double beside(double at, std::size_t number, std::size_t count) {
  const double apart = std::min(0.26, 0.52 / static_cast<double>(count));
  const double octaves =
      apart * (static_cast<double>(number) + 0.5 - static_cast<double>(count) / 2);
  return at * std::exp2(octaves);
}

/// The mean with its interval, and the seeds behind it.
void add_cell(Plot& plot, const Row& cell, const Series& series, double at) {
  for (const auto& [seed, score] : cell.score) {
    plot.marks.push_back(Dot{series,
                             {at * std::exp2(0.09), score},
                             fmt::format("{}, seed {}: {:.6g}", cell.name, seed, score),
                             2});
  }
  plot.marks.push_back(Mean{.series = series,
                            .at = at,
                            .mean = {},
                            .interval = score_interval(cell),
                            .half = 0,
                            .colored = true});
  plot.marks.push_back(Dot{series,
                           {at, cell.score_spread.mean},
                           fmt::format("{}: {:.6g} in the mean", cell.name, cell.score_spread.mean),
                           4,
                           true});
}

struct PlacedLine {
  const CurveLine* line = nullptr;
  std::size_t number = 0, count = 1;  // of those at the same places
};

std::vector<PlacedLine> placed(const Curve& curve) {
  std::vector<PlacedLine> lines;
  const auto of_kind = [&](bool flat) {
    return static_cast<std::size_t>(std::ranges::count_if(
        curve.lines, [&](const CurveLine& line) { return line.flat == flat; }));
  };
  std::size_t next[] = {0, 0};
  for (const CurveLine& line : curve.lines) {
    lines.push_back({&line, next[line.flat ? 1 : 0]++, of_kind(line.flat)});
  }
  return lines;
}

double place_of(const PlacedLine& placed, const CurvePoint& point, const Curve& curve) {
  const bool flat = placed.line->flat;
  const double at = flat ? place_of_flat(curve) : static_cast<double>(point.images);
  return beside(at, placed.number, placed.count);
}

void add_line(Plot& plot, const PlacedLine& placed, const Comparison& comparison) {
  const Curve& curve = *comparison.curve;
  Line line{mode_series(placed.line->mode), {}, placed.line->mode};
  for (const CurvePoint& point : placed.line->points) {
    const double mean = comparison.rows[point.cell].score_spread.mean;
    if (placed.line->flat) line.points.push_back({plot.positions->low, mean});
    line.points.push_back({place_of(placed, point, curve), mean});
  }
  plot.marks.push_back(std::move(line));
}

void add_cells(Plot& plot, const PlacedLine& placed, const Comparison& comparison) {
  for (const CurvePoint& point : placed.line->points) {
    const Row& cell = comparison.rows[point.cell];
    if (cell.score.empty()) continue;
    add_cell(plot, cell, mode_series(placed.line->mode),
             place_of(placed, point, *comparison.curve));
  }
}

DataTable table_of_cells(const Comparison& comparison) {
  DataTable table{{"mode", "images per device", comparison.score, "sd", "95 % from", "to"}, {}};
  const std::set<std::uint64_t> seeds = all_seeds(comparison);
  for (const std::uint64_t seed : seeds) table.header.push_back(fmt::format("seed {}", seed));
  for (const CurveLine& line : comparison.curve->lines) {
    for (const CurvePoint& point : line.points) {
      const Row& cell = comparison.rows[point.cell];
      const std::optional<Interval> interval = score_interval(cell);
      const auto bound = [&](double Interval::*end) {
        return interval ? number((*interval).*end, 2) : Markup{"–"};
      };
      std::vector<Markup> row{escaped(line.mode),
                              line.flat ? Markup{"any"} : escaped(std::to_string(point.images)),
                              number(cell.score_spread.mean, 2),
                              number(cell.score_spread.standard_deviation, 2),
                              bound(&Interval::low),
                              bound(&Interval::high)};
      for (const std::uint64_t seed : seeds) {
        const auto found = cell.score.find(seed);
        row.push_back(found == cell.score.end() ? Markup{"–"} : number(found->second, 2));
      }
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

Figure curve_figure(const Comparison& comparison) {
  const Curve& curve = *comparison.curve;
  const bool flat = std::ranges::any_of(curve.lines, &CurveLine::flat);
  Plot plot{fmt::format("{} over the images that share statistics, in %", comparison.score)};
  plot.x_label = fmt::format("images per device, of {} per step", curve.batch);
  plot.height = kHeight;
  plot.positions = images_axis(curve, flat);
  const std::vector<PlacedLine> lines = placed(curve);
  for (const PlacedLine& line : lines) add_line(plot, line, comparison);
  for (const PlacedLine& line : lines) add_cells(plot, line, comparison);
  return {"score_over_images", draw(plot),
          fmt::format("A line joins the means of a mode, a dotted one those of its weights by own "
                      "statistics, a bar is Student's 95 % interval of a mean (of six seeds or "
                      "more), a small mark is a seed.{}",
                      flat ? " At “any” stand the modes that are the same with any number." : ""),
          table_of_cells(comparison)};
}

/// "local, from 1 to 2 images per device: ...".
void add_steps(const Comparison& comparison, const std::vector<CurveStep>& steps, Page& page) {
  for (const CurveStep& step : steps) {
    const PairedDifference& pair = comparison.pairs[step.pair];
    page.paragraph(verdict(pair, comparison.adjustment.together).text() + ".");
  }
}

}  // namespace

void add_images_curve(const ReportData& data, Page& page) {
  if (!data.comparison || !data.comparison->curve || all_seeds(*data.comparison).empty()) return;
  const Comparison& comparison = *data.comparison;
  const Curve& curve = *comparison.curve;
  page.section("images-per-device", "Images per device");
  std::vector<Figure> figures;
  figures.push_back(curve_figure(comparison));
  page.figures(std::move(figures));
  page.note(fmt::format(
      "local(2) is local with two images per device: slices of a device stand for devices, and "
      "compute the same bits. With all {} images on one device local is sync. Differences are "
      "tested "
      "one after the other, from the fewest images on, until one is not shown.",
      curve.batch));
  for (const std::vector<CurveStep>* steps : steps_between_modes(curve)) {
    add_steps(comparison, *steps, page);
  }
  add_steps(comparison, curve.more_images, page);
}

}  // namespace lockstep
