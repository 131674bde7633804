#include "train/trainer.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "backend/cpu_kernels.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "run/checkpoint.h"
#include "run/report_text.h"
#include "run/run_log.h"
#include "support/pth_writer.h"
#include "support/with_variable.h"
#include "train/evaluator.h"
#include "train/runs.h"
#include "train/training.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::check_same_run;
using test::kConfig;
using test::lines_of;
using test::read_text;
using test::Runs;
using test::TemporaryFolder;

/// As PyTorch's DataParallel saves them, inside of a checkpoint.
std::string wrapped_checkpoint(const TensorMap& tensors) {
  std::string items;
  test::pth::Storages storages;
  for (const auto& [name, tensor] : tensors) {
    const std::string key = std::to_string(storages.size());
    storages[key] = {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()};
    const bool counter = tensor.dtype == "I64";
    const auto elements = static_cast<std::int64_t>(tensor.data.size() / (counter ? 8 : 4));
    std::vector<std::int64_t> strides(tensor.shape.size(), 1);
    for (std::size_t axis = strides.size(); axis > 1; --axis) {
      strides[axis - 2] = strides[axis - 1] * tensor.shape[axis - 1];
    }
    items += test::pth::text("module." + name) +
             test::pth::tensor(
                 test::pth::storage(counter ? "LongStorage" : "FloatStorage", key, elements), 0,
                 tensor.shape, strides);
  }
  return test::pth::archive(test::pth::dict(test::pth::text("epoch") + test::pth::integer(3) +
                                            test::pth::text("state_dict") + test::pth::dict(items)),
                            storages);
}

}  // namespace

TEST_CASE("a run leaves what docs/look_up/run_folder.md says, with logs on time") {
  const Runs runs;
  const TrainSummary summary = train(runs.request("a"));
  const RunFolder folder = runs.folder("a");
  CHECK(summary.status == TrainStatus::kDone);
  CHECK(summary.iterations == 10);
  CHECK(summary.best_score.has_value());
  CHECK(std::isfinite(summary.train_loss));

  std::vector<std::pair<std::string, int>> expected{
      {"train", 3}, {"val", 4}, {"train", 6}, {"val", 8}, {"train", 9}, {"train", 10}, {"val", 10}};
  std::vector<std::pair<std::string, int>> got;
  for (const json& line : lines_of(folder.scalars())) {
    got.emplace_back(line.at("mode"), line.at("step"));
    for (const char* timed : {"time", "data_time", "memory", "eta"})
      CHECK_FALSE(line.contains(timed));
    if (line.at("mode") == "val") CHECK(line.contains("IoU.sky"));
    if (line.at("mode") == "train") CHECK(line.at("loss").get<double>() > 0);
    if (line.at("mode") == "train") CHECK(line.at("grad_norm").get<double>() > 0);
  }
  CHECK(got == expected);
  CHECK(lines_of(folder.timing()).size() == expected.size());
  for (const char* name : {"iter_4", "iter_8", "iter_10", "last", "best"}) {
    CHECK(load_checkpoint(folder.checkpoint(name)).state.replicas.size() == 4);
  }
  CHECK(load_config(folder.config(), {}).run.max_iters == 10);
  CHECK(json::parse(read_text(folder.environment())).at("devices").size() == 4);
  CHECK(read_text(folder.log()).find("Iter(train) [ 3/10]  lr: ") != std::string::npos);
}

TEST_CASE("events: header first, one bn line per layer and log step, end last") {
  const Runs runs;
  train(runs.request("a", {"bn.mode=sync"}));
  const std::vector<json> events = lines_of(runs.folder("a").events());
  CHECK(events.front().at("type") == "header");
  CHECK(events.front().at("bn_mode") == "sync");
  CHECK(events.front().at("precision") == "fp32");
  CHECK(events.front().at("tf32") == false);
  CHECK(events.front().at("schema") == 1);
  CHECK(events.back().at("type") == "end");
  CHECK(events.back().at("status") == "done");
  int layers = 0;
  for (const json& event : events) {
    if (event.at("type") != "bn" || event.at("step") != 9) continue;
    ++layers;
    CHECK(event.at("parts") == 3);  // chunks of 6 over 4: 2, 2, 2, 0
    CHECK(event.at("within").get<double>() > 0);
    CHECK(event.at("between").get<double>() > 0);
  }
  CHECK(layers == 6);
}

