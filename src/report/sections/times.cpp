#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "report/sections/curve_figure.h"
#include "report/sections/sections.h"

namespace lockstep {
namespace {

/// Of the runs whose steps were timed.
std::vector<const TrainSummary*> summaries(const ReportData& data, const std::string& mode) {
  std::vector<const TrainSummary*> found;
  for (const RunRecord* run : data.of_mode(mode)) {
    if (run->summary && run->summary->times.known()) found.push_back(&*run->summary);
  }
  return found;
}

/// Whether the virtual devices of a mode share cores, so that they mostly wait for one. Runs of
/// earlier versions do not say so themselves.
bool shares_cores(const ReportData& data, const std::string& mode) {
  const std::vector<const RunRecord*> runs = data.of_mode(mode);
  return std::ranges::any_of(runs, [](const RunRecord* run) {
    const bool more = run->devices.starts_with("cpu") && run->cores > 0 && run->summary &&
                      run->summary->device_count > run->cores;
    return more || (run->summary && run->summary->shares_cores);
  });
}

bool any_shares_cores(const ReportData& data) {
  const std::vector<std::string> modes = data.modes();
  return std::ranges::any_of(modes,
                             [&](const std::string& mode) { return shares_cores(data, mode); });
}

std::string name_of_waiting(const ReportData& data) {
  return any_shares_cores(data) ? "waiting, mostly for a core" : "waiting in BatchNorm";
}

double mean_ms(const std::vector<const TrainSummary*>& runs,
               const std::function<double(const TrainSummary&)>& seconds) {
  double sum = 0;
  for (const TrainSummary* run : runs) sum += seconds(*run);
  return 1000 * sum / static_cast<double>(runs.size());
}

/// Bars of parts, and the table behind them.
struct Parts {
  std::string title;
  std::vector<std::string> phases;  // an empty name: this figure leaves it out
  std::vector<std::string> rows = {};
  std::vector<std::vector<double>> ms = {};  // [row][phase]
};

Figure parts_figure(const std::string& name, const Parts& parts, const std::string& caption,
                    const std::string& of) {
  Plot plot{parts.title, parts.rows};
  plot.row_height = parts.rows.size() > 6 ? 17 : 24;
  DataTable table{{of}, {}};
  table.header.insert(table.header.end(), parts.phases.begin(), parts.phases.end());
  for (std::size_t r = 0; r < parts.rows.size(); ++r) {
    double sum = 0;
    std::vector<Markup> cells{escaped(parts.rows[r])};
    for (std::size_t p = 0; p < parts.phases.size(); ++p) {
      cells.push_back(number(parts.ms[r][p], 2));
      const double part = std::max(0.0, parts.ms[r][p]);
      plot.marks.push_back(
          Bar{part_series(parts.phases[p], p), static_cast<double>(r), sum, sum + part,
              fmt::format("{}, {}: {:.4g}", parts.rows[r], parts.phases[p], part)});
      sum += part;
    }
    table.rows.push_back(std::move(cells));
  }
  return {name, draw(plot), caption, std::move(table)};
}

Figure phases_figure(const ReportData& data) {
  Parts parts{
      "Time of a step, ms",
      {"waiting for data", "compute", name_of_waiting(data), "gradients and update", "other"}};
  for (const std::string& mode : data.modes()) {
    const auto runs = summaries(data, mode);
    if (runs.empty()) continue;
    using Times = const MeanTimes&;
    const auto part = [&](const std::function<double(Times)>& of) {
      return mean_ms(runs, [&](const TrainSummary& run) { return of(run.times); });
    };
    parts.rows.push_back(mode);
    parts.ms.push_back(
        {part([](Times t) { return t.data; }), part([](Times t) { return t.compute; }),
         part([](Times t) { return t.batch_norm_wait; }),
         part([](Times t) { return t.gradient_exchange; }), part([](Times t) {
           return t.step - t.data - t.compute - t.batch_norm_wait - t.gradient_exchange;
         })});
  }
  return parts_figure("step_phases", parts, "Means over steps, devices and seeds.", "mode");
}

std::optional<Figure> devices_figure(const ReportData& data) {
  Parts parts{"Time of a step by device, ms",
              {"", "compute", name_of_waiting(data), "gradients and update"}};
  for (const std::string& mode : data.modes()) {
    const auto runs = summaries(data, mode);
    if (runs.empty()) continue;
    const std::size_t ranks = runs.front()->ranks.size();
    const bool equal = std::ranges::all_of(
        runs, [&](const TrainSummary* run) { return run->ranks.size() == ranks; });
    if (!equal || ranks < 2) continue;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto part = [&](double StepTimes::*time) {
        return mean_ms(runs, [&](const TrainSummary& run) { return run.ranks[rank].times.*time; });
      };
      parts.rows.push_back(mode + " " + runs.front()->ranks[rank].device);
      parts.ms.push_back({0, part(&StepTimes::compute), part(&StepTimes::batch_norm_wait),
                          part(&StepTimes::gradient_exchange)});
    }
  }
  if (parts.rows.empty()) return std::nullopt;
  return parts_figure("step_by_device", parts,
                      "Means over steps and seeds. In mode sync the others wait for the device "
                      "that itself waits least.",
                      "device");
}

DataTable times_table(const ReportData& data) {
  DataTable table{{"mode", "devices", "ms per step", "± sd", "images/s", "± sd",
                   "waiting in BatchNorm, %", "± sd"},
                  {}};
  for (const ModeResult& mode : data.comparison->modes) {
    const auto scaled = [](std::optional<double> value) {
      return value ? std::optional(100 * *value) : std::nullopt;
    };
    const bool unknown = shares_cores(data, mode.mode);
    table.rows.push_back(
        {escaped(mode.mode), escaped(mode.devices), number(mode.step_ms.mean, 1),
         number(mode.step_ms.standard_deviation, 1), number(mode.images_per_second.mean, 1),
         number(mode.images_per_second.standard_deviation, 1),
         unknown ? Markup{"–"} : number(100 * mode.waiting_share.mean, 1),
         unknown ? Markup{"–"} : number(scaled(mode.waiting_share.standard_deviation), 1)});
  }
  return table;
}

// Only sync synchronizes; virtual runs on another number of devices.
std::string meaning(const PairedDifference& pair, double mean,
                    const std::optional<Interval>& interval) {
  if (pair.a != "sync" || pair.b != "local" || !interval) return ".";
  if (interval->low <= 0 && interval->high >= 0) {
    return ": a cost of synchronization is not shown.";
  }
  return mean > 0 ? ": that is what synchronization costs here."
                  : ": a cost of synchronization is not to be seen here.";
}

/// The difference of median step times, seed by seed.
std::string cost(const ReportData& data, const PairedDifference& pair) {
  std::vector<double> differences, base;
  for (const TrainSummary* a : summaries(data, pair.a)) {
    for (const TrainSummary* b : summaries(data, pair.b)) {
      if (a->seed != b->seed) continue;
      differences.push_back(1000 * (a->times.median_step - b->times.median_step));
      base.push_back(1000 * b->times.median_step);
    }
  }
  if (differences.empty()) return "";
  const double mean = mean_spread(differences).mean, of = mean_spread(base).mean;
  const bool settles = smallest_p_value(static_cast<int>(differences.size())) <= kLevel;
  std::optional<Interval> interval;
  if (settles) interval = t_interval(differences, 1 - kLevel);
  std::string text =
      fmt::format("A step of {} takes {:.1f} ms ({:.1f} %) {} than one of {}", pair.a,
                  std::abs(mean), 100 * std::abs(mean) / of, mean < 0 ? "less" : "more", pair.b);
  if (interval) {
    text += fmt::format(" (95 % interval {} to {} ms, {} seeds, medians of steps)",
                        signed_text(interval->low, 1), signed_text(interval->high, 1),
                        differences.size());
  }
  return text + meaning(pair, mean, interval);
}

}  // namespace

