#include "compare/comparison.h"

#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compare/table.h"
#include "lockstep/core/check.h"
#include "support/errors.h"

namespace lockstep {
namespace {

using test::contains;

TrainSummary run(const std::string& mode, std::uint64_t seed, double m_iou) {
  TrainSummary summary;
  summary.run = "out/" + mode + "-s" + std::to_string(seed);
  summary.bn_mode = mode;
  summary.seed = seed;
  summary.devices = "cpu:4";
  summary.iterations = summary.max_iters = 100;
  summary.global_batch = 4;
  summary.evaluation.metrics.m_iou = m_iou;
  summary.evaluation.loss = 1 - m_iou / 100;
  summary.train_loss = 0.5;
  summary.times.median_step = 0.2;
  summary.waiting_share = mode == "sync" ? 0.1 : 0.0;
  return summary;
}

BatchNormDiagnostics lens(const std::string& layer, double ratio) {
  BatchNormDiagnostics result;
  result.layer = layer;
  result.count = 1000;
  result.parts = 4;
  result.ratio_mean = ratio;
  result.ratio_max = 2 * ratio;
  return result;
}

/// As evaluate_others leaves it behind.
Evaluation evaluated(EvalStats stats, double m_iou) {
  Evaluation evaluation;
  evaluation.eval_stats = stats;
  evaluation.metrics.m_iou = m_iou;
  evaluation.loss = 1 - m_iou / 100;
  return evaluation;
}

/// Six seeds by running and by own statistics: `sync` is 9 points above `local` and 20 above itself
/// by own; `local by own` is as good as `sync`, but for chance.
std::vector<TrainSummary> with_own() {
  std::vector<TrainSummary> runs;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const double level = 40 + 2 * static_cast<double>(seed);
    const double sign = seed % 2 == 0 ? 1 : -1;
    TrainSummary& local = runs.emplace_back(run("local", seed, level - 9 - 0.1 * sign));
    local.other_stats.push_back(evaluated(EvalStats::kOwn, level - 0.05 + 0.3 * sign));
    TrainSummary& sync = runs.emplace_back(run("sync", seed, level));
    sync.other_stats.push_back(evaluated(EvalStats::kOwn, level - 20 + 0.2 * sign));
  }
  return runs;
}

std::vector<std::string> names_of_rows(const Comparison& comparison) {
  std::vector<std::string> names;
  for (const Row& row : comparison.rows) names.push_back(row.name);
  return names;
}

/// "a - b" of each.
std::vector<std::string> told(const Comparison& comparison) {
  std::vector<std::string> names;
  for (const PairedDifference* pair : told_pairs(comparison)) {
    names.push_back(pair->a + " - " + pair->b);
  }
  return names;
}

std::vector<TrainSummary> three_seeds() {
  // The seeds differ much, the modes within a seed by 12, 13 and 14: pairing must see the latter.
  return {run("local", 0, 20), run("sync", 0, 32), run("local", 1, 30),
          run("sync", 1, 43),  run("sync", 2, 54), run("local", 2, 40)};
}

PairedDifference pair_of(const std::vector<double>& differences) {
  PairedDifference pair;
  pair.a = "sync";
  pair.b = "local";
  pair.score = "mIoU";
  pair.differences = differences;
  for (std::size_t i = 0; i < differences.size(); ++i) pair.seeds.push_back(i);
  pair.spread = mean_spread(differences);
  pair.interval = t_interval(differences, 1 - kLevel);
  pair.p_value = sign_flip_p_value(differences);
  pair.p_adjusted = pair.p_value;
  pair.smallest_p = smallest_p_value(static_cast<int>(differences.size()));
  return pair;
}

}  // namespace

TEST_CASE("waiting is not told where devices wait for cores") {
  std::vector<TrainSummary> runs = three_seeds();
  CHECK(to_markdown(compare_runs(runs)).find("10.0 ± 0.0 %") != std::string::npos);
  for (TrainSummary& run : runs) run.shares_cores = true;
  const std::string text = to_markdown(compare_runs(runs));
  CHECK(text.find("10.0 ± 0.0 %") == std::string::npos);
  CHECK(text.find("more virtual devices than cores") != std::string::npos);
}

