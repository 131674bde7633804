#include "compare/comparison.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "config/config.h"
#include "lockstep/core/check.h"
#include "run/disparity.h"

namespace lockstep {
namespace {

using Summaries = std::vector<const TrainSummary*>;

struct RunsOfMode {
  Cell cell;
  Summaries runs;  // in order of seeds
};

std::vector<RunsOfMode> group_by_mode(std::span<const TrainSummary> runs) {
  std::vector<RunsOfMode> groups;
  const bool curve = are_of_curve(runs);
  for (const TrainSummary& run : runs) {
    const Cell cell = cell_of(run, curve);
    auto group = std::ranges::find_if(
        groups, [&](const RunsOfMode& g) { return g.cell.label() == cell.label(); });
    if (group == groups.end()) group = groups.insert(groups.end(), {cell, {}});
    for (const TrainSummary* other : group->runs) {
      if (other->seed == run.seed) {
        throw ConfigError(concat("two runs of mode ", cell.label(), " with seed ", run.seed, ": ",
                                 other->run.string(), " and ", run.run.string(),
                                 "; leave one of them out"));
      }
    }
    group->runs.push_back(&run);
  }
  for (RunsOfMode& group : groups) {
    std::ranges::sort(group.runs, {}, &TrainSummary::seed);
  }
  // However they were found: a report says "instance - sync" where the comparison does.
  std::ranges::stable_sort(groups, [](const RunsOfMode& a, const RunsOfMode& b) {
    return comes_before(a.cell, b.cell);
  });
  return groups;
}

Task common_task(std::span<const TrainSummary> runs) {
  const TrainSummary& first = runs.front();
  for (const TrainSummary& run : runs) {
    if (run.evaluation.task == first.evaluation.task) continue;
    throw ConfigError(concat(first.run.string(), " is a ", to_string(first.evaluation.task), ", ",
                             run.run.string(), " a ", to_string(run.evaluation.task),
                             ": they have no score in common"));
  }
  return first.evaluation.task;
}

/// Mean and spread over runs of what `value` gives; runs where it gives nothing are left out.
MeanSpread over(const Summaries& runs,
                const std::function<std::optional<double>(const TrainSummary&)>& value) {
  std::vector<double> values;
  for (const TrainSummary* run : runs) {
    if (const std::optional<double> v = value(*run)) values.push_back(*v);
  }
  return mean_spread(values);
}

/// The same of figures of steps, which a run that was only evaluated again may lack.
MeanSpread over_timed(const Summaries& runs,
                      const std::function<double(const TrainSummary&)>& value) {
  return over(runs, [&](const TrainSummary& run) {
    return run.times.known() ? std::optional(value(run)) : std::nullopt;
  });
}

std::vector<LayerComparison> mean_layers(const Summaries& runs) {
  std::vector<LayerComparison> layers;
  std::vector<int> counts;
  for (const TrainSummary* run : runs) {
    for (std::size_t i = 0; i < run->batch_norms.size(); ++i) {
      const BatchNormDiagnostics& lens = run->batch_norms[i];
      if (i == layers.size())
        layers.push_back({lens.layer, lens.count, 0, 0, 0}), counts.push_back(0);
      // Runs of other networks have been warned about; their layers must not be mixed.
      if (layers[i].layer != lens.layer) continue;
      layers[i].ratio_mean += lens.ratio_mean;
      layers[i].ratio_max += lens.ratio_max;
      layers[i].log_var_ratio += lens.log_var_ratio;
      ++counts[i];
    }
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i].ratio_mean /= counts[i];
    layers[i].ratio_max /= counts[i];
    layers[i].log_var_ratio /= counts[i];
  }
  return layers;
}

void add_other_stats(ModeResult& result, const Summaries& runs) {
  std::map<std::string, std::vector<double>> values;
  for (const TrainSummary* run : runs) {
    for (const Evaluation& evaluation : run->other_stats) {
      if (const auto reached = score(evaluation)) {
        values[to_string(evaluation.eval_stats)].push_back(*reached);
      }
    }
  }
  for (const auto& [stats, of_runs] : values) result.other_stats[stats] = mean_spread(of_runs);
}

Row make_row(const RunsOfMode& group, std::size_t mode, const std::string& by, EvalStats stats) {
  Row row;
  row.cell = group.cell;
  row.cell.by = by;
  row.mode = mode;
  row.stats = stats;
  row.name = row.cell.label();
  std::vector<double> scores, losses, mismatches;
  for (const TrainSummary* run : group.runs) {
    const Evaluation* evaluation = find_evaluation(*run, stats);
    if (evaluation == nullptr) continue;
    if (const auto reached = score(*evaluation)) {
      row.score[run->seed] = *reached;
      scores.push_back(*reached);
    }
    if (evaluation->loss) losses.push_back(*evaluation->loss);
    if (evaluation->mismatch) mismatches.push_back(evaluation->mismatch->mean_difference());
  }
  row.score_spread = mean_spread(scores);
  row.val_loss = mean_spread(losses);
  row.mismatch = mean_spread(mismatches);
  return row;
}

/// As the runs are evaluated, and the same weights by own statistics, or by running ones where that
/// is how they are.
std::vector<Row> make_rows(const std::vector<RunsOfMode>& groups) {
  std::vector<Row> as_run, others;
  for (std::size_t mode = 0; mode < groups.size(); ++mode) {
    const RunsOfMode& group = groups[mode];
    const EvalStats stats = group.runs.front()->evaluation.eval_stats;
    as_run.push_back(make_row(group, mode, "", stats));
    const bool running = are_running(stats);
    Row other = make_row(group, mode, running ? "own" : "running",
                         running ? EvalStats::kOwn : EvalStats::kDevice0);
    if (!other.score.empty()) others.push_back(std::move(other));
  }
  as_run.insert(as_run.end(), others.begin(), others.end());
  return as_run;
}

ModeResult summarize(const RunsOfMode& group) {
  ModeResult result;
  result.cell = group.cell;
  result.mode = group.cell.label();
  result.devices = group.runs.front()->placement;
  result.sync_layers = group.runs.front()->sync_layers;
  const Summaries& runs = group.runs;
  for (const TrainSummary* run : runs) result.runs[run->seed] = run->run;
  result.train_loss = over(runs, [](const auto& run) { return run.train_loss; });
  result.step_ms = over_timed(runs, [](const auto& run) { return 1000 * run.times.median_step; });
  result.waiting_share = over_timed(runs, [](const auto& run) { return run.waiting_share; });
  result.shares_cores = std::ranges::any_of(runs, &TrainSummary::shares_cores);
  result.images_per_second =
      over_timed(runs, [](const auto& run) { return run.images_per_second; });
  add_other_stats(result, runs);
  result.layers = mean_layers(runs);
  return result;
}

PairedDifference difference(const Row& a, const Row& b, const std::string& score) {
  PairedDifference pair;
  pair.score = score;
  pair.a = a.name;
  pair.b = b.name;
  for (const auto& [seed, reached] : a.score) {
    const auto other = b.score.find(seed);
    if (other == b.score.end()) continue;
    pair.seeds.push_back(seed);
    pair.differences.push_back(reached - other->second);
  }
  for (const Row* row : {&a, &b}) {
    if (row->score.empty()) pair.unscored.push_back(row->name);
  }
  pair.spread = mean_spread(pair.differences);
  pair.interval = t_interval(pair.differences, 1 - kLevel);
  pair.p_value = sign_flip_p_value(pair.differences);
  pair.smallest_p = smallest_p_value(static_cast<int>(pair.seeds.size()));
  return pair;
}

void adjust_together(std::vector<PairedDifference>& pairs) {
  std::vector<Differences> differences;
  for (const PairedDifference& pair : pairs) {
    Differences& of_pair = differences.emplace_back();
    for (std::size_t i = 0; i < pair.seeds.size(); ++i) {
      of_pair[pair.seeds[i]] = pair.differences[i];
    }
  }
  const std::vector<std::optional<double>> adjusted = step_down_p_values(differences);
  for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i].p_adjusted = adjusted[i];
}

