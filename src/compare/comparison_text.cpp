#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "compare/comparison.h"
#include "compare/table.h"

namespace lockstep {
namespace {

std::string bracket(const std::optional<Interval>& interval) {
  if (!interval) return "-";
  return fmt::format("[{:+.2f}, {:+.2f}]", interval->low, interval->high);
}

/// The modes of which no run could be trained.
std::set<std::string> untrained_modes(const Comparison& comparison) {
  std::set<std::string> modes;
  for (const FailedRun& run : comparison.failed) modes.insert(run.mode);
  for (const ModeResult& mode : comparison.modes) modes.erase(mode.mode);
  return modes;
}

std::string accuracy_table(const Comparison& comparison) {
  const std::set<std::uint64_t> seeds = all_seeds(comparison);
  Table table{{"mode", "statistics", comparison.score, "val loss", "train loss"}, {}};
  const bool windows = has_windows(comparison);
  if (windows) table.header.emplace_back("tile mismatch");
  for (const std::uint64_t seed : seeds) table.header.push_back(fmt::format("seed {}", seed));
  for (const Row* scored : rows_by_mode(comparison)) {
    const ModeResult& mode = comparison.modes[scored->mode];
    std::vector<std::string> row{mode.mode, scored->statistics(),
                                 plus_minus(scored->score_spread, 2),
                                 plus_minus(scored->val_loss, 3), plus_minus(mode.train_loss, 3)};
    if (windows) row.push_back(plus_minus(scored->mismatch, 4));
    for (const std::uint64_t seed : seeds) {
      const auto found = scored->score.find(seed);
      row.push_back(found == scored->score.end() ? "-" : format_number(found->second, 2));
    }
    table.rows.push_back(std::move(row));
  }
  for (const std::string& mode : untrained_modes(comparison)) {
    std::vector<std::string> row(table.header.size(), "-");
    row[0] = mode;
    row[2] = "cannot train";
    table.rows.push_back(std::move(row));
  }
  return to_markdown(table);
}

std::string pair_table(const Comparison& comparison) {
  Table table{{"difference in " + comparison.score, "mean", "95 % interval", "p",
               comparison.adjustment.title, "smallest p", "seeds"},
              {}};
  bool few = false;
  for (const PairedDifference& pair : comparison.pairs) {
    const bool settles = pair.can_settle();
    few = few || !settles;
    table.rows.push_back({pair.a + " - " + pair.b, format_signed(pair.spread.mean, 2),
                          settles ? bracket(pair.interval) : "-",
                          settles ? format_p(pair.p_value) : "-",
                          settles ? format_p(pair.p_adjusted) : "-", format_p(pair.smallest_p),
                          std::to_string(pair.seeds.size())});
  }
  return to_markdown(table) +
         (few ? fmt::format("-: fewer than {} seeds settle nothing, and an interval of them would "
                            "say too much.\n",
                            pairs_needed(kLevel))
              : "");
}

std::string time_table(const Comparison& comparison) {
  Table table{{"mode", "devices", "ms per step", "images/s", "waiting in BatchNorm"}, {}};
  for (const ModeResult& mode : comparison.modes) {
    const bool known = !mode.shares_cores && mode.waiting_share.count > 0;
    table.rows.push_back({mode.mode, mode.devices, plus_minus(mode.step_ms, 1),
                          plus_minus(mode.images_per_second, 1),
                          known ? plus_minus(mode.waiting_share, 1, 100) + " %" : "-"});
  }
  const bool unknown = std::ranges::any_of(comparison.modes, &ModeResult::shares_cores);
  return to_markdown(table) +
         (unknown ? "-: not known. There are more virtual devices than cores, so that a device "
                    "mostly waits for a core; what synchronization costs is the difference between "
                    "the steps.\n"
                  : "");
}

std::string other_stats_table(const Comparison& comparison) {
  Table table{{"mode", "statistics", comparison.score}, {}};
  for (const ModeResult& mode : comparison.modes) {
    for (const auto& [stats, spread] : mode.other_stats) {
      if (stats == to_string(EvalStats::kOwn)) continue;
      table.rows.push_back({mode.mode, stats, plus_minus(spread, 2)});
    }
  }
  return table.rows.empty() ? "" : to_markdown(table);
}

/// Whether the mode's batches had more than one part, so that there is something to compare.
bool has_parts(const ModeResult& mode) {
  return std::ranges::any_of(mode.layers,
                             [](const LayerComparison& layer) { return layer.ratio_max > 0; });
}

const LayerComparison* find_layer(const ModeResult& mode, const std::string& name) {
  const auto found = std::ranges::find(mode.layers, name, &LayerComparison::layer);
  return found == mode.layers.end() ? nullptr : &*found;
}

/// One row per layer, the layer whose parts differ most in any mode first.
std::string layer_table(const std::vector<const ModeResult*>& modes) {
  Table table{{"layer", "values per channel"}, {}};
  for (const ModeResult* mode : modes) table.header.push_back("between/within " + mode->mode);
  for (const ModeResult* mode : modes) table.header.push_back("log var ratio " + mode->mode);
  std::vector<std::pair<double, std::vector<std::string>>> rows;
  for (const LayerComparison& layer : modes.front()->layers) {
    double worst = 0;
    std::vector<std::string> row{layer.layer, std::to_string(layer.count)};
    std::vector<std::string> log_var;
    for (const ModeResult* mode : modes) {
      const LayerComparison* found = find_layer(*mode, layer.layer);
      row.push_back(found == nullptr ? "-" : format_number(found->ratio_mean, 4));
      log_var.push_back(found == nullptr ? "-" : format_number(found->log_var_ratio, 3));
      if (found != nullptr) worst = std::max(worst, found->ratio_mean);
    }
    row.insert(row.end(), log_var.begin(), log_var.end());
    rows.emplace_back(worst, std::move(row));
  }
  std::ranges::stable_sort(rows, [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [worst, row] : rows) table.rows.push_back(std::move(row));
  return to_markdown(table);
}

std::string layers_section(const Comparison& comparison) {
  std::vector<const ModeResult*> modes;
  for (const ModeResult& mode : comparison.modes) {
    if (has_parts(mode)) modes.push_back(&mode);
  }
  if (modes.empty()) return "";
  return "\nBatchNorm layers in the last step: variance between the means of the parts of a batch "
         "over the variance within\nthem, and the mean |log| of a part's variance over the whole "
         "batch's (0: all parts are alike):\n\n" +
         layer_table(modes);
}

std::string paired_answers(const Comparison& comparison) {
  if (comparison.pairs.empty()) {
    return "One mode only (" + comparison.modes.front().mode + "): nothing to compare\n";
  }
  std::string text = headline(comparison);
  if (!text.empty()) text += "\n";
  for (const PairedDifference* pair : told_pairs(comparison)) {
    const Verdict found = verdict(*pair, comparison.adjustment.together);
    text += found.kind == Verdict::Kind::kTooFewSeeds ? answer(*pair) + "\n" : found.text() + ".\n";
  }
  return text;
}

}  // namespace

std::string answers(const Comparison& comparison) {
  std::string text = paired_answers(comparison);
  for (const std::string& warning : comparison.warnings) text += "Warning: " + warning + "\n";
  return text;
}

std::string headline(const Comparison& comparison) {
  std::string text;
  if (const auto best = best_row(comparison)) {
    text += best->claim(comparison) + ".\n" + cost_of(comparison.rows[best->row]) + ".\n";
  }
  if (comparison.curve) {
    for (const std::string& claim : curve_claims(comparison)) text += claim + ".\n";
  }
  return text;
}

std::string describe_power(int seeds) {
  const double smallest = smallest_p_value(seeds);
  std::string text =
      fmt::format("{}: the smallest possible p-value is {:.3g}", count_of(seeds, "seed"), smallest);
  if (smallest > kLevel) {
    text += fmt::format("; to settle anything at {} takes {}", kLevel, pairs_needed(kLevel));
  }
  return text;
}

std::string few_seeds(const PairedDifference& pair, double sign) {
  std::vector<double> told = pair.differences;
  for (double& difference : told) difference *= sign;
  return fmt::format("({} {:+.2f})", told.size() == 1 ? "seed" : "seeds", fmt::join(told, ", "));
}

std::string answer(const PairedDifference& pair) {
  const std::size_t seeds = pair.seeds.size();
  if (seeds == 0) {
    const std::string why = pair.unscored.empty()
                                ? "no seed in common"
                                : fmt::format("the {} of {} is undefined", pair.score,
                                              fmt::join(pair.unscored, " and "));
    return fmt::format("{} - {}: {}", pair.a, pair.b, why);
  }
  std::string text =
      fmt::format("{} - {} = {:+.2f} {}", pair.a, pair.b, pair.spread.mean, pair.score);
  if (!pair.can_settle()) return text + " " + few_seeds(pair) + ": too few to settle";
  if (pair.interval) text += " " + bracket(pair.interval);
  text += ", " + count_of(seeds, "seed");
  if (!pair.p_value) return text;
  text += fmt::format(", p = {:.3g}", *pair.p_value);
  if (*pair.p_value <= pair.smallest_p) {
    text += fmt::format(" (the smallest possible with {})", count_of(seeds, "seed"));
  }
  return text;
}

std::vector<std::string> layer_notes(const Comparison& comparison) {
  std::vector<std::string> notes;
  std::set<std::string_view> told;
  for (const ModeResult& mode : comparison.modes) {
    if (mode.sync_layers.empty() || !told.insert(mode_of_label(mode.mode)).second) continue;
    notes.push_back(fmt::format("{} synchronizes {}; its other layers are local.",
                                mode_of_label(mode.mode), fmt::join(mode.sync_layers, ", ")));
  }
  return notes;
}

std::string to_markdown(const Comparison& comparison) {
  std::string text = answers(comparison);
  if (comparison.curve) text += "\n" + curve_table(comparison);
  const bool own =
      std::ranges::any_of(comparison.rows, [](const Row& row) { return row.cell.by == "own"; });
  if (own) {
    text +=
        "\nBy own: the same weights, each image normalised by its own statistics in evaluation "
        "(bn.eval_stats = \"own\").\n";
  }
  text += "\n" + accuracy_table(comparison);
  for (const std::string& note : layer_notes(comparison)) text += "\n" + note + "\n";
  if (!comparison.pairs.empty()) text += "\n" + pair_table(comparison);
  const std::string other = other_stats_table(comparison);
  if (!other.empty()) text += "\nThe same weights evaluated by other statistics:\n\n" + other;
  text += "\n" + time_table(comparison);
  text += layers_section(comparison);
  return text;
}

}  // namespace lockstep