TEST_CASE("runs whose steps nobody timed are left out of the times") {
  TrainSummary untimed = run("sync", 1, 50);
  untimed.times = {};
  const Comparison result = compare_runs(std::vector{run("sync", 0, 50), untimed});
  CHECK(result.modes[0].step_ms.count == 1);
  CHECK(result.modes[0].step_ms.mean == doctest::Approx(200));
  CHECK(result.modes[0].images_per_second.count == 1);
  CHECK_FALSE(contains(to_markdown(compare_runs(std::vector{untimed})), "- %"));
}

TEST_CASE("differences are taken seed by seed") {
  const Comparison comparison = compare_runs(three_seeds());
  REQUIRE(comparison.modes.size() == 2);
  CHECK(comparison.modes[0].mode == "local");
  CHECK(comparison.rows[0].score_spread.mean == doctest::Approx(30));
  CHECK(comparison.rows[0].score_spread.standard_deviation.value() == doctest::Approx(10));
  CHECK(comparison.modes[1].waiting_share.mean == doctest::Approx(0.1));
  REQUIRE(comparison.pairs.size() == 1);
  const PairedDifference& pair = comparison.pairs[0];
  CHECK(pair.a == "sync");
  CHECK(pair.differences == std::vector<double>{12, 13, 14});
  CHECK(pair.interval->low == doctest::Approx(13 - 2.48414).epsilon(1e-4));
  CHECK(pair.p_value.value() == 0.25);
  CHECK(pair.smallest_p == 0.25);
  CHECK_FALSE(pair.can_settle());
  CHECK(answer(pair) ==
        "sync - local = +13.00 mIoU (seeds +12.00, +13.00, +14.00): too few to settle");
  CHECK(comparison.warnings.empty());
}

TEST_CASE("seeds that one mode lacks are left out of the differences") {
  std::vector<TrainSummary> runs = three_seeds();
  runs.pop_back();
  const Comparison comparison = compare_runs(runs);
  CHECK(comparison.pairs[0].seeds == std::vector<std::uint64_t>{0, 1});
  CHECK(comparison.rows[1].score_spread.count == 3);
  REQUIRE(comparison.warnings.size() == 1);
  CHECK(comparison.warnings[0].find("local has no finished run of seed 2: its mean is of fewer") !=
        std::string::npos);
  CHECK(compare_runs(three_seeds()).warnings.empty());
}

TEST_CASE("runs of other data are warned about, but not those that do not know theirs") {
  std::vector<TrainSummary> runs = three_seeds();
  runs[0].data_hash = "a", runs[1].data_hash = "a";
  CHECK(compare_runs(runs).warnings.empty());
  runs[3].data_hash = "b";
  REQUIRE(compare_runs(runs).warnings.size() == 1);
  CHECK(compare_runs(runs).warnings[0].find("mix two data sets") != std::string::npos);
}

TEST_CASE("one seed gives a difference and claims nothing more") {
  const std::vector<TrainSummary> runs{run("local", 7, 20), run("sync", 7, 32)};
  const Comparison comparison = compare_runs(runs);
  CHECK_FALSE(comparison.pairs[0].interval);
  CHECK(answer(comparison.pairs[0]) ==
        "sync - local = +12.00 mIoU (seed +12.00): too few to settle");
  const auto json = nlohmann::json::parse(to_json(comparison));
  CHECK(json["pairs"][0]["interval"].is_null());
  CHECK(json["modes"][0]["mIoU"]["sd"].is_null());
}

TEST_CASE("comparison.json names the runs, seen from its folder") {
  const Comparison comparison = compare_runs(three_seeds());
  const auto runs = [&](const std::string& folder) {
    return nlohmann::json::parse(to_json(comparison, folder))["modes"][1]["runs"];
  };
  const nlohmann::json beside{{"0", "sync-s0"}, {"1", "sync-s1"}, {"2", "sync-s2"}};
  CHECK(runs("out") == beside);
  CHECK(runs("elsewhere/table")["1"] == "../../out/sync-s1");
  CHECK(runs("")["1"] == "out/sync-s1");
}

