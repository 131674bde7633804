// Trainings whose images have one class each.

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "io/atomic_file.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"
#include "lockstep/nn/predictor.h"
#include "train/evaluator.h"
#include "train/runs.h"

namespace lockstep {
namespace {

using test::check_same_run;
using test::lines_of;
using test::read_text;
using test::Runs;

const std::vector<std::string> kShapes{
    "data.layout=shapes",  "data.size=[16, 16]",   "data.train_images=12",   "data.val_images=21",
    "model.arch=resnet18", "model.resnet_width=4", "model.small_images=true"};

TrainRequest request(const Runs& runs, const std::string& run,
                     const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = kShapes;
  overrides.insert(overrides.end(), more.begin(), more.end());
  TrainRequest request = runs.request(run, {});
  request.config = load_config(runs.path() / "shapes.toml", overrides);
  return request;
}

/// Runs with a configuration that says nothing of a model.
struct ShapeRuns : Runs {
  ShapeRuns() {
    std::string text = test::kConfig;
    text.erase(text.find("[model]"), text.find("[optim]") - text.find("[model]"));
    write_file_atomically(path() / "shapes.toml", text);
  }
};

}  // namespace

TEST_CASE("a classification: its metrics in logs and summary, and a resumed run is the same run") {
  const ShapeRuns runs;
  const TrainSummary summary = train(request(runs, "a", {"bn.mode=sync"}));
  CHECK(summary.status == TrainStatus::kDone);
  CHECK(summary.evaluation.task == Task::kClassification);
  CHECK(summary.evaluation.images == 21);
  REQUIRE(summary.evaluation.top5.has_value());
  CHECK(*summary.evaluation.top5 >= *summary.evaluation.metrics.a_acc);
  CHECK(score(summary.evaluation) == summary.evaluation.metrics.a_acc);
  const nlohmann::json last = lines_of(runs.folder("a").scalars()).back();
  CHECK(last.at("mode") == "val");
  CHECK(last.at("top1").get<double>() == *summary.evaluation.metrics.a_acc);
  CHECK(last.at("top5").get<double>() == *summary.evaluation.top5);
  CHECK(last.contains("Acc.ring"));
  CHECK_FALSE(last.contains("mIoU"));

  const auto read = read_summary(runs.folder("a").root);
  REQUIRE(read.has_value());
  CHECK(read->evaluation.task == Task::kClassification);
  CHECK(read->evaluation.top5 == summary.evaluation.top5);
  CHECK(read->best_score == summary.best_score);

  std::atomic<bool> stop = true;
  TrainRequest part = request(runs, "b", {"bn.mode=sync"});
  part.stop = &stop;
  CHECK(train(part).status == TrainStatus::kInterrupted);
  part.stop = nullptr;
  part.resume = "auto";
  train(part);
  check_same_run(runs.folder("a"), runs.folder("b"));
}

TEST_CASE("a classification is the same on any number of devices, its evaluation too") {
  const ShapeRuns runs;
  for (const char* devices : {"cpu:1", "cpu:3"}) {
    TrainRequest own = request(runs, devices, {"bn.mode=sync"});
    own.devices = devices;
    train(own);
  }
  const RunFolder one = runs.folder("cpu:1"), three = runs.folder("cpu:3");
  CHECK(read_text(one.scalars()) == read_text(three.scalars()));
  CHECK(read_text(one.checkpoint("last")) == read_text(three.checkpoint("last")));
}

TEST_CASE("top-1 and top-5 are those of the network's own logits") {
  const ShapeRuns runs;
  const TrainRequest own = request(runs, "a");
  const TrainSummary summary = train(own);
  const ValLoader loader(own.config.data, own.config.run.seed);
  Predictor predictor(own.config.architecture().model,
                      read_weights(runs.folder("a").checkpoint("last")).tensors);
  int top1 = 0, top5 = 0;
  for (std::int64_t i = 0; i < loader.size(); ++i) {
    const Batch batch = loader.load(i, 1, 1);
    const Prediction said = predictor.predict(batch.images, {1, 16, 16, 3});
    const std::size_t label = batch.labels.front();
    int larger = 0;
    for (const float logit : said.logits) larger += logit > said.logits[label] ? 1 : 0;
    top1 += larger == 0 ? 1 : 0;
    top5 += larger < 5 ? 1 : 0;
  }
  CHECK(*summary.evaluation.metrics.a_acc == doctest::Approx(100.0 * top1 / 21));
  CHECK(*summary.evaluation.top5 == doctest::Approx(100.0 * top5 / 21));
  CHECK(top5 > top1);
}

TEST_CASE("a model and data of different tasks are refused, and options that do not go together") {
  const ShapeRuns runs;
  const auto message = [&](std::vector<std::string> overrides) {
    try {
      load_config(runs.path() / "shapes.toml", overrides);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(message({"model.arch=resnet18"})
            .find("but data of layout \"streets\" give every pixel a "
                  "class") != std::string::npos);
  CHECK(message({"data.layout=shapes"}).find("\"unet\" gives every pixel a class") !=
        std::string::npos);
  auto with = [&](const std::string& more) {
    std::vector<std::string> overrides = kShapes;
    overrides.push_back(more);
    return message(overrides);
  };
  CHECK(with("model.aux_head=true").find("has no auxiliary head") != std::string::npos);
  CHECK(with("data.augment.crop_area=[0.1, 1]").find("needs the size of the result") !=
        std::string::npos);
  CHECK(with("data.augment.crop_aspect=[1, 1]").find("is of a random-resized crop") !=
        std::string::npos);
  CHECK(with("data.augment.crop_area=[0, 1]").find("[lo, hi], 0 < lo <= hi <= 1") !=
        std::string::npos);
  CHECK(with("run.seed=1").empty());
  CHECK(message({"model.small_images=true"})
            .find("unet is without a ResNet; leave out resnet_width") != std::string::npos);
}

TEST_CASE("a classification's configuration is written and read back") {
  const ShapeRuns runs;
  const Config config = request(runs, "a",
                                {"data.augment.crop=[12, 12]", "data.augment.crop_area=[0.3, 1]",
                                 "data.augment.crop_aspect=[0.9, 1.1]", "data.val_resize=20",
                                 "data.val_crop=[12, 12]"})
                            .config;
  CHECK(config.data.ignore_index == 65535);
  CHECK(config.data.num_classes == 10);
  write_file_atomically(runs.path() / "again.toml", to_toml(config));
  const Config again = load_config(runs.path() / "again.toml", {});
  CHECK(to_toml(again) == to_toml(config));
  CHECK(config_hash(again) == config_hash(config));
  REQUIRE(again.data.augment->crop_area.has_value());
  CHECK((*again.data.augment->crop_area)[0] == 0.3F);
  CHECK(again.data.augment->crop_aspect[1] == 1.1F);
  CHECK(again.model.resnet_width == 4);
  CHECK(again.model.small_images);
}

}  // namespace lockstep
