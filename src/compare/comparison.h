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
  std::map<std::uint64_t, double> score;  // [seed], in percent; runs without one are left out
  MeanSpread score_spread;
  MeanSpread val_loss;
  MeanSpread train_loss;
  MeanSpread step_ms;         // medians of the runs' steps
  MeanSpread waiting_share;   // of a step, waiting for other replicas in BatchNorm; 0 to 1
  bool shares_cores = false;  // more virtual devices than cores: that is mostly for a core
  MeanSpread images_per_second;
  std::map<std::string, MeanSpread> other_stats;  // [eval_stats] score of the same weights
  std::vector<LayerComparison> layers;            // in forward order
};

/// The score of mode `a` minus that of mode `b`, seed by seed.
struct PairedDifference {
  std::string a, b;
  std::string score;                 // its name
  std::vector<std::uint64_t> seeds;  // that both have
  std::vector<double> differences;   // [seed]
  MeanSpread spread;
  std::optional<Interval> interval;   // 1 - kLevel, Student's t
  std::optional<double> p_value;      // exact sign-flip test
  std::optional<double> p_adjusted;   // for those that are tested with it
  double smallest_p = 1;              // that so many seeds can give
  std::vector<std::string> unscored;  // of a and b, those that have no defined score at all
};

/// A run that was to be compared and could not be trained.
struct FailedRun {
  std::string mode;
  std::uint64_t seed = 0;
  std::string error;
};

/// How p-values are adjusted for testing several.
struct Adjustment {
  const char* key = "p_holm";      // in JSON
  const char* title = "p (Holm)";  // in tables
  std::size_t together = 0;        // how many share the level
};

struct Comparison {
  std::string score;  // what the runs are compared by: "mIoU" or "top1"
  std::vector<ModeResult> modes;
  std::vector<PairedDifference> pairs;  // later mode minus earlier mode, or the curve's steps
  Adjustment adjustment;
  std::optional<Curve> curve;         // of runs with --images-per-device
  std::vector<std::string> warnings;  // why the runs may not be comparable
  std::vector<FailedRun> failed;      // `add_failed`
};

/// Groups the runs by mode (in the order of first appearance). Throws ConfigError when two runs
/// have the same mode and seed or are of different tasks, or there are none.
Comparison compare_runs(std::span<const TrainSummary> runs);

/// Student's interval of the mean score; none below two seeds.
std::optional<Interval> score_interval(const ModeResult& mode);

/// Of all modes.
std::set<std::uint64_t> all_seeds(const Comparison& comparison);

/// Adds runs that could not be trained, and a warning for each mode of theirs: which seeds, and
/// why.
void add_failed(Comparison& comparison, std::vector<FailedRun> failed);

/// What can be known before any run: which p-values so many seeds can give for so many modes.
std::string describe_power(int seeds, int modes);

/// The answer in one line: "sync - local = +13.1 mIoU [11.0, 15.2], 3 seeds, p = 0.25 (...)".
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

/// `pairs`: how many differences share the level (Adjustment::together).
Verdict verdict(const PairedDifference& pair, std::size_t pairs);

/// For how many images per device `sync` is better than `local`, in a clause. REQUIRES: a curve
/// with both.
std::string synchronizing_claim(const Comparison& comparison);

/// "better", "alike", "too few seeds", "undecided", "not comparable".
const char* to_string(Verdict::Kind kind);

/// The curve's scores as a table, and what is to be known to read it. REQUIRES: a curve.
std::string curve_table(const Comparison& comparison);

/// A sentence for each mode that synchronizes some layers: which they are.
std::vector<std::string> layer_notes(const Comparison& comparison);

/// "1 seed", "2 seeds".
std::string count_of(std::int64_t count, const char* noun);

/// The whole report; the first lines are the answers.
std::string to_markdown(const Comparison& comparison);
/// comparison.json: everything in `comparison`, undefined figures as null. The runs' folders are
/// seen from `folder`, where the file will be; as they are where that is empty.
std::string to_json(const Comparison& comparison, const std::filesystem::path& folder = {});

}  // namespace lockstep