TEST_CASE("three modes make three differences, adjusted together") {
  std::vector<TrainSummary> runs = three_seeds();
  for (const int seed : {0, 1, 2}) runs.push_back(run("ghost", seed, 20 + 10 * seed));
  const Comparison comparison = compare_runs(runs);
  REQUIRE(comparison.pairs.size() == 3);
  CHECK(comparison.adjustment.together == 3);
  CHECK(comparison.pairs[0].p_adjusted.value() == 0.25);  // 12, 13 and 14 can be no larger
  CHECK(comparison.pairs[1].a == "ghost");
  CHECK(comparison.pairs[1].b == "local");
  CHECK(comparison.pairs[1].p_value.value() == 1.0);
}

TEST_CASE("what few seeds can show is said beforehand") {
  CHECK(describe_power(3) ==
        "3 seeds: the smallest possible p-value is 0.25; to settle anything at 0.05 takes 6");
  CHECK(describe_power(1).starts_with("1 seed: the smallest possible p-value is 1; "));
  CHECK(describe_power(6) == "6 seeds: the smallest possible p-value is 0.0312");
  CHECK(describe_power(1000) == "1000 seeds: the smallest possible p-value is 9.54e-07");
}

TEST_CASE("runs that are not comparable are refused or warned about") {
  CHECK_THROWS_AS(compare_runs({}), ConfigError);
  std::vector<TrainSummary> runs{run("sync", 1, 20), run("sync", 1, 30)};
  CHECK_THROWS_WITH_AS(compare_runs(runs),
                       "two runs of mode sync with seed 1: out/sync-s1 and out/sync-s1; leave one "
                       "of them out",
                       ConfigError);
  runs[1] = run("local", 1, 30);
  runs[1].max_iters = 200;
  const Comparison comparison = compare_runs(runs);
  CHECK(comparison.warnings.size() == 2);
}

TEST_CASE("runs of one mode that synchronize other layers are warned about") {
  std::vector<TrainSummary> runs{run("sync", 1, 20), run("sync", 2, 30), run("sync", 3, 30)};
  for (TrainSummary& run : runs) run.cell.sync_top = 1, run.sync_layers = {"a.bn"};
  CHECK(compare_runs(runs).warnings.empty());
  runs[1].sync_layers = {"b.bn"};
  CHECK(compare_runs(runs).warnings ==
        std::vector<std::string>{"out/sync-s2 synchronizes other layers than out/sync-s1, though "
                                 "both are sync:top:1"});
  runs[1].cell.sync_top = 2;
  CHECK(compare_runs(runs).warnings.empty());
}

