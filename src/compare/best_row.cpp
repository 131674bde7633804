#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "compare/comparison.h"
#include "compare/table.h"

namespace lockstep {
namespace {

/// The other row of the pair; empty where the pair is not of this one.
std::string other_of(const PairedDifference& pair, const std::string& row) {
  if (pair.a == row) return pair.b;
  return pair.b == row ? pair.a : "";
}

bool is_as_run(const Comparison& comparison, const std::string& name) {
  return std::ranges::any_of(comparison.rows,
                             [&](const Row& row) { return row.name == name && row.as_run(); });
}

/// That every row with a score has.
std::set<std::uint64_t> shared_seeds(const Comparison& comparison) {
  std::set<std::uint64_t> seeds = all_seeds(comparison);
  for (const Row& row : comparison.rows) {
    if (row.score.empty()) continue;
    std::erase_if(seeds, [&](std::uint64_t seed) { return !row.score.contains(seed); });
  }
  return seeds;
}

double mean_of(const Row& row, const std::set<std::uint64_t>& seeds) {
  std::vector<double> scores;
  for (const std::uint64_t seed : seeds) scores.push_back(row.score.at(seed));
  return mean_spread(scores).mean;
}

std::size_t mode_of(const Comparison& comparison, const std::string& name) {
  const auto found = std::ranges::find(comparison.rows, name, &Row::name);
  return found->mode;
}

}  // namespace

std::optional<BestRow> best_row(const Comparison& comparison) {
  const std::vector<Row>& rows = comparison.rows;
  const std::set<std::uint64_t> seeds = shared_seeds(comparison);
  BestRow best;
  std::size_t scored = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].score.empty()) continue;
    if (seeds.empty()) return std::nullopt;
    const double mean = mean_of(rows[i], seeds);
    if (scored++ == 0 || mean > best.mean) {
      best.row = i;
      best.mean = mean;
    }
    if (rows[i].score.size() > seeds.size()) best.shared = seeds.size();
  }
  if (scored < 2) return std::nullopt;
  for (const PairedDifference& pair : comparison.pairs) {
    const std::string other = other_of(pair, rows[best.row].name);
    if (other.empty() || pair.seeds.empty()) continue;
    best.seeds = best.seeds == 0 ? pair.seeds.size() : std::min(best.seeds, pair.seeds.size());
    const bool settled =
        verdict(pair, comparison.adjustment.together).kind == Verdict::Kind::kBetter;
    const bool higher = (pair.a == rows[best.row].name) == (pair.spread.mean > 0);
    (!settled ? best.not_told_apart : higher ? best.better_than : best.worse_than).push_back(other);
  }
  best.settled = smallest_p_value(static_cast<int>(best.seeds)) <= kLevel;
  return best;
}

std::string BestRow::claim(const Comparison& comparison) const {
  const Row& best = comparison.rows[row];
  const std::string of = shared == 0   ? ""
                         : shared == 1 ? " on the seed that all rows have"
                                       : fmt::format(" on the {} seeds that all rows have", shared);
  std::string text =
      fmt::format("Highest{}: {}, {} {}", of, best.name, comparison.score, format_number(mean, 2));
  if (seeds == 0) return text;  // of a curve, not tested against any
  const std::string of_seeds = count_of(static_cast<std::int64_t>(seeds), "seed");
  if (!settled) {
    return fmt::format("{}; {} {} too few to settle what is best, {} can", text, of_seeds,
                       seeds == 1 ? "is" : "are", pairs_needed(kLevel));
  }
  if (!better_than.empty()) text += fmt::format("; better than {}", enumerated(better_than));
  if (!worse_than.empty()) {
    text += fmt::format("; below {} on all seeds that both have", enumerated(worse_than));
  }
  if (!not_told_apart.empty()) {
    text += fmt::format("; not told apart from {}", enumerated(not_told_apart));
  }
  const auto together = static_cast<std::int64_t>(comparison.adjustment.together);
  return comparison.curve ? fmt::format("{} ({})", text, of_seeds)
                          : fmt::format("{} ({}, {} tested together)", text, of_seeds,
                                        count_of(together, "difference"));
}

std::string cost_of(const Row& row) {
  constexpr const char* kByImage =
      "a window is normalised by itself, and an exported network has InstanceNormalization, which "
      "does not fold into convolutions";
  const std::string& mode = row.cell.mode;
  const std::string exchange = mode == "sync" || sync_top_of(mode) > 0
                                   ? "an exchange at every synchronized BatchNorm call"
                                   : "no exchange";
  if (row.statistics() == to_string(EvalStats::kOwn)) {
    return fmt::format("What {} costs: {}; {}", row.name, exchange, kByImage);
  }
  if (!are_running(row.stats)) {
    return fmt::format("What {} costs: {}; its evaluation needs several images at a time", row.name,
                       exchange);
  }
  return fmt::format("What {} costs: {}; its evaluation folds into the convolutions", row.name,
                     exchange);
}

std::vector<const PairedDifference*> told_pairs(const Comparison& comparison) {
  std::vector<const PairedDifference*> told;
  if (comparison.curve) {
    for (const std::vector<CurveStep>* steps : steps_between_modes(*comparison.curve)) {
      for (const CurveStep& step : *steps) told.push_back(&comparison.pairs[step.pair]);
    }
    return told;
  }
  const std::optional<BestRow> best = best_row(comparison);
  const std::string highest = best ? comparison.rows[best->row].name : "";
  for (const PairedDifference& pair : comparison.pairs) {
    const bool as_run = is_as_run(comparison, pair.a) && is_as_run(comparison, pair.b);
    const bool one_mode = mode_of(comparison, pair.a) == mode_of(comparison, pair.b);
    if (as_run || one_mode || !other_of(pair, highest).empty()) told.push_back(&pair);
  }
  return told;
}

}  // namespace lockstep
