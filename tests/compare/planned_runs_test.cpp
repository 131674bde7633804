#include "compare/planned_runs.h"

#include <doctest/doctest.h>

#include "lockstep/core/check.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

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

TEST_CASE("folders without a finished run are refused") {
  const test::TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(finished_run_folders(folder.path()),
                       doctest::Contains("holds no finished run"), DataError);
}

}  // namespace lockstep