TEST_CASE("an undefined mIoU is left out, never 0") {
  std::vector<TrainSummary> runs = three_seeds();
  runs[0].evaluation.metrics.m_iou.reset();
  const Comparison comparison = compare_runs(runs);
  CHECK(comparison.rows[0].score_spread.count == 2);
  CHECK(comparison.pairs[0].seeds == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("a mode without any defined mIoU is named, not its seeds") {
  std::vector<TrainSummary> runs = three_seeds();
  for (TrainSummary& run : runs) {
    if (run.bn_mode == "local") run.evaluation.loss = std::numeric_limits<double>::quiet_NaN();
  }
  const Comparison comparison = compare_runs(runs);
  CHECK(answer(comparison.pairs[0]) == "sync - local: the mIoU of local is undefined");
  CHECK_FALSE(best_row(comparison));  // of one there is nothing to say
  CHECK(to_markdown(comparison).starts_with("sync and local cannot be compared: "));
}

TEST_CASE("a mode that cannot train is told of beside the others") {
  std::vector<TrainSummary> runs = three_seeds();
  std::erase_if(runs, [](const TrainSummary& run) { return run.bn_mode == "local"; });
  Comparison comparison = compare_runs(runs);
  add_failed(comparison, {{"local", 0, "one value per channel"}, {"local", 1, "one value"}});
  const std::string text = to_markdown(comparison);
  CHECK(text.find("Warning: local cannot train (seeds 0, 1): one value per channel\n") !=
        std::string::npos);
  CHECK(text.find("cannot train |") != std::string::npos);
  const auto json = nlohmann::json::parse(to_json(comparison));
  CHECK(json["failed"].size() == 2);
  CHECK(json["failed"][1]["seed"] == 1);
}

TEST_CASE("classifications are compared by top-1, and not with segmentations") {
  std::vector<TrainSummary> runs = three_seeds();
  for (TrainSummary& run : runs) {
    run.evaluation.task = Task::kClassification;
    run.evaluation.metrics.a_acc = *run.evaluation.metrics.m_iou + 10;
  }
  const Comparison comparison = compare_runs(runs);
  CHECK(comparison.rows[0].score_spread.mean == doctest::Approx(40));
  CHECK(to_markdown(comparison).starts_with("Highest: sync, top1 53.00; "));
  CHECK(contains(to_markdown(comparison), "\nsync - local = +13.00 top1 (seeds "));
  const auto json = nlohmann::json::parse(to_json(comparison));
  CHECK(json["score"] == "top1");
  CHECK(json["modes"][1]["top1_by_seed"]["2"] == 64.0);
  runs[1].evaluation.task = Task::kSegmentation;
  CHECK_THROWS_WITH_AS(compare_runs(runs), doctest::Contains("no score in common"), ConfigError);
}

TEST_CASE("layers are means over seeds, the worst first in the report") {
  std::vector<TrainSummary> runs{run("local", 0, 20), run("local", 1, 21)};
  runs[0].batch_norms = {lens("stem.bn", 0.1), lens("deep.bn", 0.8)};
  runs[1].batch_norms = {lens("stem.bn", 0.3), lens("deep.bn", 0.4)};
  const Comparison comparison = compare_runs(runs);
  CHECK(comparison.modes[0].layers[0].ratio_mean == doctest::Approx(0.2));
  CHECK(comparison.modes[0].layers[1].ratio_max == doctest::Approx(1.2));
  const std::string report = to_markdown(comparison);
  CHECK(report.find("deep.bn") < report.find("stem.bn"));
}

TEST_CASE("the first lines of the report are the answer") {
  const std::string report = to_markdown(compare_runs(three_seeds()));
  CHECK(report.starts_with(
      "Highest: sync, mIoU 43.00; 3 seeds are too few to settle what is best, 6 can.\n"
      "What sync costs: an exchange at every synchronized BatchNorm call; its evaluation folds "
      "into the convolutions.\n\n"
      "sync - local = +13.00 mIoU (seeds +12.00, +13.00, +14.00): too few to settle\n"));
  // Nothing beside it has an interval or a p-value.
  CHECK(contains(report, "| sync - local       | +13.00 |             - |   - |       - |"));
  CHECK(contains(report, "-: fewer than 6 seeds settle nothing"));
  const auto json = nlohmann::json::parse(to_json(compare_runs(three_seeds())));
  CHECK(json["schema"] == 1);
  CHECK(json["modes"][1]["mIoU_by_seed"]["2"] == 54.0);
  CHECK(json["pairs"][0]["differences"].size() == 3);
  CHECK(json["pairs"][0]["interval"].size() == 2);
  CHECK(json["pairs"][0]["p_step_down"] == 0.25);
  const Comparison one = compare_runs(std::vector<TrainSummary>{run("sync", 0, 20)});
  CHECK(to_markdown(one).starts_with("One mode only (sync): nothing to compare\n"));
  CHECK_FALSE(nlohmann::json::parse(to_json(one)).contains("best"));
}

TEST_CASE("rows: a mode's weights as the runs are evaluated, and by own statistics") {
  const Comparison comparison = compare_runs(with_own());
  CHECK(names_of_rows(comparison) ==
        std::vector<std::string>{"local", "sync", "local by own", "sync by own"});
  const Row& own = comparison.rows[2];
  CHECK(own.mode == 0);
  CHECK(own.stats == EvalStats::kOwn);
  CHECK(own.statistics() == "own");
  CHECK_FALSE(own.as_run());
  CHECK(own.score.size() == 6);
  CHECK(own.score.at(1) == doctest::Approx(42 - 0.35));
  CHECK(own.val_loss.count == 6);
  CHECK(comparison.rows[0].as_run());
  CHECK(comparison.rows[0].statistics() == "running");
  std::vector<std::string> by_mode;
  for (const Row* row : rows_by_mode(comparison)) by_mode.push_back(row->name);
  CHECK(by_mode == std::vector<std::string>{"local", "local by own", "sync", "sync by own"});
  CHECK(comparison.pairs.size() == 6);
  CHECK(comparison.adjustment.together == 6);
  CHECK(comparison.pairs[1].a == "local by own");
  CHECK(comparison.pairs[1].b == "local");
  const std::string text = to_markdown(comparison);
  CHECK(contains(text, "\nBy own: the same weights, each image normalised by its own statistics"));
  CHECK(contains(text, "| mode  | statistics |"));
  CHECK(contains(text, "| local |        own |"));
  CHECK(contains(text, "| p (all) |"));
  CHECK_FALSE(contains(text, "The same weights evaluated by other statistics"));
}

TEST_CASE("rows: other evaluations than by own are told apart, and none is made up") {
  std::vector<TrainSummary> runs = three_seeds();
  CHECK(names_of_rows(compare_runs(runs)) == std::vector<std::string>{"local", "sync"});
  CHECK_FALSE(contains(to_markdown(compare_runs(runs)), "By own"));
  for (TrainSummary& run : runs) {
    run.other_stats.push_back(evaluated(EvalStats::kMean, 10));
    if (run.bn_mode == "sync" && run.seed != 1)
      run.other_stats.push_back(evaluated(EvalStats::kOwn, 25));
  }
  const Comparison comparison = compare_runs(runs);
  CHECK(names_of_rows(comparison) == std::vector<std::string>{"local", "sync", "sync by own"});
  CHECK(comparison.rows[2].score.size() == 2);  // one run is older
  CHECK(comparison.pairs[2].seeds == std::vector<std::uint64_t>{0, 2});
  CHECK(contains(to_markdown(comparison), "The same weights evaluated by other statistics"));
}

TEST_CASE("rows: runs that are evaluated by own have their weights by running statistics beside") {
  std::vector<TrainSummary> runs = with_own();
  for (TrainSummary& run : runs) std::swap(run.evaluation, run.other_stats.front());
  const Comparison comparison = compare_runs(runs);
  CHECK(names_of_rows(comparison) ==
        std::vector<std::string>{"local", "sync", "local by running", "sync by running"});
  CHECK(comparison.rows[0].stats == EvalStats::kOwn);
  CHECK(comparison.rows[0].statistics() == "own");
  CHECK(comparison.rows[2].stats == EvalStats::kDevice0);
  CHECK(comparison.rows[2].statistics() == "running");
  CHECK(comparison.rows[2].score.at(0) == doctest::Approx(40 - 9.1));
}

TEST_CASE("rows: norms of one image are evaluated by own whatever the configuration says") {
  std::vector<TrainSummary> runs{run("group", 0, 20), run("local", 0, 30)};
  runs[1].evaluation.eval_stats = EvalStats::kPrecise;
  const Comparison comparison = compare_runs(runs);
  CHECK(comparison.rows[0].statistics() == "precise");
  CHECK(comparison.rows[1].statistics() == "own");
}

TEST_CASE("modes have one order, in whichever their runs are found") {
  // As --modes names them, and as a folder lists them.
  for (const auto& order :
       {std::vector{"local", "sync", "instance"}, {"instance", "local", "sync"}}) {
    std::vector<TrainSummary> runs;
    for (const char* mode : order) runs.push_back(run(mode, 0, 30));
    const Comparison comparison = compare_runs(runs);
    CHECK(comparison.modes[0].mode == "local");
    CHECK(comparison.modes[2].mode == "instance");
    CHECK(comparison.pairs.back().a == "instance");
    CHECK(comparison.pairs.back().b == "sync");
  }
}

TEST_CASE("the best row, what it is better than, and what it costs") {
  const Comparison comparison = compare_runs(with_own());
  const std::optional<BestRow> best = best_row(comparison);
  REQUIRE(best);
  CHECK(comparison.rows[best->row].name == "sync");
  CHECK(best->settled);
  CHECK(best->seeds == 6);
  CHECK(best->better_than == std::vector<std::string>{"local", "sync by own"});
  CHECK(best->not_told_apart == std::vector<std::string>{"local by own"});
  CHECK(best->claim(comparison) ==
        "Highest: sync, mIoU 45.00; better than local and sync by own; not told apart from local "
        "by own (6 seeds, 6 differences tested together)");
  CHECK(told(comparison) == std::vector<std::string>{"sync - local", "local by own - local",
                                                     "local by own - sync", "sync by own - sync"});
  const std::string text = to_markdown(comparison);
  CHECK(text.starts_with(best->claim(comparison) + ".\nWhat sync costs: an exchange at every "));
  CHECK(contains(text, "\n\nsync is better than local by 9.00 points of mIoU (95 % interval "));
  CHECK(contains(text, ", 6 seeds, p = 0.0312).\nlocal by own is better than local by 8.95 "));
}

TEST_CASE("the best row is that of the seeds that all rows have") {
  // Of seeds 6 to 11 there is sync alone, and it does badly there.
  std::vector<TrainSummary> runs;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    runs.push_back(run("sync", seed, seed < 6 ? 35 + static_cast<double>(seed) : 5));
    if (seed < 6) runs.push_back(run("local", seed, 30 + static_cast<double>(seed)));
  }
  const Comparison comparison = compare_runs(runs);
  const std::optional<BestRow> best = best_row(comparison);
  REQUIRE(best);
  CHECK(comparison.rows[best->row].name == "sync");
  CHECK(best->better_than == std::vector<std::string>{"local"});
  CHECK(best->worse_than.empty());
  CHECK(best->claim(comparison) ==
        "Highest on the 6 seeds that all rows have: sync, mIoU 37.50; "
        "better than local (6 seeds, 1 difference tested together)");
  // Without a seed in common nothing is the highest.
  std::erase_if(runs,
                [](const TrainSummary& run) { return (run.bn_mode == "sync") == (run.seed < 6); });
  CHECK_FALSE(best_row(compare_runs(runs)));
}

TEST_CASE("the best row is not better than one that wins on more seeds") {
  std::vector<TrainSummary> runs;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    const bool shared = seed < 6;
    runs.push_back(run("local", seed, shared ? 30.1 : 30));
    runs.push_back(run("sync", seed, shared ? 30 : 40 + static_cast<double>(seed)));
    if (shared) runs.push_back(run("group", seed, 10 + static_cast<double>(seed)));
  }
  const Comparison comparison = compare_runs(runs);
  const std::optional<BestRow> best = best_row(comparison);
  REQUIRE(best);
  CHECK(comparison.rows[best->row].name == "local");
  CHECK(best->better_than == std::vector<std::string>{"group"});
  CHECK(best->worse_than == std::vector<std::string>{"sync"});
  CHECK(contains(best->claim(comparison), "; below sync on all seeds that both have"));
}