void compare_all(Comparison& comparison) {
  for (std::size_t b = 0; b < comparison.rows.size(); ++b) {
    for (std::size_t a = b + 1; a < comparison.rows.size(); ++a) {
      comparison.pairs.push_back(
          difference(comparison.rows[a], comparison.rows[b], comparison.score));
    }
  }
  adjust_together(comparison.pairs);
  comparison.adjustment.together = comparison.pairs.size();
}

/// Each is tested at the whole level as long as those before it have shown a difference (Maurer et
/// al. 1995): of all p-values up to it the largest counts.
void compare_steps(Comparison& comparison, std::vector<CurveStep>& steps) {
  std::string mode;
  double largest = 0;
  for (CurveStep& step : steps) {
    if (step.mode != mode) mode = step.mode, largest = 0;
    step.pair = comparison.pairs.size();
    PairedDifference& pair = comparison.pairs.emplace_back(
        difference(comparison.rows[step.a], comparison.rows[step.b], comparison.score));
    largest = std::max(largest, pair.p_value.value_or(1));
    if (pair.p_value) pair.p_adjusted = largest;
  }
}

std::vector<Cell> cells_of(const Comparison& comparison) {
  std::vector<Cell> cells;
  for (const Row& row : comparison.rows) cells.push_back(row.cell);
  return cells;
}

