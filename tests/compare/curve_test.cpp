#include "compare/curve.h"

#include <doctest/doctest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compare/comparison.h"
#include "compare/planned_runs.h"
#include "lockstep/core/check.h"
#include "support/errors.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using test::contains;
using Cells = std::vector<Cell>;

TrainSummary run(const std::string& mode, std::int64_t images, std::uint64_t seed, double m_iou) {
  TrainSummary summary;
  summary.run = "out/" + mode + "-n" + std::to_string(images) + "-s" + std::to_string(seed);
  summary.bn_mode = mode;
  summary.cell.images_per_device = images;
  summary.seed = seed;
  summary.devices = "cpu:1";
  summary.device_count = 1;
  summary.iterations = summary.max_iters = 100;
  summary.global_batch = 8;
  summary.evaluation.metrics.m_iou = m_iou;
  summary.evaluation.loss = 1;
  return summary;
}

/// Six seeds: with one image `local` is 9 points below `sync`, with two 1 or -1, with four 0.5.
std::vector<TrainSummary> six_seeds() {
  std::vector<TrainSummary> runs;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const double level = 30 + 2 * static_cast<double>(seed);
    const double sign = seed % 2 == 0 ? 1 : -1;
    runs.push_back(run("group", 0, seed, level - 3));
    runs.push_back(run("ghost", 4, seed, level - 0.5));
    runs.push_back(run("ghost", 1, seed, level - 9 - 0.1 * sign));
    runs.push_back(run("ghost", 2, seed, level - sign));
    runs.push_back(run("renorm", 1, seed, level - 4 - 0.1 * sign));
    runs.push_back(run("renorm", 8, seed, level - 0.1 * sign));
    runs.push_back(run("sync", 0, seed, level));
  }
  return runs;
}

/// With own statistics beside: `local` by own is 1 below `sync` with one image, and then level with
/// it; `sync` by own is 5 below itself.
std::vector<TrainSummary> six_seeds_with_own() {
  std::vector<TrainSummary> runs = six_seeds();
  for (TrainSummary& run : runs) {
    if (run.bn_mode != "ghost" && run.bn_mode != "sync") continue;
    const double level = 30 + 2 * static_cast<double>(run.seed);
    const double sign = run.seed % 2 == 0 ? 1 : -1;
    Evaluation own = run.evaluation;
    own.eval_stats = EvalStats::kOwn;
    own.metrics.m_iou = run.bn_mode == "sync"             ? level - 5 - 0.1 * sign
                        : run.cell.images_per_device == 1 ? level - 1 - 0.1 * sign
                        : run.cell.images_per_device == 2 ? level - 0.3 * sign
                                                          : level - 0.5;
    run.other_stats.push_back(own);
  }
  return runs;
}

CompareRequest curve_in(const test::TemporaryFolder& folder) {
  CompareRequest request;
  request.config = folder.write(
      "tiny.toml",
      "[data]\nlayout = \"streets\"\nsize = [32, 32]\n[batch]\nglobal = 8\n[model]\nwidth = 4\n");
  request.devices = "cpu:1";
  request.seeds = 2;
  request.output = folder.path() / "out";
  request.overrides = {"bn.groups=4"};
  request.modes = {"local", "sync", "group", "renorm"};
  request.images = {1, 2, 4, 8};
  return request;
}

std::vector<std::string> labels_of(const ComparisonPlan& plan) {
  std::vector<std::string> labels;
  for (const Cell& cell : plan.cells) labels.push_back(cell.label());
  return labels;
}

}  // namespace