TEST_CASE("an evaluation that lacks seeds is warned of") {
  std::vector<TrainSummary> runs = with_own();
  for (TrainSummary& run : runs) {
    if (run.bn_mode == "sync" && run.seed > 0) run.other_stats.clear();
  }
  const std::vector<std::string> warnings = compare_runs(runs).warnings;
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "sync by own has scores of 1 of the 6 seeds of sync"));
}

TEST_CASE("the best row: an evaluation may be the best, and few seeds settle nothing") {
  std::vector<TrainSummary> runs = with_own();
  std::erase_if(runs, [](const TrainSummary& run) { return run.seed > 1; });
  for (TrainSummary& run : runs) {
    if (run.bn_mode == "local") *run.other_stats.front().metrics.m_iou += 1;
  }
  const Comparison comparison = compare_runs(runs);
  const std::optional<BestRow> best = best_row(comparison);
  REQUIRE(best);
  CHECK_FALSE(best->settled);
  CHECK(best->better_than.empty());
  CHECK(best->not_told_apart.size() == 3);
  CHECK(best->claim(comparison) ==
        "Highest: local by own, mIoU 41.95; 2 seeds are too few to settle what is best, 6 can");
  CHECK(told(comparison) == std::vector<std::string>{"sync - local", "local by own - local",
                                                     "local by own - sync", "sync by own - sync",
                                                     "sync by own - local by own"});
  const auto json = nlohmann::json::parse(to_json(comparison));
  CHECK(json["best"]["row"] == "local by own");
  CHECK(json["best"]["settled"] == false);
}