/// Runs are comparable when they agree in everything but mode and seed, as far as their summaries
/// say.
std::vector<std::string> find_warnings(std::span<const TrainSummary> runs) {
  std::vector<std::string> warnings;
  const TrainSummary& first = runs.front();
  const auto differ = [&](const TrainSummary& run, const char* what, auto ours, auto theirs) {
    if (ours == theirs) return;
    warnings.push_back(concat(run.run.string(), " has ", what, " ", theirs, ", ",
                              first.run.string(), " has ", ours));
  };
  for (const TrainSummary& run : runs) {
    differ(run, "max_iters", first.max_iters, run.max_iters);
    differ(run, "global batch", first.global_batch, run.global_batch);
    differ(run, "parameters", first.parameters, run.parameters);
    differ(run, "validation images", first.evaluation.images, run.evaluation.images);
    if (run.data_hash != first.data_hash && !run.data_hash.empty() && !first.data_hash.empty()) {
      warnings.push_back(concat(run.run.string(), " was trained with other data than ",
                                first.run.string(), ": means and tests mix two data sets"));
    }
    const auto alike = std::ranges::find_if(runs, [&](const TrainSummary& other) {
      return other.bn_mode == run.bn_mode && other.cell.sync_top == run.cell.sync_top;
    });
    if (alike->sync_layers != run.sync_layers) {
      warnings.push_back(concat(run.run.string(), " synchronizes other layers than ",
                                alike->run.string(), ", though both are ",
                                cell_of(run, false).label()));
    }
    if (run.iterations != run.max_iters) {
      warnings.push_back(concat(run.run.string(), " stopped after ", run.iterations, " of ",
                                run.max_iters, " iterations"));
    }
  }
  return warnings;
}

std::set<std::uint64_t> seeds_of(const RunsOfMode& group) {
  std::set<std::uint64_t> seeds;
  for (const TrainSummary* run : group.runs) seeds.insert(run->seed);
  return seeds;
}

/// Means of other seeds stand side by side where a mode lacks some. Modes without a seed in common
/// are not compared.
void warn_of_missing_seeds(const std::vector<RunsOfMode>& groups,
                           std::vector<std::string>& warnings) {
  for (const RunsOfMode& group : groups) {
    const std::set<std::uint64_t> own = seeds_of(group);
    std::set<std::uint64_t> missing;
    for (const RunsOfMode& other : groups) {
      const std::set<std::uint64_t> seeds = seeds_of(other);
      const bool shares =
          std::ranges::any_of(seeds, [&](std::uint64_t seed) { return own.contains(seed); });
      if (!shares) continue;
      std::set_difference(seeds.begin(), seeds.end(), own.begin(), own.end(),
                          std::inserter(missing, missing.end()));
    }
    if (missing.empty()) continue;
    warnings.push_back(concat(group.cell.label(), " has no finished run of seed",
                              missing.size() > 1 ? "s " : " ", joined(missing),
                              ": its mean is of fewer seeds ",
                              "than others', and differences are of the seeds that both have"));
  }
}

