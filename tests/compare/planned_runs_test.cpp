#include "compare/planned_runs.h"

#include <doctest/doctest.h>

#include "compare/present_runs.h"
#include "data/place.h"
#include "lockstep/core/check.h"
#include "support/temporary_folder.h"
#include "train/diagnosis/sync_layers.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

CompareRequest request_in(const test::TemporaryFolder& folder) {
  CompareRequest request;
  request.config = folder.write(
      "tiny.toml", "[data]\nlayout = \"streets\"\nsize = [32, 32]\n[batch]\nper_device = 2\n");
  request.devices = "cpu:2";
  request.seeds = 2;
  request.output = folder.path() / "out";
  return request;
}

}  // namespace

TEST_CASE("plans: a run for every mode, seed by seed; ghost has slices in place of devices") {
  const test::TemporaryFolder folder;
  CompareRequest request = request_in(folder);
  request.modes = {"local", "virtual"};
  const ComparisonPlan plan = plan_comparison(request);
  CHECK(plan.modes == std::vector<std::string>{"local", "ghost"});
  REQUIRE(plan.runs.size() == 4);
  CHECK(plan.runs[0].placement == "cpu:2");
  CHECK(plan.runs[2].request.output == folder.path() / "out" / "local-s1");
  CHECK(plan.runs[2].request.config.run.seed == 1);
  const PlannedRun& ghost = plan.runs[1];
  CHECK(ghost.placement == "cpu:1");
  CHECK(ghost.request.config.bn.virtual_devices == 2);
  CHECK(ghost.request.config.batch.global == 4);
  CHECK(describe(plan, 2).size() == 4);
}

TEST_CASE("plans: norms that stand in for sync run on the devices, and groups fit the network") {
  const test::TemporaryFolder folder;
  CompareRequest request = request_in(folder);
  request.modes = {"group", "instance", "layer", "renorm", "frozen"};
  request.overrides = {"bn.groups=4"};
  const ComparisonPlan plan = plan_comparison(request);
  REQUIRE(plan.runs.size() == 10);
  CHECK(plan.runs[0].request.config.bn.mode == BatchNormMode::kGroup);
  CHECK(plan.runs[0].request.config.bn.groups == 4);
  for (const PlannedRun& run : plan.runs) CHECK(run.placement == "cpu:2");
  // What local and sync have in common on one device is of no interest to those that are neither.
  request.devices = "cpu:1";
  CHECK(describe(plan_comparison(request), 6).back() == "  " + describe_power(6));
  request.modes = {"local", "sync"};
  CHECK(
      describe(plan_comparison(request), 6)[3].starts_with("  note: on one device local and sync"));
  request.modes = {"groups"};
  CHECK_THROWS_WITH_AS(plan_comparison(request), doctest::Contains("bn.mode"), ConfigError);
}

TEST_CASE("plans: a mode is named once, under either of its names") {
  const test::TemporaryFolder folder;
  CompareRequest request = request_in(folder);
  CHECK(plan_comparison(request).modes == std::vector<std::string>{"local", "sync"});
  request.modes = {"ghost", "virtual"};
  CHECK_THROWS_WITH_AS(plan_comparison(request), "--modes names ghost twice", ConfigError);
}

TEST_CASE("plans: sync:top:K names the layers of a diagnosis, the same ones for all seeds") {
  const test::TemporaryFolder folder;
  CompareRequest request = request_in(folder);
  request.overrides = {"data.train_images=6", "model.width=4", "model.depth=2"};
  request.modes = {"local", "sync:top:2", "sync", "ghost"};
  const ComparisonPlan plan = plan_comparison(request);
  CHECK(plan.modes == request.modes);
  REQUIRE(plan.runs.size() == 8);
  const Config config = load_config(request.config, request.overrides);
  const auto names = first_layers(rank_layers(config, "cpu:2"), 2, "");
  for (const std::size_t i : {1, 5}) {
    const PlannedRun& run = plan.runs[i];
    CHECK(run.request.config.bn.mode == BatchNormMode::kSync);
    CHECK(run.request.config.bn.sync_layers == names);
    CHECK(run.request.cell.sync_top == 2);
    CHECK(run.placement == "cpu:2");
  }
  CHECK(plan.runs[5].request.output == folder.path() / "out" / "sync-top2-s1");
  CHECK(plan.runs[2].request.config.bn.sync_layers.empty());
  CHECK(plan.runs[2].request.cell.sync_top == 0);
  const std::vector<std::string> lines = describe(plan, 2);
  CHECK(lines[2] == concat("  sync:top:2: cpu:2, synchronized: ", names[0], ", ", names[1]));
}

TEST_CASE("plans: auto is what a diagnosis of the devices' images names, and says why") {
  const test::TemporaryFolder folder;
  CompareRequest request = request_in(folder);
  request.overrides = {"data.train_images=16", "model.width=4", "model.depth=2"};
  request.modes = {"auto"};
  const ComparisonPlan plan = plan_comparison(request);
  CHECK(plan.why.starts_with("auto: with 2 images per device: cannot tell ("));
  CHECK(plan.modes == std::vector<std::string>{"local", "sync", "instance"});
  CHECK(describe(plan, 2)[1] == "  " + plan.why);
  CHECK(plan_comparison(request).why == plan.why);  // who goes on compares the same
  // Beside such an eps no variance counts.
  request.overrides.push_back("bn.eps=1e6");
  const ComparisonPlan alike = plan_comparison(request);
  CHECK(alike.why.find("not needed") != std::string::npos);
  CHECK(alike.modes == std::vector<std::string>{"local", "sync"});
  request.modes = {"auto", "local"};
  CHECK_THROWS_WITH_AS(plan_comparison(request), doctest::Contains("auto stands alone"),
                       ConfigError);
}