TEST_CASE("bf16: the run says by what its numbers are multiplied, or that they are only stored") {
  const std::string products = cpu_kernels().bf16_products();
  const Runs runs;
  const auto losses = [&](const char* name) {
    return load_checkpoint(runs.folder(name).checkpoint("last")).state.losses;
  };
  train(runs.request("exact"));
  CHECK(lines_of(runs.folder("exact").events()).front().at("bf16_products") == "");
  const test::WithVariable stored("LOCKSTEP_CONVOLUTION", "onednn");
  train(runs.request("stored", {"run.precision=bf16"}));
  const std::string log = read_text(runs.folder("stored").log());
  CHECK(log.find(products.empty() ? "activations in memory, arithmetic in fp32"
                                  : "with bf16 convolutions, by " + products) != std::string::npos);
  CHECK(lines_of(runs.folder("stored").events()).front().at("bf16_products") == products);
  CHECK(losses("stored") != losses("exact"));
}

TEST_CASE("run.portable = true is for CPU devices") {
  CHECK_THROWS_WITH_AS(begin_computing(Runs().request("a", {"run.portable=true"}).config,
                                       {Device{DeviceKind::kCuda, 0}}),
                       doctest::Contains("choose -d cpu:N, or leave run.portable out"),
                       ConfigError);
}

TEST_CASE("the summary in the folder is the one that was returned") {
  const Runs runs;
  const TrainSummary summary = train(runs.request("a", {"run.eval_all_stats=true"}));
  const TrainSummary read = read_summary(runs.folder("a").root).value();
  CHECK(read.config_hash == summary.config_hash);
  CHECK(read.evaluation.confusion == summary.evaluation.confusion);
  CHECK(read.evaluation.metrics.m_iou == summary.evaluation.metrics.m_iou);
  CHECK(read.evaluation.loss == summary.evaluation.loss);
  CHECK(read.best_score == summary.best_score);
  CHECK(read.train_loss == summary.train_loss);
  CHECK(read.times.median_step == summary.times.median_step);
  CHECK(read.batch_norms.size() == 6);
  CHECK(read.batch_norms[2].ratio_max == summary.batch_norms[2].ratio_max);
  REQUIRE(read.other_stats.size() == 3);
  CHECK(read.other_stats[0].eval_stats == EvalStats::kOwn);
  CHECK(read.other_stats[2].eval_stats == EvalStats::kPooled);
  CHECK(read.other_stats[2].confusion == summary.other_stats[2].confusion);
  CHECK_FALSE(read_summary(runs.path() / "nowhere"));
}

TEST_CASE(
    "two runs with one seed are equal to the bit, under random delays, other workers and no "
    "cache") {
  for (const char* mode : {"bn.mode=local", "bn.mode=sync"}) {
    CAPTURE(mode);
    const Runs runs;
    train(runs.request("a", {mode}));
    TrainRequest delayed =
        runs.request("b", {mode, "data.workers=1", "data.cache_mb=0", "run.keep=3"});
    delayed.fault = "delay:seed=7,max_us=300";
    train(delayed);
    check_same_run(runs.folder("a"), runs.folder("b"));
  }
}