TEST_CASE("a cell is a mode and, on a curve, a number of images") {
  CHECK(Cell{"sync"}.label() == "sync");
  CHECK(Cell{"local", 2}.label() == "local(2)");
  CHECK(Cell{"local", 2}.folder() == "local-n2");
  CHECK(mode_of_label("local(16)") == "local");
  CHECK(mode_of_label("instance") == "instance");
  CHECK(sync_top_mode(12) == "sync:top:12");
  CHECK(sync_top_of("sync:top:12") == 12);
  for (const char* other : {"sync", "sync:top:", "sync:top:0", "sync:12", "top:12", "local:top:12"})
    CHECK(sync_top_of(other) == 0);
  CHECK(Cell{"sync:top:3", 1}.folder() == "sync-top3-n1");
  for (const Cell& cell :
       {Cell{"local", 16}, Cell{"sync"}, Cell{"sync:top:3"}, Cell{"sync:top:3", 2}})
    CHECK(folder_of_label(cell.label()) == cell.folder());
  CHECK(Cell{"sync", 0, "own"}.label() == "sync by own");
  CHECK(Cell{"local", 2, "own"}.label() == "local(2) by own");
  CHECK(Cell{"local", 2, "own"}.line() == "local by own");
  CHECK(mode_of_label("local(2) by own") == "local");
  CHECK(mode_of_label("sync:top:3 by own") == "sync:top:3");
  CHECK(line_of_label("local(2) by own") == "local by own");
  CHECK(line_of_label("sync by running") == "sync by running");
  CHECK(line_of_label("local(2)") == "local");
  CHECK(comes_before({"local", 2}, {"local", 16}));
  CHECK(comes_before({"local", 16}, {"sync"}));
  CHECK(comes_before({"local", 16}, {"sync:top:3", 1}));
  CHECK(comes_before({"sync:top:3", 4}, {"sync:top:12", 1}));
  CHECK(comes_before({"sync:top:12"}, {"sync"}));
  CHECK(comes_before({"sync"}, {"ghost"}));
  CHECK(cell_of(run("ghost", 2, 0, 1), true).label() == "local(2)");
  CHECK(cell_of(run("ghost", 0, 0, 1), false).label() == "ghost");
  // A run on devices has its place among slices.
  TrainSummary devices = run("local", 0, 0, 1);
  devices.device_count = 4;
  CHECK(cell_of(devices, true).label() == "local(2)");
  CHECK(cell_of(devices, false).label() == "local");
  TrainSummary some = run("ghost", 2, 0, 1);
  some.cell.sync_top = 3;
  CHECK(cell_of(some, true).label() == "sync:top:3(2)");
  some.bn_mode = "sync", some.cell.images_per_device = 0, some.device_count = 8;
  CHECK(cell_of(some, true).label() == "sync:top:3(1)");
  CHECK(cell_of(some, false).label() == "sync:top:3");
}

TEST_CASE("a curve has a line per mode, and local ends where sync is") {
  CHECK_FALSE(curve_of(Cells{{"local"}, {"sync"}}, 8));
  const Curve curve =
      curve_of(Cells{{"local", 1}, {"local", 4}, {"sync"}, {"renorm", 1}, {"renorm", 8}}, 8)
          .value();
  REQUIRE(curve.lines.size() == 3);
  CHECK(curve.images == std::vector<std::int64_t>{1, 4, 8});
  CHECK(curve.lines[0].at(8) == 2);  // sync's cell
  CHECK(curve.lines[1].flat);
  CHECK(curve.lines[1].at(4) == 2);
  CHECK_FALSE(curve.lines[2].at(4));
  REQUIRE(curve.synchronizing.size() == 2);  // with all images there is no difference to test
  CHECK(curve.synchronizing[1].images == 4);
  CHECK(curve.synchronizing[1].b == 1);
  REQUIRE(curve.more_images.size() == 2);  // 1 to 4; that from 4 to 8 is sync's; 1 to 8
  CHECK(curve.more_images[1].mode == "renorm");
  CHECK(curve.more_images[1].a == 4);
}

TEST_CASE("a curve of some layers ends where sync is, and lies between local and sync") {
  const Curve curve =
      curve_of(Cells{{"local", 1}, {"local", 4}, {"sync:top:1", 1}, {"sync:top:3", 1}, {"sync"}}, 8)
          .value();
  REQUIRE(curve.lines.size() == 4);
  CHECK_FALSE(curve.lines[1].flat);
  CHECK(curve.lines[1].at(8) == 4);  // sync's cell
  CHECK(curve.lines[2].at(8) == 4);
  REQUIRE(curve.synchronizing.size() == 2);
  REQUIRE(curve.some_layers.size() == 2);  // with four images there is no cell
  CHECK(curve.some_layers[1].mode == "sync:top:3");
  CHECK(curve.some_layers[1].a == 3);
  CHECK(curve.some_layers[1].b == 0);
  REQUIRE(curve.other_layers.size() == 2);
  CHECK(curve.other_layers[0].mode == "sync:top:1");
  CHECK(curve.other_layers[0].a == 4);
  CHECK(curve.other_layers[0].b == 2);
  REQUIRE(curve.more_images.size() == 1);  // local from 1 to 4; all steps to sync are told above
  // Without sync the whole batch is local's.
  const Curve without = curve_of(Cells{{"local", 1}, {"local", 8}, {"sync:top:1", 1}}, 8).value();
  CHECK(without.lines[1].at(8) == 1);
  CHECK(without.some_layers.size() == 1);
  CHECK(without.other_layers.empty());
}

