// Run folders and a comparison that an earlier version wrote (tests/earlier_runs): a U-Net of width
// 1 that has done its two steps, under names that configurations no longer use.

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "report/report_page.h"
#include "run/checkpoint.h"
#include "run/trained_model.h"
#include "support/json_lines.h"
#include "support/temporary_folder.h"
#include "train/evaluator.h"
#include "train/trainer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

const fs::path kEarlier = "tests/earlier_runs";

struct EarlierRun {
  const char* folder;
  const char* mode;  // as it is called now
  int devices;
};

constexpr EarlierRun kRuns[] = {{"sync-s0", "sync", 2}, {"virtual-s0", "ghost", 1}};

/// A copy of all of them, to be written to.
class EarlierRuns {
 public:
  EarlierRuns() { fs::copy(kEarlier, path(), fs::copy_options::recursive); }

  fs::path path() const { return folder_.path() / "runs"; }

 private:
  test::TemporaryFolder folder_;
};

TrainSummary resume(const fs::path& run, const std::string& devices,
                    const std::vector<std::string>& overrides) {
  TrainRequest request;
  request.config = load_config(RunFolder{run}.config(), overrides);
  request.devices = devices;
  request.output = run;
  request.resume = "auto";
  request.console = Console::kQuiet;
  return train(request);
}

TEST_CASE("runs of an earlier version say what they said") {
  const auto comparison = nlohmann::json::parse(test::read_text(kEarlier / "comparison.json"));
  for (std::size_t i = 0; i < std::size(kRuns); ++i) {
    const EarlierRun& run = kRuns[i];
    CAPTURE(run.folder);
    const auto summary = read_summary(kEarlier / run.folder);
    REQUIRE(summary);
    CHECK(summary->bn_mode == run.mode);
    CHECK(summary->device_count == run.devices);
    CHECK(summary->iterations == 2);
    CHECK(summary->classes.size() == 11);
    CHECK(summary->ranks.size() == static_cast<std::size_t>(run.devices));
    CHECK(summary->ranks.front().weights_hash.size() == 16);
    CHECK(summary->batch_norms.size() == 6);
    CHECK(summary->times.median_step > 0);
    const nlohmann::json& then = comparison.at("modes").at(i);
    CHECK(*score(summary->evaluation) == then.at("mIoU").at("mean"));
    CHECK(*summary->evaluation.loss == then.at("val_loss").at("mean"));
    CHECK(summary->train_loss == then.at("train_loss").at("mean"));
  }
}

TEST_CASE("checkpoints of an earlier version are evaluated") {
  for (const EarlierRun& run : kRuns) {
    CAPTURE(run.folder);
    const EvalReport report = evaluate_checkpoint(
        {.target = kEarlier / run.folder, .config = {}, .overrides = {}, .devices = "cpu:1"});
    CHECK(report.iteration == 2);
    CHECK(report.warnings.empty());
    CHECK(*report.evaluation.loss ==
          doctest::Approx(*read_summary(kEarlier / run.folder)->evaluation.loss).epsilon(1e-4));
    const TrainedModel model = read_trained_model({kEarlier / run.folder, {}, {}});
    CHECK(model.about.at("lockstep.num_classes") == "11");
  }
}

TEST_CASE("runs of an earlier version go on") {
  const EarlierRuns runs;
  for (const EarlierRun& run : kRuns) {
    CAPTURE(run.folder);
    const RunFolder folder{runs.path() / run.folder};
    const std::string devices = "cpu:" + std::to_string(run.devices);
    const Checkpoint before = load_checkpoint(folder.checkpoint("last"));
    CHECK(before.state.config_hash == config_hash(load_config(folder.config(), {})));
    const TrainSummary summary = resume(folder.root, devices, {"run.max_iters=4"});
    CHECK(summary.iterations == 4);
    const Checkpoint after = load_checkpoint(folder.checkpoint("last"));
    REQUIRE(after.state.losses.size() == 4);
    for (std::size_t i = 0; i < 2; ++i) CHECK(after.state.losses[i] == before.state.losses[i]);
    const auto again = read_summary(folder.root);
    REQUIRE(again);
    CHECK(again->iterations == 4);
    CHECK(test::lines_of(folder.scalars()).size() == 4);
  }
}

TEST_CASE("a comparison of an earlier version is reported") {
  const ReportData data = read_report(run_folders(kEarlier), builtin_tables());
  REQUIRE(data.runs.size() == 2);
  CHECK(data.modes() == std::vector<std::string>{"sync", "ghost"});
  CHECK(data.compares());
  for (const RunRecord& run : data.runs) {
    CHECK(run.config_error.empty());
    CHECK(run.train_loss.size() == 1);
    CHECK(run.lens.size() == 6);
    CHECK(run.environment.contains("compiler"));
  }
  CHECK(make_report(data, nullptr).all_figures().size() > 3);
}

}  // namespace
}  // namespace lockstep