/// An evaluation that came later, or is not defined, may lack seeds that its mode has.
void warn_of_missing_scores(const std::vector<Row>& rows, std::vector<std::string>& warnings) {
  for (const Row& row : rows) {
    if (row.as_run() || row.score.empty()) continue;
    const auto whole = std::ranges::find_if(
        rows, [&](const Row& other) { return other.as_run() && other.mode == row.mode; });
    if (whole == rows.end() || whole->score.size() <= row.score.size()) continue;
    warnings.push_back(concat(row.name, " has scores of ", row.score.size(), " of the ",
                              whole->score.size(), " seeds of ", whole->name,
                              ": its mean is of fewer seeds than others', and differences are of ",
                              "the seeds that both have"));
  }
}

}  // namespace

std::string Row::statistics() const {
  if (statistics_of(cell.mode) == StatisticsOf::kImage) return to_string(EvalStats::kOwn);
  return stats == EvalStats::kDevice0 ? "running" : to_string(stats);
}

Comparison compare_runs(std::span<const TrainSummary> runs) {
  if (runs.empty()) throw ConfigError("there are no finished runs to compare");
  Comparison comparison;
  comparison.score = score_name(common_task(runs));
  const std::vector<RunsOfMode> groups = group_by_mode(runs);
  for (const RunsOfMode& group : groups) comparison.modes.push_back(summarize(group));
  comparison.rows = make_rows(groups);
  comparison.curve = curve_of(cells_of(comparison), runs.front().global_batch);
  if (comparison.curve) {
    comparison.adjustment = {"p_sequence", "p (in sequence)", 1};
    compare_steps(comparison, comparison.curve->synchronizing);
    compare_steps(comparison, comparison.curve->evaluating);
    compare_steps(comparison, comparison.curve->beyond_own);
    compare_steps(comparison, comparison.curve->rivals);
    compare_steps(comparison, comparison.curve->some_layers);
    compare_steps(comparison, comparison.curve->other_layers);
    compare_steps(comparison, comparison.curve->more_images);
  } else {
    compare_all(comparison);
  }
  comparison.warnings = find_warnings(runs);
  warn_of_missing_seeds(groups, comparison.warnings);
  warn_of_missing_scores(comparison.rows, comparison.warnings);
  return comparison;
}

bool has_windows(const Comparison& comparison) {
  return std::ranges::any_of(comparison.rows,
                             [](const Row& row) { return row.mismatch.count > 0; });
}

std::vector<const Row*> rows_by_mode(const Comparison& comparison) {
  std::vector<const Row*> rows;
  for (const Row& row : comparison.rows) rows.push_back(&row);
  std::ranges::stable_sort(rows, {}, &Row::mode);
  return rows;
}

std::optional<Interval> score_interval(const Row& row) {
  if (smallest_p_value(static_cast<int>(row.score.size())) > kLevel) return std::nullopt;
  std::vector<double> scores;
  for (const auto& [seed, reached] : row.score) scores.push_back(reached);
  return t_interval(scores, 1 - kLevel);
}

std::set<std::uint64_t> all_seeds(const Comparison& comparison) {
  std::set<std::uint64_t> seeds;
  for (const Row& row : comparison.rows) {
    for (const auto& [seed, reached] : row.score) seeds.insert(seed);
  }
  return seeds;
}

void add_failed(Comparison& comparison, std::vector<FailedRun> failed) {
  std::vector<std::string> modes;
  for (const FailedRun& run : failed) {
    if (std::ranges::find(modes, run.mode) == modes.end()) modes.push_back(run.mode);
  }
  for (const std::string& mode : modes) {
    std::vector<std::uint64_t> seeds;
    for (const FailedRun& run : failed) {
      if (run.mode == mode) seeds.push_back(run.seed);
    }
    const auto first = std::ranges::find(failed, mode, &FailedRun::mode);
    comparison.warnings.push_back(concat(mode, " cannot train (seed",
                                         seeds.size() == 1 ? " " : "s ", joined(seeds),
                                         "): ", first->error));
  }
  comparison.failed = std::move(failed);
}

}  // namespace lockstep