TEST_CASE("a curve by own statistics has lines of its own, each difference once") {
  const Curve curve = curve_of(Cells{{"local", 1},
                                     {"local", 4},
                                     {"sync"},
                                     {"local", 1, "own"},
                                     {"local", 4, "own"},
                                     {"sync", 0, "own"}},
                               8)
                          .value();
  REQUIRE(curve.lines.size() == 4);
  CHECK(curve.lines[2].mode == "local by own");
  CHECK(curve.lines[2].by == "own");
  CHECK(curve.lines[2].at(8) == 5);  // sync's cell, by own
  CHECK(curve.lines[3].flat);
  const auto check = [](const CurveStep& step, const char* mode, std::int64_t images, std::size_t a,
                        std::size_t b) {
    CHECK(step.mode == mode);
    CHECK(step.images == images);
    CHECK(step.a == a);
    CHECK(step.b == b);
  };
  REQUIRE(curve.evaluating.size() == 3);  // with all images it is sync's, and told there
  check(curve.evaluating[0], "local", 1, 3, 0);
  check(curve.evaluating[1], "local", 4, 4, 1);
  check(curve.evaluating[2], "sync", 0, 5, 2);
  REQUIRE(curve.beyond_own.size() == 2);
  check(curve.beyond_own[0], "local by own", 1, 2, 3);
  check(curve.beyond_own[1], "local by own", 4, 2, 4);
  CHECK(curve.synchronizing.size() == 2);
  REQUIRE(curve.more_images.size() == 1);  // as the runs are evaluated
  check(curve.more_images[0], "local", 1, 1, 0);
  // Own minus running, also where the runs are evaluated by own.
  const Curve other =
      curve_of(Cells{{"local", 1}, {"sync"}, {"local", 1, "running"}, {"sync", 0, "running"}}, 8)
          .value();
  REQUIRE(other.evaluating.size() == 2);
  check(other.evaluating[0], "local", 1, 0, 2);
  check(other.evaluating[1], "sync", 0, 1, 3);
  CHECK(other.beyond_own.empty());
}