TEST_CASE("the best row: what it costs is told of its mode and its evaluation") {
  const auto cost = [](const Cell& cell, EvalStats stats = EvalStats::kDevice0) {
    Row row;
    row.cell = cell;
    row.name = cell.label();
    row.stats = stats;
    return cost_of(row);
  };
  CHECK(cost({"local"}) ==
        "What local costs: no exchange; its evaluation folds into the convolutions");
  CHECK(cost({"local", 0, "own"}, EvalStats::kOwn) ==
        "What local by own costs: no exchange; a window is normalised by itself, and an exported "
        "network has InstanceNormalization, which does not fold into convolutions");
  CHECK(
      cost({"sync", 0, "own"}, EvalStats::kOwn)
          .starts_with("What sync by own costs: an exchange at every synchronized BatchNorm call; "
                       "a window "));
  CHECK(contains(cost({"sync:top:3"}), "an exchange at every synchronized BatchNorm call"));
  CHECK(contains(cost({"instance"}), "no exchange; a window is normalised by itself"));
}

TEST_CASE("comparison.json has the rows, the best of them, and p-values of all together") {
  const Comparison comparison = compare_runs(with_own());
  const auto json = nlohmann::json::parse(to_json(comparison));
  CHECK(json["modes"].size() == 2);
  REQUIRE(json["rows"].size() == 4);
  const auto& own = json["rows"][2];
  CHECK(own["row"] == "local by own");
  CHECK(own["mode"] == "local");
  CHECK(own["eval_stats"] == "own");
  CHECK(own["mIoU"]["n"] == 6);
  CHECK(own["mIoU_by_seed"]["0"] == doctest::Approx(40.25));
  CHECK(own["val_loss"]["mean"].is_number());
  CHECK(json["rows"][0]["eval_stats"] == "device0");
  CHECK(json["modes"][0]["mIoU"] == json["rows"][0]["mIoU"]);
  CHECK(json["modes"][0]["mIoU_by_eval_stats"]["own"]["n"] == 6);
  CHECK(json["best"] ==
        nlohmann::json{{"row", "sync"},
                       {"settled", true},
                       {"better_than", std::vector<std::string>{"local", "sync by own"}},
                       {"not_told_apart", std::vector<std::string>{"local by own"}},
                       {"worse_than", std::vector<std::string>{}},
                       {"claim", best_row(comparison)->claim(comparison)},
                       {"cost", cost_of(comparison.rows[1])}});
  for (const auto& pair : json["pairs"]) {
    CHECK(pair["p_step_down"] >= pair["p_value"]);
    CHECK_FALSE(pair.contains("p_holm"));
  }
  CHECK(json["pairs"][0]["p_step_down"] == 2.0 / 64);
}