TEST_CASE("a training begins with a backbone's weights as far as they fit") {
  const Runs runs;
  train(runs.request("a", {"run.max_iters=2"}));
  TensorMap weights = load_safetensors(runs.folder("a").checkpoint("last"));
  TensorMap backbone;
  for (const auto& [name, tensor] : weights) {
    if (!name.starts_with("head.")) backbone["module." + name] = tensor;
  }
  backbone["module.fc.bias"] = weights.at("head.bias");
  save_safetensors(runs.path() / "backbone.safetensors", backbone);
  // Beside the configuration; a learning rate of 0 leaves what it begins with.
  train(runs.request("b", {"run.max_iters=1", "optim.lr=0", "run.seed=9",
                           "model.backbone_weights=backbone.safetensors"}));
  const TensorMap result = load_safetensors(runs.folder("b").checkpoint("last"));
  CHECK(result.at("encoder.0.0.conv.weight").data == weights.at("encoder.0.0.conv.weight").data);
  CHECK(result.at("decoder.0.1.bn.bias").data == weights.at("decoder.0.1.bn.bias").data);
  CHECK(result.at("head.weight").data != weights.at("head.weight").data);
  CHECK(read_text(runs.folder("b").log()).find("model.backbone_weights") != std::string::npos);
  CHECK_THROWS_WITH_AS(train(runs.request("c", {"model.backbone_weights=nowhere.pth"})),
                       doctest::Contains("nowhere.pth"), DataError);
}

TEST_CASE("a multiplier for the last layers changes what the run comes to") {
  const Runs runs;
  train(runs.request("a", {"run.max_iters=2"}));
  train(runs.request("b", {"run.max_iters=2", "optim.head_lr_mult=10"}));
  CHECK(read_text(runs.folder("a").scalars()) != read_text(runs.folder("b").scalars()));
  CHECK(read_text(runs.folder("b").config()).find("head_lr_mult = 10") != std::string::npos);
}

TEST_CASE("a multiplier for last layers that the model does not have is an error") {
  const auto one_layer = [](const ModelOptions& options) -> Architecture {
    const std::int64_t classes = options.num_classes;
    const Model model = [classes](NetworkBuilder& net, Value* x, const NormLayer&) -> Outputs {
      return {{"out", net.conv2d(x, "last", {.out_channels = classes, .bias = true})}};
    };
    return {model, 1, "one layer"};
  };
  const Tables tables{.models = {{"one_layer", one_layer}}};
  const TemporaryFolder folder;
  TrainRequest request;
  request.config = load_config(folder.write("tiny.toml", kConfig),
                               {"model.arch=one_layer", "optim.head_lr_mult=10"}, nullptr, tables);
  request.devices = "cpu:2";
  request.output = folder.path() / "a";
  request.console = Console::kQuiet;
  CHECK_THROWS_WITH_AS(train(request), doctest::Contains("optim.head_lr_mult is not 1"),
                       ConfigError);
}

TEST_CASE("devices whose statistics differ are evaluated in every way, whatever the mode") {
  const Runs runs;
  const auto ways = [&](const std::string& run, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(),
                     {"run.eval_all_stats=true", "run.eval_own=false", "run.max_iters=2"});
    return train(runs.request(run, overrides)).other_stats.size();
  };
  CHECK(ways("local", {"bn.mode='local'"}) == 2);
  CHECK(ways("virtual", {"bn.mode='virtual'", "bn.virtual_devices=2"}) == 2);
  CHECK(ways("groups", {"bn.mode='sync'", "bn.sync_group=2"}) == 2);
  CHECK(ways("sync", {"bn.mode='sync'"}) == 0);
}

TEST_CASE("a learning rate that is for a reference batch") {
  const Runs runs;
  train(runs.request("a", {"optim.lr_reference_batch=12", "schedule.type='constant'"}));
  int lines = 0;
  for (const json& line : lines_of(runs.folder("a").scalars())) {
    if (!line.contains("lr")) continue;
    CHECK(line.at("lr").get<double>() == doctest::Approx(0.025));
    ++lines;
  }
  CHECK(lines == 4);
}

TEST_CASE("a loss that is not finite ends the run and leaves the last good checkpoint") {
  const Runs runs;
  TrainRequest request =
      runs.request("a", {"optim.lr=1e38", "run.checkpoint_every=1", "schedule.type=constant"});
  CHECK_THROWS_AS(train(request), NonFiniteError);
  const json end = lines_of(runs.folder("a").events()).back();
  CHECK(end.at("exit_code") == 4);
  const std::int64_t step = end.at("step");
  CHECK(load_checkpoint(runs.folder("a").checkpoint("last")).state.iteration == step);
}