TEST_CASE("curve: what own statistics are worth, and what sync is beyond them") {
  const Comparison comparison = compare_runs(six_seeds_with_own());
  REQUIRE(comparison.curve);
  const Curve& curve = *comparison.curve;
  REQUIRE(comparison.pairs.size() == 3 + 4 + 3 + 1 + 3);
  const PairedDifference& own = comparison.pairs[curve.evaluating[0].pair];
  CHECK(own.a == "local(1) by own");
  CHECK(own.b == "local(1)");
  CHECK(own.spread.mean == doctest::Approx(8));
  const PairedDifference& beyond = comparison.pairs[curve.beyond_own[0].pair];
  CHECK(beyond.a == "sync");
  CHECK(beyond.b == "local(1) by own");
  // Each list and mode is tested in its own sequence.
  CHECK(own.p_adjusted.value() == 0.03125);
  CHECK(beyond.p_adjusted.value() == 0.03125);
  CHECK(comparison.pairs[curve.evaluating[1].pair].p_adjusted.value() > 0.05);
  CHECK(comparison.pairs[curve.evaluating[3].pair].p_adjusted.value() == 0.03125);
  CHECK(comparison.pairs[curve.beyond_own[2].pair].p_value.value() == 0.03125);
  CHECK(comparison.pairs[curve.beyond_own[2].pair].p_adjusted.value() > 0.05);
  CHECK(curve_claims(comparison) ==
        std::vector<std::string>{
            "With 1 image per device sync is better than local; with 2 and 4 images per device no "
            "difference between sync and local is shown",
            "With 1 image per device local by own statistics is better than local by running "
            "statistics; with 2 and 4 images per device no difference between local by own "
            "statistics and local by running statistics is shown",
            "sync by running statistics is better than sync by own statistics",
            "With 1 image per device sync is better than local by own; with 2 and 4 images per "
            "device no difference between sync and local by own is shown",
            "sync is better than group"});
  CHECK(told_pairs(comparison).size() == 3 + 4 + 3 + 1);
  REQUIRE(best_row(comparison));
  CHECK(best_row(comparison)->claim(comparison).starts_with("Highest: local(2), mIoU 35.00; "));
  const std::string text = to_markdown(comparison);
  CHECK(contains(text, "\nlocal(1) by own is better than local(1) by 8.00 points of mIoU ("));
  CHECK(contains(text, " | local by own |"));
  CHECK(contains(text, "\nBy own: "));
  const auto json = nlohmann::json::parse(to_json(comparison));
  CHECK(json["rows"].size() == 7 + 4);
  CHECK(json["best"]["row"] == "local(2)");  // the first of equal ones
  const auto& lines = json["curve"]["lines"];
  CHECK(lines[4]["mode"] == "local by own");
  CHECK(lines[4]["points"][0]["cell"] == "local(1) by own");
  CHECK(lines[4]["points"][3]["cell"] == "sync by own");
  CHECK(json["curve"]["evaluating"][0]["a"] == "local(1) by own");
  CHECK(json["curve"]["evaluating"][0]["images"] == 1);
  CHECK(json["curve"]["evaluating"][3]["images"].is_null());
  CHECK(json["curve"]["beyond_own"][1]["mode"] == "local by own");
  CHECK(json["curve"]["beyond_own"][1]["b"] == "local(2) by own");
}

TEST_CASE("curve: some layers are told of beside all, and named") {
  std::vector<TrainSummary> runs = six_seeds();
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    TrainSummary some = run("ghost", 1, seed, 30 + 2 * static_cast<double>(seed) - 4);
    some.cell.sync_top = 2;
    some.sync_layers = {"a.bn", "b.bn"};
    some.run = concat("out/some-s", seed);
    runs.push_back(some);
  }
  const Comparison comparison = compare_runs(runs);
  const std::string text = to_markdown(comparison);
  CHECK(contains(text, "\nsync:top:2(1) is better than local(1) by 5.00 points of mIoU ("));
  CHECK(contains(text, "\nsync is better than sync:top:2(1) by 4.00 points of mIoU ("));
  CHECK(contains(text, "\nsync:top:2 synchronizes a.bn, b.bn; its other layers are local.\n"));
  CHECK(contains(text, "\nWith 1 image per device sync is better than local; "));
  const auto json = nlohmann::json::parse(to_json(comparison));
  CHECK(json["curve"]["some_layers"][0]["a"] == "sync:top:2(1)");
  CHECK(json["curve"]["other_layers"][0]["b"] == "sync:top:2(1)");
  CHECK(json["modes"][3]["sync_layers"] == std::vector<std::string>{"a.bn", "b.bn"});
}

TEST_CASE("curve: runs become cells, and differences those of neighbours and of sync") {
  const std::vector<TrainSummary> runs = six_seeds();
  const Comparison comparison = compare_runs(runs);
  std::vector<std::string> labels;
  for (const ModeResult& mode : comparison.modes) labels.push_back(mode.mode);
  CHECK(labels == std::vector<std::string>{"local(1)", "local(2)", "local(4)", "sync", "group",
                                           "renorm(1)", "renorm(8)"});
  REQUIRE(comparison.curve);
  CHECK(comparison.curve->batch == 8);
  REQUIRE(comparison.pairs.size() == 3 + 1 + 2 + 1);
  CHECK(comparison.pairs[0].a == "sync");
  CHECK(comparison.pairs[0].b == "local(1)");
  CHECK(comparison.pairs[0].spread.mean == doctest::Approx(9));
  CHECK(comparison.pairs[3].a == "group");
  CHECK(comparison.pairs[3].b == "sync");
  CHECK(comparison.pairs[4].a == "local(2)");
  CHECK(comparison.pairs[5].a == "local(4)");
  CHECK(comparison.pairs[6].b == "renorm(1)");
  // Another order of the folders changes nothing.
  const std::vector<TrainSummary> backwards(runs.rbegin(), runs.rend());
  CHECK(to_json(compare_runs(backwards)) == to_json(comparison));
}