TEST_CASE("tables are aligned by characters, not bytes") {
  const Table table{{"mode", "mIoU"}, {{"a", "1 ± 2"}, {"long", "3"}}};
  CHECK(to_markdown(table) ==
        "| mode |  mIoU |\n"
        "|:-----|------:|\n"
        "| a    | 1 ± 2 |\n"
        "| long |     3 |\n");
  CHECK(format_number(std::nullopt, 2) == "-");
  CHECK(format_signed(1.25, 1) == "+1.2");
}

TEST_CASE("verdicts claim no more than the test does") {
  const Verdict better = verdict(pair_of({3, 4, 5, 3.5, 4.5, 4}), 1);
  CHECK(better.kind == Verdict::Kind::kBetter);
  CHECK(better.claim == "sync is better than local by 4.00 points of mIoU");
  CHECK(contains(better.evidence, "6 seeds, p = 0.0312"));
  const Verdict worse = verdict(pair_of({-3, -4, -5, -3.5, -4.5, -4}), 1);
  CHECK(worse.claim == "local is better than sync by 4.00 points of mIoU");
  CHECK(contains(worse.evidence, "95 % interval +3.26 to +4.74"));
  CHECK(contains(verdict(pair_of({3}), 1).claim, "with one seed"));
  CHECK(contains(verdict(pair_of({}), 1).claim, "no seed in common"));
  CHECK(contains(verdict(pair_of({0, 0, 0, 0, 0, 0}), 1).claim, "sync and local scored the same"));
}