namespace {

/// What trains on a folder with four images in either split, of which one is damaged.
TrainRequest with_damaged(const Runs& runs, const char* image,
                          const std::string& checkpoint_every) {
  const fs::path data = runs.path() / "data";
  for (const char* split : {"train", "val"}) {
    fs::create_directories(data / "images" / split);
    fs::create_directories(data / "masks" / split);
    for (const char* name : {"1.png", "2.png", "3.png", "4.png"}) {
      write_png(data / "images" / split / name,
                Image{16, 16, std::vector<std::uint8_t>(16 * 16 * 3, 7)});
      write_png(data / "masks" / split / name, LabelMap{16, 16, std::vector<Label>(16 * 16, 1)});
    }
  }
  fs::resize_file(data / "images" / image, 60);
  return runs.request("a", {"data.layout=folder", "data.root=" + data.string(),
                            "data.num_classes=2", "data.shuffle=false", "batch.global=1",
                            "run.val_every=0", "run.checkpoint_every=" + checkpoint_every});
}

}  // namespace

TEST_CASE("a validation image that cannot be read costs nothing of what was trained") {
  const Runs runs;
  CHECK_THROWS_AS(train(with_damaged(runs, "val/2.png", "0")), DataError);
  CHECK(load_checkpoint(runs.folder("a").checkpoint("last")).state.iteration == 10);
  CHECK(lines_of(runs.folder("a").events()).back().at("exit_code") == 3);
}

TEST_CASE("a batch that cannot be read ends the run after the step before it was saved") {
  const Runs runs;
  const TrainRequest request = with_damaged(runs, "train/3.png", "1");
  CHECK_THROWS_AS(train(request), DataError);
  CHECK(load_checkpoint(runs.folder("a").checkpoint("last")).state.iteration == 2);
  const json end = lines_of(runs.folder("a").events()).back();
  CHECK(end.at("exit_code") == 3);
  CHECK(end.at("step") == 2);
}

TEST_CASE("initial weights come from a file, as far as it fits") {
  const Runs runs;
  train(runs.request("a"));
  TrainRequest request =
      runs.request("b", {"data.num_classes=11", "run.max_iters=1", "optim.lr=0"});
  request.init = runs.folder("a").checkpoint("last");
  train(request);
  const auto before = read_weights(request.init).tensors,
             after = read_weights(runs.folder("b").checkpoint("last")).tensors;
  CHECK(before.at("encoder.1.0.conv.weight").data == after.at("encoder.1.0.conv.weight").data);
  CHECK(before.at("head.bias").data == after.at("head.bias").data);
}

TEST_CASE("weights in PyTorch's files start a training and are evaluated, whatever wraps them") {
  const Runs runs;
  const TrainSummary trained = train(runs.request("a"));
  const TensorMap before = read_weights(runs.folder("a").checkpoint("last")).tensors;
  const fs::path file = runs.path() / "trained.pth";
  std::ofstream(file, std::ios::binary) << wrapped_checkpoint(before);
  TrainRequest request = runs.request("b", {"run.max_iters=1", "optim.lr=0"});
  request.init = file;
  train(request);
  const TensorMap after = read_weights(runs.folder("b").checkpoint("last")).tensors;
  for (const auto& [name, tensor] : before) {
    CAPTURE(name);
    if (name.ends_with(".weight")) CHECK(after.at(name).data == tensor.data);
  }
  const std::string log = read_text(runs.folder("b").log());
  const std::string all = std::to_string(before.size());
  CHECK(log.find(all + " of the network's " + all +
                 " tensors loaded (\"module.NAME\" in the file is \"NAME\" here)") !=
        std::string::npos);
  const EvalReport report = evaluate_checkpoint({file, runs.folder("a").config(), {}, "cpu:1"});
  CHECK(report.iteration == -1);
  CHECK(report.evaluation.confusion == trained.evaluation.confusion);
}

