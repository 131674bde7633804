// bn.eval_stats = "batch" and "own", the train/eval disparity, and what it says a bad validation
// comes from.

#include "run/disparity.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "lockstep/core/check.h"
#include "support/check_contains.h"
#include "train/eval_batches.h"
#include "train/evaluator.h"
#include "train/runs.h"

namespace lockstep {
namespace {

using json = nlohmann::json;
using test::check_contains;
using test::lines_of;
using test::Runs;

StatisticsScores scores(double running, double batch, std::optional<double> precise) {
  return {.score_name = "mIoU",
          .together = 1,
          .running_score = running,
          .batch_score = batch,
          .running_loss = 1.5,
          .batch_loss = 0.5,
          .precise_score = precise};
}

}  // namespace

TEST_CASE("statistics or weights: precise statistics decide, where batches do better at all") {
  CHECK(fault_of(scores(20, 20.9, {})) == ValidationFault::kNoStatistics);
  CHECK(fault_of(scores(20, 12, 30)) == ValidationFault::kNoStatistics);
  CHECK(fault_of(scores(20, 28, {})) == ValidationFault::kUnknown);
  CHECK(fault_of(scores(20, 28, 24)) == ValidationFault::kStatistics);
  CHECK(fault_of(scores(20, 28, 23.9)) == ValidationFault::kEvaluation);
  StatisticsScores together = scores(20, 28, 23.9);
  together.together = 2;
  CHECK(fault_of(together) == ValidationFault::kWeights);
  check_contains(explain(together), "which one image does not have");
  check_contains(explain(scores(20, 28, 27)), "evaluate with bn.eval_stats = \"precise\"");
  check_contains(explain(scores(20, 28, 21)), "evaluate by them (bn.eval_stats = \"own\")");
  check_contains(explain(scores(20, 28, 21)), "statistics of 1 image give mIoU 28.00");
  CHECK(scores(20, 28, 21).score() == 8);
  CHECK(scores(20, 28, 21).loss() == -1);
}

TEST_CASE("own statistics that lead are told of, others are not") {
  const auto told = [](double running, std::optional<double> own) {
    TrainSummary summary;
    summary.evaluation.metrics.m_iou = running;
    summary.evaluation.loss = 1;
    if (own) {
      Evaluation other = summary.evaluation;
      other.eval_stats = EvalStats::kOwn;
      other.metrics.m_iou = *own;
      summary.other_stats.push_back(other);
    }
    return explain_own(summary);
  };
  REQUIRE(told(20, 21.5));
  check_contains(*told(20, 21.5), "score 1.50 points of mIoU more than by running ones");
  CHECK_FALSE(told(20, 20.9));
  CHECK_FALSE(told(20, 12));
  CHECK_FALSE(told(20, std::nullopt));
}

TEST_CASE("every evaluation of a training gives its disparity, the last one its cause") {
  const Runs runs;
  const TrainSummary summary = train(runs.request("a", {"run.eval_disparity=true"}));
  REQUIRE(summary.other_stats.size() == 3);
  CHECK(summary.other_stats[1].eval_stats == EvalStats::kOwn);
  const Evaluation& batch = summary.other_stats[0];
  CHECK(batch.eval_stats == EvalStats::kBatch);
  CHECK(batch.together == 2);  // 6 images on 4 devices: 2, 2, 2, 0
  CHECK(batch.images == 5);
  CHECK(summary.other_stats[2].eval_stats == EvalStats::kPrecise);
  std::vector<int> steps;
  json end;
  for (const json& event : lines_of(runs.folder("a").events())) {
    if (event.at("type") == "end") end = event.at("summary").at("disparity");
    if (event.at("type") != "eval" || event.at("eval_stats") != "batch") continue;
    steps.push_back(event.at("step"));
    CHECK(event.at("together") == 2);
    CHECK(event.at("disparity").contains("mIoU"));
  }
  CHECK(steps == std::vector<int>{4, 8, 10});
  CHECK(end.at("loss").get<double>() == *batch.loss - *summary.evaluation.loss);
  CHECK(end.at("mIoU").get<double>() == *batch.metrics.m_iou - *summary.evaluation.metrics.m_iou);
  const TrainSummary read = read_summary(runs.folder("a").root).value();
  const auto scores = compare_statistics({&read, 1});
  REQUIRE(scores);
  CHECK(explain(*scores) == end.at("text"));
  CHECK(test::read_text(runs.folder("a").log()).find(explain(*scores)) != std::string::npos);
}

TEST_CASE("asking for the disparity changes no bit of a training") {
  const Runs runs;
  train(runs.request("a"));
  train(runs.request("b", {"run.eval_disparity=true"}));
  test::check_same_run(runs.folder("a"), runs.folder("b"));
}

TEST_CASE("norms without running statistics have no disparity") {
  const Runs runs;
  for (const char* mode : {"bn.mode=layer", "bn.track_running_stats=false"}) {
    CAPTURE(mode);
    const auto summary =
        train(runs.request(mode, {mode, "run.eval_disparity=true", "run.max_iters=1"}));
    CHECK(summary.other_stats.empty());
    CHECK_FALSE(compare_statistics({&summary, 1}));
  }
}

TEST_CASE("eval_stats batch: companions are random, and the same in every evaluation") {
  constexpr std::int64_t kImages = 320, kTogether = 32,
                         kClasses = 10;  // whose classes come in turn
  const EvalBatches batches = EvalBatches::shuffled(kImages, kTogether);
  const EvalBatches again = EvalBatches::shuffled(kImages, kTogether);
  REQUIRE(batches.count() == kImages / kTogether);
  std::set<std::int64_t> all;
  for (std::int64_t b = 0; b < batches.count(); ++b) {
    const std::vector<std::int64_t> images = batches.images_of(b);
    CHECK(images == again.images_of(b));
    std::set<std::int64_t> classes;
    int neighbours = 0;
    for (const std::int64_t image : images) {
      all.insert(image);
      classes.insert(image % kClasses);
      neighbours += static_cast<int>(std::ranges::count(images, image + 1));
    }
    CHECK(classes.size() >= 7);                           // every tenth image: 1
    CHECK(neighbours < static_cast<int>(kTogether) / 2);  // in the split's order: 31
  }
  CHECK(all.size() == kImages);
}

TEST_CASE("eval_stats batch: a run's checkpoint gives what training said, on any devices") {
  const Runs runs;
  const TrainSummary summary = train(runs.request("a", {"bn.eval_stats=batch"}));
  CHECK(summary.evaluation.together == 2);
  for (const char* devices : {"cpu:4", "cpu:1", "cpu:3"}) {
    const EvalReport report = evaluate_checkpoint({runs.folder("a").root, {}, {}, devices});
    CHECK(report.evaluation.confusion == summary.evaluation.confusion);
    CHECK(report.evaluation.together == 2);
    CHECK(json::parse(to_json(report)).at("together") == 2);
  }
}

TEST_CASE("eval_stats batch: all images together are what sync would normalise") {
  const Runs runs;
  // Without running statistics an evaluation normalises each batch of one image by itself.
  const TrainSummary trained = train(runs.request("a", {"run.max_iters=2", "bn.mode=sync"}));
  const auto with = [&](const std::string& images) {
    return evaluate_checkpoint({runs.folder("a").root,
                                {},
                                {"bn.eval_stats=batch", "bn.eval_images=" + images},
                                "cpu:2"})
        .evaluation;
  };
  const Evaluation untracked =
      train(runs.request("b", {"run.max_iters=2", "bn.mode=sync", "bn.track_running_stats=false"}))
          .evaluation;
  CHECK(with("1").loss == untracked.loss);
  CHECK(with("1").confusion == untracked.confusion);
  CHECK(with("1").loss != with("5").loss);
  CHECK(with("5").loss == with("100").loss);  // there are five
  CHECK(with("3").together == 3);
  CHECK(with("3").loss == with("5").loss);  // no batch has fewer than asked for: one of all five
  CHECK(with("2").loss != with("3").loss);  // two batches, of three and of two
  CHECK(with("5").loss != trained.evaluation.loss);
}

TEST_CASE("eval_stats own: every training ends with it, and any devices give the same bits") {
  const Runs runs;
  const TrainSummary summary = train(runs.request("a"));
  REQUIRE(summary.other_stats.size() == 1);
  const Evaluation& own = summary.other_stats.front();
  CHECK(own.eval_stats == EvalStats::kOwn);
  CHECK(own.loss != summary.evaluation.loss);
  for (const char* devices : {"cpu:4", "cpu:1", "cpu:3"}) {
    CAPTURE(devices);
    const auto by = [&](std::vector<std::string> overrides) {
      return evaluate_checkpoint({runs.folder("a").root, {}, std::move(overrides), devices})
          .evaluation;
    };
    const Evaluation again = by({"bn.eval_stats=own"});
    CHECK(again.loss == own.loss);
    CHECK(again.confusion == own.confusion);
    CHECK(again.together == 0);
    // One image at a time is its own batch.
    CHECK(by({"bn.eval_stats=batch", "bn.eval_images=1"}).confusion == own.confusion);
  }
}

TEST_CASE("eval_stats own: as what a run is judged by, running statistics are the others") {
  const Runs runs;
  const TrainSummary summary = train(runs.request("a", {"bn.eval_stats=own"}));
  CHECK(summary.evaluation.eval_stats == EvalStats::kOwn);
  REQUIRE(summary.other_stats.size() == 1);
  CHECK(summary.other_stats.front().eval_stats == EvalStats::kDevice0);
  CHECK(train(runs.request("b", {"run.eval_own=false"})).other_stats.empty());
  CHECK(train(runs.request("c", {"bn.mode=instance"})).other_stats.empty());
}

TEST_CASE("evaluating by own statistics changes no bit of a training") {
  const Runs runs;
  train(runs.request("a"));
  train(runs.request("b", {"run.eval_own=false"}));
  for (const char* name : {"last", "best"}) {
    CHECK(test::read_text(runs.folder("a").checkpoint(name)) ==
          test::read_text(runs.folder("b").checkpoint(name)));
  }
}

TEST_CASE("images that share statistics in training: of a device, a group, a slice or all") {
  const Runs runs;
  const auto together = [&](std::vector<std::string> overrides, int devices) {
    return runs.request("a", std::move(overrides)).config.images_together(devices);
  };
  CHECK(together({"batch.global=8"}, 4) == 2);
  CHECK(together({"batch.global=6"}, 4) == 2);
  CHECK(together({"batch.global=8", "batch.accumulate=2"}, 4) == 1);
  CHECK(together({"batch.global=8", "bn.mode=sync"}, 4) == 8);
  CHECK(together({"batch.global=8", "bn.mode=sync", "bn.sync_group=2"}, 4) == 4);
  CHECK(together({"batch.global=8", "bn.mode=ghost", "bn.virtual_devices=2"}, 1) == 4);
}

}  // namespace lockstep