TEST_CASE("plans: where the configuration says top:K, sync is sync:top:K, and slices stay slices") {
  const test::TemporaryFolder folder;
  CompareRequest request = request_in(folder);
  request.overrides = {"data.train_images=6", "model.width=4", "model.depth=2",
                       "bn.sync_layers=top:1"};
  request.modes = {"sync", "ghost"};
  const ComparisonPlan plan = plan_comparison(request);
  CHECK(plan.modes == std::vector<std::string>{"sync:top:1", "ghost"});
  CHECK(plan.runs[0].request.config.bn.sync_layers.size() == 1);
  CHECK(plan.runs[1].request.config.bn.sync_layers.empty());
  request.modes = {"sync:top:1", "sync"};
  CHECK_THROWS_WITH_AS(plan_comparison(request), "--modes names sync:top:1 twice", ConfigError);
}

TEST_CASE("plans: numbers of layers that there are not, and modes that have none, are refused") {
  const test::TemporaryFolder folder;
  const auto check = [&](const char* mode, const char* message) {
    CAPTURE(mode);
    CompareRequest request = request_in(folder);
    request.overrides = {"data.train_images=6", "model.width=4", "model.depth=2"};
    request.modes = {mode};
    CHECK_THROWS_WITH_AS(plan_comparison(request), doctest::Contains(message), ConfigError);
  };
  check("sync:top:0", "--modes sync:top:0: expected sync:top:K");
  check("sync:top:", "K from 1 to the number of layers");
  check("sync:top:2x", "expected sync:top:K");
  check("local:top:3", "only sync has layers that synchronize and others");
  check("sync:top:7", "--modes sync:top:7: the network has 6 layers");
  check("sync:3", "bn.mode");
}

TEST_CASE("a comparison goes on with the same data, and with others only when it is told to") {
  const test::Place place;
  std::vector<std::string> said;
  CompareRequest request;
  request.config = place.config();
  request.modes = {"local", "sync"};
  request.seeds = 1;
  request.devices = "cpu:2";
  request.output = place.path("comparison/x").parent_path();
  request.console = Console::kQuiet;
  request.say = [&](const std::string& line) { said.push_back(line); };
  const auto compare = [&](const fs::path& root) {
    request.overrides = {"data.root=" + root.string()};
    ComparisonPlan plan = plan_comparison(request);
    return train_runs(request, plan)->finished.size();
  };
  const fs::path root = place.config().parent_path();
  CHECK(compare(root) == 2);
  const TempFolder moved;
  for (const char* kind : {"images", "masks"})
    fs::copy(root / kind, moved.path() / kind, fs::copy_options::recursive);
  CHECK(compare(moved.path()) == 2);
  CHECK(said.back().find("done before") != std::string::npos);
  place.mask("train/0.png", {16, 16}, {0, 1});
  request.seeds = 2;
  CHECK_THROWS_WITH_AS(compare(root), doctest::Contains("1 file changed (masks/train/0.png)"),
                       ConfigError);
  CHECK_THROWS_WITH_AS(compare(root), doctest::Contains("--other-data"), ConfigError);
  request.other_data = true;
  CHECK(compare(root) == 4);
  CHECK(left_out_runs(request.output).empty());
  write_file(request.output / "sync-s1" / "events.jsonl", std::string());
  REQUIRE(left_out_runs(request.output).size() == 1);
  CHECK(left_out_runs(request.output)[0].find("sync-s1 is left out") != std::string::npos);
}

TEST_CASE("what a comparison says that failed is read again") {
  const test::TemporaryFolder folder;
  CHECK(failed_runs(folder.path()).empty());
  const auto path = folder.path() / "comparison.json";
  write_file(path, std::string(R"({"failed": [{"mode": "group", "seed": 3, "error": "no"}]})"));
  REQUIRE(failed_runs(folder.path()).size() == 1);
  CHECK(failed_runs(folder.path())[0].seed == 3);
  for (const char* damaged : {"", "[]", R"({"failed": 1})", R"({"failed": [{"mode": 1}]})"}) {
    write_file(path, std::string(damaged));
    CHECK_THROWS_WITH_AS(failed_runs(folder.path()), doctest::Contains("comparison.json: damaged"),
                         DataError);
  }
}

TEST_CASE("folders without a finished run are refused") {
  const test::TemporaryFolder folder;
  const auto refused = [](const std::filesystem::path& inside, const char* why) {
    CHECK_THROWS_WITH_AS(finished_run_folders(inside), doctest::Contains(why), DataError);
  };
  refused(folder.path(), "holds no finished run (expected a folder that `lockstep train`");
  for (const char* run : {"local-s0", "sync-s0"}) {
    std::filesystem::create_directory(folder.path() / run);
    write_file(folder.path() / run / "config.toml", std::string());
    write_file(folder.path() / run / "events.jsonl", std::string("{\"type\": \"header\"}\n"));
  }
  refused(folder.path(), "local-s0 is left out: its run has not finished");
  refused(folder.path(), "; and 1 more");
  refused(folder.path() / "sync-s0", "sync-s0 holds no finished run: its run has not finished");
}

}  // namespace lockstep