TEST_CASE("curve: differences are tested from the fewest images on, until one is not shown") {
  const Comparison comparison = compare_runs(six_seeds());
  const std::vector<PairedDifference>& pairs = comparison.pairs;
  CHECK(pairs[0].p_value.value() == 0.03125);
  CHECK(pairs[0].p_adjusted == pairs[0].p_value);  // alone at the whole level
  CHECK(pairs[1].p_value.value() == 1);
  CHECK(pairs[2].p_value.value() == 0.03125);  // but what came before was not shown
  CHECK(pairs[2].p_adjusted.value() == 1);
  CHECK(pairs[3].p_adjusted.value() == 0.03125);  // another question begins anew
  CHECK(pairs[6].p_adjusted.value() == 0.03125);
  CHECK(verdict(pairs[0], comparison.adjustment.together).kind == Verdict::Kind::kBetter);
  CHECK(verdict(pairs[2], comparison.adjustment.together).kind != Verdict::Kind::kBetter);
  CHECK(contains(verdict(pairs[2], 1).evidence, "after those tested before 1"));
  CHECK(curve_claims(comparison) ==
        std::vector<std::string>{"With 1 image per device sync is better than local; with 2 and 4 "
                                 "images per device no difference between sync and local is shown",
                                 "sync is better than group"});
  std::vector<TrainSummary> two = six_seeds();
  std::erase_if(two, [](const TrainSummary& run) { return run.seed > 1; });
  CHECK(
      curve_claims(compare_runs(two)) ==
      std::vector<std::string>{"With 1, 2 and 4 images per device more seeds could settle whether "
                               "sync or local is better",
                               "More seeds could settle whether group or sync is better"});
}

TEST_CASE("curve: table, JSON") {
  const Comparison comparison = compare_runs(six_seeds());
  const std::string text = to_markdown(comparison);
  CHECK(contains(text, "\nWith 1 image per device sync is better than local; "));
  CHECK(contains(text, "\nsync is better than local(1) by 9.00 points of mIoU ("));
  CHECK_FALSE(contains(text, "By own"));
  CHECK(contains(text, "| images per device |        local |         sync |        group |"));
  CHECK(contains(text, "|:------------------|"));
  CHECK(contains(text, "p (in sequence)"));
  const auto json = nlohmann::json::parse(to_json(comparison));
  CHECK(json["pairs"][2]["p_sequence"] == 1.0);
  CHECK_FALSE(json["pairs"][2].contains("p_holm"));
  const auto& curve = json["curve"];
  CHECK(curve["global_batch"] == 8);
  CHECK(curve["images_per_device"] == std::vector<int>{1, 2, 4, 8});
  CHECK(curve["lines"][0]["points"][3]["cell"] == "sync");
  CHECK(curve["lines"][0]["points"][0]["interval"].size() == 2);
  CHECK(curve["lines"][1]["points"][0]["images"].is_null());
  CHECK(curve["more_images"][0]["mode"] == "local");
  for (const char* none : {"evaluating", "beyond_own"}) CHECK(curve[none].empty());
  const auto plain = nlohmann::json::parse(to_json(
      compare_runs(std::vector<TrainSummary>{run("local", 0, 0, 1), run("sync", 0, 0, 2)})));
  CHECK_FALSE(plain.contains("curve"));
}