void add_times(const ReportData& data, Page& page) {
  const std::vector<std::string> modes = data.modes();
  const auto timed = [&](const std::string& mode) { return !summaries(data, mode).empty(); };
  if (!data.comparison || std::ranges::none_of(modes, timed)) return;
  page.section("time", "Time");
  for (const PairedDifference& pair : data.comparison->pairs) {
    if (const std::string text = cost(data, pair); !text.empty()) page.paragraph(text);
  }
  if (any_shares_cores(data)) {
    page.paragraph(
        "There are more virtual devices than cores: what a device waits in BatchNorm is mostly the "
        "time in "
        "which other devices had the core, as in mode local a part of \"compute\" is, and no cost "
        "of synchronization.");
  }
  page.table(times_table(data));
  std::vector<Figure> figures;
  figures.push_back(phases_figure(data));
  if (auto devices = devices_figure(data)) figures.push_back(std::move(*devices));
  const CurveSource steps{"step_time", "Time per step, ms", &RunRecord::step_seconds, true, 2,
                          1000};
  if (auto curve = curve_figure(data, steps)) {
    curve->figure.caption = "Means over the steps since the point before, with the time for data.";
    figures.push_back(std::move(curve->figure));
  }
  page.figures(std::move(figures));
}

}  // namespace lockstep
