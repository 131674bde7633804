#pragma once
// Compares finished runs that differ in their BatchNorm mode. The rule: modes are compared seed by
// seed, because runs of one seed share initial weights, order of images and augmentation.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "compare/curve.h"
#include "compare/statistics.h"
#include "core/words.h"
#include "run/summary.h"

namespace lockstep {

/// The level that the report speaks of, and the confidence of its intervals.
constexpr double kLevel = 0.05;

/// Points of score. Where the interval leaves no room for a larger difference, the modes are alike.
constexpr double kNegligible = 1;

/// What one BatchNorm layer's parts look like, as means over the runs of a mode.
struct LayerComparison {
  std::string layer;
  std::int64_t count = 0;    // values per channel in the whole batch
  double ratio_mean = 0;     // variance between parts / variance within, mean over channels
  double ratio_max = 0;      // of the worst channel
  double log_var_ratio = 0;  // |log| of a part's variance over the whole batch's
};

/// All runs of one mode, on a curve of one cell, in order of seeds.
struct ModeResult {
  Cell cell;
  std::string mode;                                     // the cell's label
  std::string devices;                                  // RankLayout::placement
  std::vector<std::string> sync_layers;                 // TrainSummary::sync_layers
  std::map<std::uint64_t, std::filesystem::path> runs;  // [seed], the folders
  MeanSpread train_loss;
  MeanSpread step_ms;         // medians of the runs' steps
  MeanSpread waiting_share;   // of a step, waiting for other replicas in BatchNorm; 0 to 1
  bool shares_cores = false;  // more virtual devices than cores: that is mostly for a core
  MeanSpread images_per_second;
  std::map<std::string, MeanSpread> other_stats;  // [eval_stats] score of the same weights
  std::vector<LayerComparison> layers;            // in forward order
};

/// The scores of a mode's weights, evaluated in one way.
struct Row {
  Cell cell;
  std::string name;      // the cell's label
  std::size_t mode = 0;  // of Comparison::modes
  EvalStats stats = EvalStats::kDevice0;
  std::map<std::uint64_t, double> score;  // [seed], in percent; runs without one are left out
  MeanSpread score_spread;
  MeanSpread val_loss;
  MeanSpread mismatch;  // TileMismatch::mean_difference; no value where images came in one piece

  /// Evaluated as the runs' configuration says.
  bool as_run() const { return cell.by.empty(); }
  /// What normalises in this evaluation: "own"; "running", or which ones where they are not device
  /// 0's: "mean".
  std::string statistics() const;
};

/// The score of row `a` minus that of row `b`, seed by seed.
struct PairedDifference {
  std::string a, b;                  // names of rows
  std::string score;                 // its name
  std::vector<std::uint64_t> seeds;  // that both have
  std::vector<double> differences;   // [seed]
  MeanSpread spread;
  std::optional<Interval> interval;   // 1 - kLevel, Student's t
  std::optional<double> p_value;      // exact sign-flip test
  std::optional<double> p_adjusted;   // for those that are tested with it (Adjustment)
  double smallest_p = 1;              // that so many seeds can give
  std::vector<std::string> unscored;  // of a and b, those that have no defined score at all