TEST_CASE("verdicts: what too few seeds cannot settle is not called no difference") {
  const Verdict two = verdict(pair_of({2, 14.42}), 1);
  CHECK(two.kind == Verdict::Kind::kTooFewSeeds);
  CHECK(two.more_seeds == 4);
  CHECK(two.claim ==
        "2 seeds are too few to settle which of sync and local is better, 4 more could: sync "
        "scored 8.21 points of mIoU higher than local");
  CHECK(two.evidence == "(seeds +2.00, +14.42)");
  CHECK(verdict(pair_of({-2, -14.42}), 1).evidence == "(seeds +2.00, +14.42)");  // as it is told
  // Neither an interval without 0 nor a narrow one makes few seeds more.
  const std::vector<std::vector<double>> three{{3, 4, 5}, {3, -4, 5}, {0.1, -0.1, 0}};
  for (const std::vector<double>& few : three)
    CHECK(contains(verdict(pair_of(few), 1).claim, "3 seeds are too few to settle which"));
  // Six are enough; what of all that are tested is not shown is not shown.
  PairedDifference adjusted = pair_of({3, 4, 5, 3.5, 4.5, 4});
  adjusted.p_adjusted = 3 * *adjusted.p_value;
  CHECK(verdict(adjusted, 3).kind == Verdict::Kind::kUndecided);
  CHECK(verdict(adjusted, 3).more_seeds == 0);
  CHECK(contains(verdict(adjusted, 3).evidence, "with 3 differences tested 0.0938"));
}

TEST_CASE("verdicts: an interval that allows it says how small the difference is") {
  const Verdict alike = verdict(pair_of({0.1, -0.2, 0.1, 0.3, -0.1, -0.1}), 1);
  CHECK(alike.kind == Verdict::Kind::kAlike);
  CHECK(alike.claim ==
        "No difference between sync and local of more than 0.21 points of mIoU is plausible: sync "
        "scored 0.02 points of mIoU higher than local");
  // Few seeds are not as sure of that.
  CHECK(verdict(pair_of({0.01, -0.02, 0.01}), 1).kind == Verdict::Kind::kTooFewSeeds);
  const Verdict wide = verdict(pair_of({8, -6, 5, -7, 3, -4}), 1);
  CHECK(wide.kind == Verdict::Kind::kUndecided);
  CHECK(wide.more_seeds == 0);
  CHECK(contains(wide.claim, "6 seeds do not settle which of sync and local is better: "));
  CHECK(contains(wide.claim, "; local may be better by up to 6.78 points, or worse by up to 6.45"));
  // It says no more of either side than the interval does.
  const Verdict one_sided = verdict(pair_of({1, -0.2, 2.1, 1.9, -0.4, 1.2}), 1);
  CHECK(contains(one_sided.evidence, "95 % interval -0.16 to +2.03"));
  CHECK(
      contains(one_sided.claim, "sync may be better by up to 2.03 points, or worse by up to 0.16"));
  // The interval leaves 0 out, the exact test does not.
  const Verdict chance = verdict(pair_of({3, 3, 3, 3, 3, -0.1}), 1);
  CHECK(chance.kind == Verdict::Kind::kUndecided);
  CHECK(contains(chance.claim, "but the sign-flip test does not rule out chance"));
}

TEST_CASE("many seeds are tested too, and p-values below 0.001 are no zeros") {
  std::vector<TrainSummary> runs;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const double level = 40 + 0.1 * static_cast<double>(seed % 7);
    runs.push_back(run("local", seed, level));
    runs.push_back(run("sync", seed, level + 5));
  }
  const Comparison comparison = compare_runs(runs);
  CHECK(verdict(comparison.pairs[0], 1).kind == Verdict::Kind::kBetter);
  const std::string text = to_markdown(comparison);
  CHECK(contains(text, "(95 % interval +5.00 to +5.00, 30 seeds, p = 9.54e-07)"));
  CHECK(contains(text, "| <0.001 |  <0.001 |     <0.001 |    30 |"));
}

TEST_CASE("verdicts stand in comparison.json, and where they say something in the text") {
  const Comparison comparison = compare_runs(three_seeds());
  const auto json = nlohmann::json::parse(to_json(comparison))["pairs"][0]["verdict"];
  CHECK(json["kind"] == "too few seeds");
  CHECK(json["more_seeds"] == 3);
  CHECK(contains(json["text"].get<std::string>(),
                 "3 seeds are too few to settle which of sync and local is better, 3 more could"));
}

}  // namespace lockstep