TEST_CASE("plans: a curve's cells are slices of the device, each computation once") {
  const test::TemporaryFolder folder;
  CompareRequest request = curve_in(folder);
  const ComparisonPlan plan = plan_comparison(request);
  CHECK(labels_of(plan) == std::vector<std::string>{"local(1)", "local(2)", "local(4)", "sync",
                                                    "group", "renorm(1)", "renorm(2)", "renorm(4)",
                                                    "renorm(8)"});
  REQUIRE(plan.runs.size() == 18);
  const PlannedRun& local = plan.runs[1];
  CHECK(local.request.config.bn.mode == BatchNormMode::kGhost);
  CHECK(local.request.config.bn.slices() == 4);
  CHECK(local.request.cell.images_per_device == 2);
  CHECK(local.request.output == folder.path() / "out" / "local-n2-s0");
  CHECK(plan.runs[14].request.config.bn.mode == BatchNormMode::kRenorm);
  CHECK(plan.runs[14].request.config.bn.slices() == 8);
  CHECK(plan.runs[3].request.cell.images_per_device == 0);
  CHECK(plan.runs[3].request.output == folder.path() / "out" / "sync-s0");
  for (const PlannedRun& run : plan.runs) CHECK(run.placement == "cpu:1");
  // Alone, local with all images is a cell of its own; on two devices slices are half as many.
  request.modes = {"local"};
  CHECK(labels_of(plan_comparison(request)).back() == "local(8)");
  request.devices = "cpu:2";
  request.images = {4, 1};
  const ComparisonPlan halves = plan_comparison(request);
  CHECK(labels_of(halves) == std::vector<std::string>{"local(1)", "local(4)"});
  CHECK(halves.runs[0].request.config.bn.slices() == 4);
  CHECK(halves.runs[1].request.config.bn.slices() == 1);
}

TEST_CASE("plans: some layers on a curve are synchronized over slices") {
  const test::TemporaryFolder folder;
  CompareRequest request = curve_in(folder);
  request.overrides = {"data.train_images=16", "model.depth=2", "bn.sync_layers=[\"encoder.*\"]"};
  request.modes = {"local", "sync:top:2"};
  request.images = {1, 8};
  const ComparisonPlan plan = plan_comparison(request);
  CHECK(labels_of(plan) ==
        std::vector<std::string>{"local(1)", "local(8)", "sync:top:2(1)"});  // (8) is local's
  const BatchNormConfig& local = plan.runs[0].request.config.bn;
  const BatchNormConfig& some = plan.runs[2].request.config.bn;
  CHECK(local.sync_layers.empty());
  CHECK(some.mode == BatchNormMode::kGhost);
  CHECK(some.slices() == 8);
  CHECK(some.sync_layers.size() == 2);
  CHECK(plan.runs[5].request.config.bn.sync_layers == some.sync_layers);
  CHECK(plan.runs[2].request.output == folder.path() / "out" / "sync-top2-n1-s0");
  CHECK(plan.runs[2].request.cell.images_per_device == 1);
  request.modes = {"sync:top:2"};
  CHECK(labels_of(plan_comparison(request)).back() == "sync:top:2(8)");
}

TEST_CASE("plans: what does not go with a curve is said") {
  const test::TemporaryFolder folder;
  const auto check = [&](const std::function<void(CompareRequest&)>& change, const char* message) {
    CompareRequest request = curve_in(folder);
    change(request);
    CHECK_THROWS_WITH_AS(plan_comparison(request), doctest::Contains(message), ConfigError);
  };
  check([](auto& r) { r.images = {3}; }, "cannot be cut into slices of 3; possible are 1, 2, 4, 8");
  check([](auto& r) { r.images = {16}; }, "a device has 8 images of a step");
  check([](auto& r) { r.images = {8}, r.devices = "cpu:2"; }, "and more on fewer devices (-d)");
  check([](auto& r) { r.images = {1, 2, 1}; }, "--images-per-device names 1 twice");
  check([](auto& r) { r.devices = "cpu:3"; }, "a step has 8 images on 3 devices");
  check([](auto& r) { r.modes = {"sync", "group"}; }, "add local or renorm to --modes");
  check([](auto& r) { r.modes = {"ghost", "sync"}; }, "leave ghost out of --modes");
  check([](auto& r) { r.overrides.push_back("batch.accumulate=2"); }, "use batch.accumulate = 1");
  check([](auto& r) { r.overrides.push_back("bn.virtual_devices=4"); },
        "leave -s bn.virtual_devices out");
  check([](auto& r) { r.overrides.push_back("bn.sync_group=1"); }, "bn.sync_group makes groups");
}

}  // namespace lockstep