  /// Whether so many seeds can show anything. Where they cannot, an interval would say too much.
  bool can_settle() const { return smallest_p <= kLevel; }
};

/// A run that was to be compared and could not be trained.
struct FailedRun {
  std::string mode;
  std::uint64_t seed = 0;
  std::string error;
};

/// How p-values are adjusted for testing several: step_down_p_values, on a curve in sequence.
struct Adjustment {
  const char* key = "p_step_down";  // in JSON
  const char* title = "p (all)";    // in tables
  std::size_t together = 0;         // how many share the level
};

struct Comparison {
  std::string score;  // what the runs are compared by: "mIoU" or "top1"
  std::vector<ModeResult> modes;
  std::vector<Row> rows;  // as the runs are evaluated, one for each of `modes`; then others
  std::vector<PairedDifference> pairs;  // later row minus earlier row, or the curve's steps
  Adjustment adjustment;
  std::optional<Curve> curve;         // of runs with --images-per-device
  std::vector<std::string> warnings;  // why the runs may not be comparable
  std::vector<FailedRun> failed;      // `add_failed`
};

/// Groups the runs by mode, in the order of comes_before(), whatever that of the runs. Throws
/// ConfigError when two runs have the same mode and seed or are of different tasks, or there are
/// none.
Comparison compare_runs(std::span<const TrainSummary> runs);

/// Whether images of any row came in windows.
bool has_windows(const Comparison& comparison);

/// All rows, mode by mode: as its runs are evaluated first.
std::vector<const Row*> rows_by_mode(const Comparison& comparison);

/// Student's interval of the mean score; none for so few seeds that no test can settle anything.
std::optional<Interval> score_interval(const Row& row);

/// The seeds of all modes.
std::set<std::uint64_t> all_seeds(const Comparison& comparison);

/// Adds runs that could not be trained, and a warning for each mode of theirs: which seeds, and
/// why.
void add_failed(Comparison& comparison, std::vector<FailedRun> failed);

/// What can be known before any run: which p-values so many seeds can give.
std::string describe_power(int seeds);

/// The answer in one line: "sync - local = +13.1 mIoU [11.0, 15.2], 6 seeds, p = 0.03 (...)"; of
/// too few seeds "sync - local = +13.1 mIoU (seeds +12.0, +14.2): too few to settle".
std::string answer(const PairedDifference& pair);

/// What a paired difference shows, in a sentence of two parts. The rule: what too few seeds cannot
/// settle is never called "no difference".
struct Verdict {
  enum class Kind { kBetter, kAlike, kTooFewSeeds, kUndecided, kNotComparable };

  Kind kind = Kind::kNotComparable;
  std::string claim;
  std::string evidence = {};  // "(95 % interval +0.87 to +9.40, 3 seeds, p = 0.25)"; may be empty
  int more_seeds = 0;         // the fewest with which the test could settle it

  std::string text() const { return evidence.empty() ? claim : claim + " " + evidence; }
};

/// `pairs`: how many differences are tested together (Adjustment::together).
Verdict verdict(const PairedDifference& pair, std::size_t pairs);

/// The row with the highest mean over the seeds that all rows with a score have: a row that lacks
/// the seeds on which all do badly is no better.
struct BestRow {
  std::size_t row = 0;                   // of Comparison::rows
  double mean = 0;                       // over these seeds
  std::size_t shared = 0;                // of them, where some row has more; else 0
  std::vector<std::string> better_than;  // rows that it is shown to be better than
  std::vector<std::string> worse_than;   // on more seeds than all rows have
  std::vector<std::string> not_told_apart;
  std::size_t seeds = 0;  // the fewest that it shares with another row
  bool settled = false;   // whether so many can show anything

  /// In a sentence, without its stop.
  std::string claim(const Comparison& comparison) const;
};
/// None where fewer than two rows have scores, or no seed in common. Of a curve by the differences
/// that are tested there.
std::optional<BestRow> best_row(const Comparison& comparison);

/// What it costs to use a mode and its evaluation, in a sentence.
std::string cost_of(const Row& row);

/// For how many images per device which is better, in clauses: of sync and local, of own and
/// running statistics, of sync and local by own. REQUIRES: a curve.
std::vector<std::string> curve_claims(const Comparison& comparison);

/// The best row, its cost, and the claims of a curve: a line each.
std::string headline(const Comparison& comparison);
/// The headline, a line for each difference that is told, and the warnings.
std::string answers(const Comparison& comparison);

/// Differences to tell of one by one: between the modes as they are evaluated, between the
/// evaluations of a mode, and between the best row and all others. Of a curve all but
/// `more_images`.
std::vector<const PairedDifference*> told_pairs(const Comparison& comparison);

/// "better", "alike", "too few seeds", "undecided", "not comparable".
const char* to_string(Verdict::Kind kind);

/// The curve's scores as a table, and what is to be known to read it. REQUIRES: a curve.
std::string curve_table(const Comparison& comparison);

/// A sentence for each mode that synchronizes some layers: which they are.
std::vector<std::string> layer_notes(const Comparison& comparison);

/// "(seeds +12.0, +14.2)": the differences, times `sign`, where they are too few for an interval.
std::string few_seeds(const PairedDifference& pair, double sign = 1);

/// The whole report; the first lines are the answers.
std::string to_markdown(const Comparison& comparison);
/// comparison.json: everything in `comparison`, undefined figures as null. The runs' folders are
/// seen from `folder`, where the file will be; as they are where that is empty.
std::string to_json(const Comparison& comparison, const std::filesystem::path& folder = {});

}  // namespace lockstep
