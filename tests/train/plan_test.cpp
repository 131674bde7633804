#include "train/plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <numeric>

#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "train/runs.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// Ten training images of 32x32 in batches of 4: two steps per epoch, two images left out.
Config tiny(const test::TemporaryFolder& folder, const std::string& more = "") {
  return load_config(folder.write("tiny.toml", R"([run]
epochs = 3
[data]
layout = "streets"
size = [32, 32]
train_images = 10
val_images = 3
[batch]
global = 4
[model]
width = 4
depth = 2
[schedule]
type = "poly"
)" + more),
                     {});
}

TEST_CASE("a plan counts steps, images and BatchNorm's values") {
  const test::TemporaryFolder folder;
  Config config = tiny(folder);
  config.bn.mode = BatchNormMode::kSync;
  config.bn.virtual_devices = 2;
  config.run.val_every = 4;
  const TrainingPlan plan = plan_training(config, parse_devices("cpu:2"), 1);
  CHECK(plan.global_batch == 4);
  CHECK(plan.shares == std::vector<std::int64_t>{2, 2});
  CHECK(plan.steps_per_epoch == 2);
  CHECK(plan.dropped == 2);
  CHECK(plan.steps == 6);
  CHECK(plan.evaluations == 3);  // after steps 4 and 6, and by each image's own statistics
  REQUIRE(plan.norms.size() == 2);
  CHECK(plan.norms[0].height == 32);
  CHECK(plan.norms[0].local == 2 * 32 * 32);
  CHECK(plan.norms[0].sync == 4 * 32 * 32);
  CHECK(plan.norms[0].ghost_slice == 32 * 32);
  CHECK(plan.norms[1].sync == 4 * 16 * 16);
  std::size_t layers = 0;
  std::int64_t channels = 0;
  for (const NormPlan& norm : plan.norms) {
    layers += norm.layers.size();
    channels += norm.channels;
  }
  CHECK(plan.exchanges == static_cast<std::int64_t>(2 * layers));
  // Both directions, from every image two values of fp32 for each channel.
  CHECK(plan.exchanged_bytes == 2 * 4 * 2 * 4 * channels);
  CHECK(plan.rates.front() ==
        doctest::Approx(static_cast<double>(base_learning_rate(config.optim.optimizer))));
  CHECK(plan.rates.back() < plan.rates.front() / 3);
  CHECK(plan.step_seconds > 0);
}

TEST_CASE("a plan counts the crops of an epoch") {
  const test::TemporaryFolder folder;
  Config config = tiny(folder, "[data.augment]\ncrop = [16, 16]\n");
  config.data.crops_per_image = 3;
  const TrainingPlan plan = plan_training(config, parse_devices("cpu:1"), 1);
  CHECK(plan.train_images == 10);
  CHECK(plan.samples_per_epoch == 30);
  CHECK(plan.steps_per_epoch == 7);
  CHECK(plan.dropped == 2);
  CHECK(plan.steps == 21);
}

TEST_CASE("a plan reads the weights that its training would begin with") {
  const test::TemporaryFolder folder;
  Config config = tiny(folder);
  config.model.backbone_weights = (folder.path() / "missing.safetensors").string();
  CHECK_THROWS_WITH_AS(plan_training(config, parse_devices("cpu:1"), 1),
                       doctest::Contains("missing.safetensors"), DataError);
}

TEST_CASE("the planned memory is what steps and evaluations take") {
  const test::TemporaryFolder folder;
  for (const char* devices : {"cpu:1", "cpu:4"}) {
    const TrainingPlan plan = plan_training(tiny(folder), parse_devices(devices), 1);
    for (std::size_t rank = 0; rank < plan.devices.size(); ++rank) {
      CHECK(plan.training_bytes[rank] <= plan.planned_bytes[rank]);
      CHECK(static_cast<double>(plan.measured_bytes[rank]) ==
            doctest::Approx(static_cast<double>(plan.planned_bytes[rank])).epsilon(0.05));
    }
  }
}

TEST_CASE("a plan's evaluations and memory are those of the training, whatever it evaluates by") {
  const test::Runs runs;
  const std::vector<std::vector<std::string>> rows{
      {},
      {"run.eval_own=false"},
      {"run.eval_all_stats=true"},
      {"bn.eval_stats=batch", "bn.eval_images=5", "batch.global=4"},
      {"bn.eval_stats=batch", "batch.global=10"},
      {"bn.eval_stats=own", "run.eval_all_stats=true"},
      {"run.eval_disparity=true", "data.augment.crop=[16, 16]", "bn.precise_iters=2"},
      {"run.eval_disparity=true", "bn.freeze_at=0.5"},
      {"bn.eval_stats=precise", "bn.precise_iters=2", "ema.decay=0.5"},
      {"ema.decay=0.5", "bn.mode=instance"}};
  for (const std::vector<std::string>& keys : rows) {
    CAPTURE(keys.empty() ? "" : keys.front());
    const TrainRequest request = runs.request(std::to_string(&keys - rows.data()), keys);
    const TrainingPlan plan = plan_training(request.config, parse_devices(request.devices), 1);
    const TrainSummary trained = train(request);
    const auto events = test::lines_of(RunFolder{request.output}.events());
    CHECK(plan.evaluations == std::ranges::count_if(events, [](const nlohmann::json& event) {
            const std::string type = event.at("type");
            return type == "eval" || type == "eval_ema";
          }));
    std::size_t most = 0;  // of a rank: not all have a largest batch
    for (const RankReport& rank : trained.ranks) most = std::max(most, rank.peak_memory_bytes);
    for (const std::vector<std::size_t>& bytes : {plan.planned_bytes, plan.measured_bytes}) {
      CHECK(static_cast<double>(std::ranges::max(bytes)) ==
            doctest::Approx(static_cast<double>(most)).epsilon(0.05));
    }
  }
}