TEST_CASE("evaluation leaves a training run as it was, whatever statistics it uses") {
  const Runs runs;
  train(runs.request("a", {"run.val_every=0"}));
  for (const char* stats : {"mean", "pooled", "precise"}) {
    CAPTURE(stats);
    train(runs.request(
        stats, {"run.val_every=1", "bn.precise_iters=2", "bn.eval_stats=" + std::string(stats)}));
    CHECK(read_weights(runs.folder("a").checkpoint("last"))
              .tensors.at("encoder.0.0.bn.running_mean")
              .data == read_weights(runs.folder(stats).checkpoint("last"))
                           .tensors.at("encoder.0.0.bn.running_mean")
                           .data);
    CHECK(load_checkpoint(runs.folder("a").checkpoint("last")).state.optimizer ==
          load_checkpoint(runs.folder(stats).checkpoint("last")).state.optimizer);
  }
}

TEST_CASE("a class that is data.ignore_index counts in no evaluation") {
  const Runs runs;
  const TrainSummary summary = train(runs.request("a", {"data.ignore_index=3"}));
  const auto labels_of = [](const Evaluation& evaluation) {
    const std::size_t classes = evaluation.metrics.iou.size();
    std::vector<std::int64_t> labels(classes);
    for (std::size_t i = 0; i < evaluation.confusion.size(); ++i)
      labels[i / classes] += evaluation.confusion[i];
    return labels;
  };
  const std::vector<std::int64_t> counted = labels_of(summary.evaluation);
  REQUIRE(counted.size() == 11);
  CHECK(counted[3] == 0);
  CHECK(counted[0] > 0);
  EvalRequest request{runs.folder("a").root, {}, {}, "cpu:2"};
  CHECK(evaluate_checkpoint(request).evaluation.confusion == summary.evaluation.confusion);
  request.augmentation.flip = true;
  CHECK(labels_of(evaluate_checkpoint(request).evaluation) == counted);
}

TEST_CASE("a run whose config.toml could not be read again is refused before anything is written") {
  const Runs runs;
  TrainRequest request = runs.request("a");
  request.config.data.root = "/data/\xff";
  CHECK_THROWS_WITH_AS(train(request), doctest::Contains("not UTF-8"), ConfigError);
  CHECK_FALSE(fs::exists(runs.folder("a").root));
}

TEST_CASE("an evaluation whose loss is not finite is told of, and is no best one") {
  const Runs runs;
  train(runs.request("a", {"run.max_iters=1"}));
  SafetensorsFile weights = read_weights(runs.folder("a").checkpoint("last"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(weights.tensors.at("encoder.0.0.bn.running_mean").data.data(), &nan, sizeof nan);
  const std::filesystem::path file = runs.path() / "nan.safetensors";
  write_safetensors(file, {weights.tensors, {}});
  TrainRequest request = runs.request("b", {"run.max_iters=1"});
  request.init = file;
  const TrainSummary summary = train(request);
  CHECK_FALSE(score(summary.evaluation));
  CHECK_FALSE(summary.best_score);
  CHECK_FALSE(std::filesystem::exists(runs.folder("b").checkpoint("best")));
  CHECK(read_text(runs.folder("b").log()).find("the validation loss is nan") != std::string::npos);
  CHECK(loss_warning(summary.evaluation));
  const EvalReport sound = evaluate_checkpoint({runs.folder("a").root, {}, {}, "cpu:1"});
  CHECK_FALSE(loss_warning(sound.evaluation));
  CHECK(score(sound.evaluation) == sound.evaluation.metrics.m_iou);
}

TEST_CASE("evaluating a checkpoint gives what training said") {
  const Runs runs;
  for (const char* stats : {"device0", "mean", "pooled", "precise"}) {
    CAPTURE(stats);
    const TrainSummary summary =
        train(runs.request(stats, {"bn.precise_iters=3", "bn.eval_stats=" + std::string(stats)}));
    for (const char* devices : {"cpu:4", "cpu:1", "cpu:3", "cpu:6"}) {
      const EvalReport report = evaluate_checkpoint({runs.folder(stats).root, {}, {}, devices});
      CHECK(report.evaluation.confusion == summary.evaluation.confusion);
      CHECK(report.iteration == 10);
      CHECK(json::parse(to_json(report)).at("eval_stats") == stats);
    }
  }
  CHECK_THROWS_AS(evaluate_checkpoint({runs.path() / "nowhere", {}, {}, "cpu:1"}), DataError);
}

TEST_CASE("eval repeats a training's precise score in every mode, on any devices") {
  const Runs runs;
  int run = 0;
  for (const std::string mode : {"local", "sync", "ghost", "renorm", "instance"}) {
    for (const std::string more :
         {"batch.accumulate=2", "batch.per_device=2", "bn.freeze_at=0.5"}) {
      std::vector<std::string> keys{"bn.eval_stats=precise", "bn.precise_iters=2", more,
                                    "bn.mode=" + mode};
      if (mode == "sync") keys.emplace_back("bn.sync_group=2");
      CAPTURE(mode);
      CAPTURE(more);
      const std::string name = std::to_string(run++);
      const TrainSummary summary = train(runs.request(name, keys));
      for (const char* devices : {"cpu:1", "cpu:3"}) {
        const EvalReport report = evaluate_checkpoint({runs.folder(name).root, {}, {}, devices});
        CHECK(report.evaluation.confusion == summary.evaluation.confusion);
      }
    }
  }
}

TEST_CASE("a checkpoint is evaluated whatever its training has asked of the devices") {
  const Runs runs;
  train(runs.request("a", {"bn.mode=sync", "bn.sync_group=2", "batch.accumulate=2",
                           "run.gradient_exchange=owner"}));
  for (const char* devices : {"cpu:4", "cpu:3", "cpu:1"}) {
    CHECK(evaluate_checkpoint({runs.folder("a").root, {}, {}, devices}).iteration == 10);
  }
}

TEST_CASE("a ResNet with a norm of each image is evaluated") {
  const Runs runs;
  const TrainSummary summary =
      train(runs.request("a", {"model.arch=fcn_resnet50", "model.resnet_width=2",
                               "bn.mode=instance", "run.max_iters=1"}));
  const EvalReport report = evaluate_checkpoint({runs.folder("a").root, {}, {}, "cpu:2"});
  CHECK(report.evaluation.confusion == summary.evaluation.confusion);
}

TEST_CASE("precise statistics are those of all training images, on any number of devices") {
  // The first BatchNorm sees the same values however they are spread; with an odd batch one device
  // has fewer.
  const Runs runs;
  std::vector<double> losses;
  for (const char* devices : {"cpu:1", "cpu:3"}) {
    TrainRequest request =
        runs.request(devices, {"bn.mode=sync", "bn.eval_stats=precise", "bn.precise_iters=2",
                               "run.max_iters=1", "batch.global=5", "optim.lr=0"});
    request.devices = devices;
    losses.push_back(train(request).evaluation.loss.value());
  }
  CHECK(losses[0] == doctest::Approx(losses[1]).epsilon(1e-4));
}

TEST_CASE("the end of a run says whether its data held it up") {
  TrainSummary summary;
  CHECK(format_summary(summary, "lockstep").find("step 0.0 ms") == std::string::npos);  // unknown
  summary.evaluation.images = 1;
  CHECK(format_summary(summary, "lockstep").find("(1 image, eval_stats") != std::string::npos);
  summary.times = {.step = 1, .data = 0.05, .median_step = 1};
  CHECK(format_summary(summary, "lockstep").find("held the training up") == std::string::npos);
  summary.times.data = 0.2;
  CHECK(format_summary(summary, "lockstep").find("20.0 %  (the data held the training up") !=
        std::string::npos);
}

TEST_CASE("a log that cannot be written ends the run by what the system said") {
  const Runs runs;
  const RunFolder folder{runs.path() / "full"};
  fs::create_directories(folder.root);
  fs::create_symlink("/dev/full", folder.log());
  RunLog log(folder, Console::kQuiet);
  for (const auto& write : std::vector<std::function<void()>>{[&] { log.warning("text"); },
                                                              [&] { log.record_error("text"); }}) {
    CHECK_THROWS_WITH_AS(
        write(),
        doctest::Contains(
            ("cannot write " + folder.log().string() + ": No space left on device").c_str()),
        Error);
  }
  const RunFolder missing{runs.path() / "missing"};
  CHECK_THROWS_WITH_AS(RunLog(missing, Console::kQuiet), doctest::Contains("No such file"), Error);
}

}  // namespace lockstep