TEST_CASE("a plan counts the batches of precise statistics") {
  const test::Runs runs;
  const auto planned = [&](std::vector<std::string> keys) {
    keys.emplace_back("bn.precise_iters=2");
    const TrainRequest request = runs.request("a", keys);
    return plan_training(request.config, parse_devices("cpu:2"), 1).precise_batches;
  };
  CHECK(planned({}) == 0);
  CHECK(planned({"run.eval_disparity=true"}) == 2);    // at the end
  CHECK(planned({"bn.eval_stats=precise"}) == 3 * 2);  // after 4, 8 and 10 steps
  const std::string average = "ema.decay=0.5", precise = "ema.bn=precise";
  CHECK(planned({"bn.eval_stats=precise", average}) == 2 * 3 * 2);
  CHECK(planned({average, precise}) == 3 * 2);
  CHECK(planned({average, precise, "run.checkpoint_every=6"}) == 4 * 2);  // after 6, too
}

TEST_CASE("the largest batch counts evaluations that grow with it") {
  const test::TemporaryFolder folder;
  Config config = tiny(folder);
  config.data.val_images = 30;
  config.bn.mode = BatchNormMode::kSync;
  config.bn.eval_stats = EvalStats::kBatch;
  config.batch.drop_last = false;
  const auto planned = [&](std::int64_t batch) {
    config.batch.global = batch;
    return plan_training(config, parse_devices("cpu:1"), 1);
  };
  const std::size_t limit = planned(10).measured_bytes.front();
  CHECK(largest_batch(planned(4), limit + limit / 50) == 10);
}

TEST_CASE("the planned memory is that of the largest image of the evaluation") {
  const test::TemporaryFolder folder;
  const auto add = [&](const std::string& split, const std::string& name, int height, int width) {
    for (const char* kind : {"images", "masks"})
      fs::create_directories(folder.path() / kind / split);
    const auto pixels = static_cast<std::size_t>(height * width);
    write_png(folder.path() / "images" / split / name,
              Image{height, width, std::vector<std::uint8_t>(3 * pixels, 100)});
    write_png(folder.path() / "masks" / split / name,
              LabelMap{height, width, std::vector<Label>(pixels, 1)});
  };
  for (const char* name : {"a.png", "b.png"}) add("train", name, 16, 16);
  // More than are timed: the largest is not among them.
  for (char name = 'a'; name <= 'z'; ++name) add("val", std::string(1, name) + ".png", 16, 16);
  const auto planned = [&] {
    const Config config = load_config(
        folder.write("a.toml", "[data]\nlayout = \"folder\"\nroot = \"" + folder.path().string() +
                                   "\"\nnum_classes = 2\n[batch]\nglobal = 2\n"
                                   "[model]\nwidth = 4\ndepth = 2\n[run]\nmax_iters = 1\n"),
        {});
    return plan_training(config, parse_devices("cpu:2"), 1);
  };
  const TrainingPlan small = planned();
  add("val", "x.png", 161, 90);
  const TrainingPlan large = planned();
  CHECK(small.largest_size == Size{16, 16});
  CHECK(large.largest_size == Size{162, 90});  // a multiple of the network's divisor
  CHECK(large.largest_image.find("x.png") != std::string::npos);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(large.planned_bytes[rank] > 2 * small.planned_bytes[rank]);
    CHECK(large.measured_bytes[rank] >= large.planned_bytes[rank]);
  }
}

TEST_CASE("the largest batch is one that fits, and the next does not") {
  const test::TemporaryFolder folder;
  Config config = tiny(folder);
  const auto memory_of = [&](std::int64_t batch) {
    config.batch.global = batch;
    config.batch.drop_last = false;
    const TrainingPlan plan = plan_training(config, parse_devices("cpu:2"), 1);
    return std::accumulate(plan.measured_bytes.begin(), plan.measured_bytes.end(), std::size_t{0});
  };
  const std::size_t limit = memory_of(10);
  config.batch.global = 4;
  const std::int64_t largest =
      largest_batch(plan_training(config, parse_devices("cpu:2"), 1), limit + limit / 50);
  CHECK(largest == 10);
  CHECK(largest_batch(plan_training(config, parse_devices("cpu:2"), 1), 1000) == 0);
}

TEST_CASE("what cannot be trained is refused by its plan, with the layer's name") {
  const test::TemporaryFolder folder;
  Config config = tiny(folder);
  config.data.size = {16, 16};
  config.model.depth = 5;
  config.batch.global = 2;
  std::string text;
  try {
    plan_training(config, parse_devices("cpu:2"), 1);
  } catch (const std::exception& error) {
    text = error.what();
  }
  INFO(text);
  CHECK(test::contains(text, "more than one value per channel"));
}

}  // namespace
}  // namespace lockstep
