// lockstep export, from outside: what is in the files, and what it refuses.

#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "app/process.h"
#include "app/tiny_config.h"
#include "run/checkpoint.h"
#include "run/run_folder.h"
#include "support/errors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::contains;
using test::Outcome;
using test::run_lockstep;

/// A run of two steps of a tiny U-Net on two devices.
struct TrainedRun {
  test::TemporaryFolder folder;
  fs::path run = folder.path() / "run";
  fs::path checkpoint = RunFolder{run}.checkpoint("last");

  explicit TrainedRun(const std::string& mode) {
    const fs::path config = folder.write("tiny.toml", R"([run]
max_iters = 2
[data]
layout = "streets"
size = [32, 32]
train_images = 8
val_images = 2
mean = [0.25, 0.5, 0.75]
[batch]
global = 4
[model]
width = 4
depth = 2
[bn]
virtual_devices = 2
)");
    const Outcome outcome = run_lockstep(
        {"train", config.string(), "-d", "cpu:2", "-s", "bn.mode=" + mode, "-o", run.string()});
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
  }

  Outcome exported(const std::vector<std::string>& arguments) const {
    std::vector<std::string> all{"export"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return run_lockstep(all);
  }
  SafetensorsFile safetensors(const std::vector<std::string>& options = {}) const {
    const fs::path path = folder.path() / "weights.safetensors";
    std::vector<std::string> arguments{"safetensors", run.string(), "-o", path.string()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = exported(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return read_safetensors(path);
  }
};

std::vector<float> floats_of(const HostTensor& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

bool is_statistic(const std::string& name) { return contains(name, ".running_"); }

/// Whether both have the same names, shapes and, but for running statistics, the same bytes.
bool same_weights(const TensorMap& a, const TensorMap& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.shape == y.second.shape &&
           (is_statistic(x.first) || x.second.data == y.second.data);
  });
}

/// Checks every statistic of `exported` against that of `merge`, a function of the two devices'
/// values of it: merge(name, mean 0, mean 1, value 0, value 1).
template <typename Merge>
void check_statistics(const SafetensorsFile& exported, const TrainingState& state,
                      const Merge& merge) {
  REQUIRE(state.replicas.size() == 2);
  bool differ = false;
  for (std::size_t layer = 0; layer < state.replicas[0].size(); ++layer) {
    const BatchNormStatistics& a = state.replicas[0][layer];
    const BatchNormStatistics& b = state.replicas[1][layer];
    const auto mean = floats_of(exported.tensors.at(a.layer + ".running_mean"));
    const auto var = floats_of(exported.tensors.at(a.layer + ".running_var"));
    REQUIRE(mean.size() == a.mean.size());
    for (std::size_t c = 0; c < mean.size(); ++c) {
      const auto [expected_mean, expected_var] = merge(a.mean[c], b.mean[c], a.var[c], b.var[c]);
      CHECK(mean[c] == doctest::Approx(expected_mean).epsilon(1e-6));
      CHECK(var[c] == doctest::Approx(expected_var).epsilon(1e-6));
      differ |= a.mean[c] != b.mean[c];
    }
  }
  CHECK(differ);  // else this test could not fail
}

}  // namespace

TEST_CASE("export safetensors: the checkpoint's weights under plain names, whatever the mode") {
  for (const char* mode : {"local", "sync", "virtual"}) {
    CAPTURE(mode);
    const TrainedRun trained(mode);
    const SafetensorsFile file = trained.safetensors();
    const SafetensorsFile checkpoint = read_safetensors(trained.checkpoint);
    CHECK(same_weights(file.tensors, checkpoint.tensors));
    for (const char* name : {"encoder.0.0.bn.weight", "encoder.0.0.bn.bias", "head.bias",
                             "encoder.0.0.bn.running_mean", "encoder.0.0.bn.running_var",
                             "encoder.0.0.bn.num_batches_tracked"}) {
      CAPTURE(name);
      REQUIRE(file.tensors.contains(name));
      CHECK(file.tensors.at(name).data == checkpoint.tensors.at(name).data);
    }
  }
}

TEST_CASE("export safetensors: bn.eval_stats says which devices' statistics") {
  const TrainedRun trained("local");
  const TrainingState state = load_checkpoint(trained.checkpoint).state;
  using Pair = std::pair<double, double>;
  check_statistics(trained.safetensors(), state, [](double m, double, double v, double) {
    return Pair{m, v};
  });
  check_statistics(trained.safetensors({"-s", "bn.eval_stats=mean"}), state,
                   [](double m, double n, double v, double w) {
                     return Pair{(m + n) / 2, (v + w) / 2};
                   });
  check_statistics(trained.safetensors({"-s", "bn.eval_stats=pooled"}), state,
                   [](double m, double n, double v, double w) {
                     return Pair{(m + n) / 2, (v + w) / 2 + (m - n) * (m - n) / 4};
                   });
}

TEST_CASE("export safetensors: the file says what it is, and eval takes it") {
  const TrainedRun trained("sync");
  const Metadata about = trained.safetensors().metadata;
  CHECK(about.at("format") == "pt");
  CHECK(about.at("lockstep.architecture") == "unet");
  CHECK(about.at("lockstep.description") == "U-Net of width 4 and depth 2");
  CHECK(about.at("lockstep.task") == "segmentation");
  CHECK(about.at("lockstep.num_classes") == "11");
  CHECK(Json::parse(about.at("lockstep.class_names")).size() == 11);
  CHECK(Json::parse(about.at("lockstep.mean")) == Json{0.25, 0.5, 0.75});
  CHECK(Json::parse(about.at("lockstep.std")).size() == 3);
  const Metadata one = trained.safetensors({"-s", "data.mean=[0.5]"}).metadata;
  CHECK(Json::parse(one.at("lockstep.mean")) == Json{0.5, 0.5, 0.5});
  for (const char* by : {"image", "percentile"}) {
    const Metadata own = trained.safetensors({"-s", std::string("data.normalize=") + by}).metadata;
    CHECK(own.at("lockstep.normalize") == by);
    for (const char* key : {"lockstep.mean", "lockstep.std", "lockstep.pixels"})
      CHECK_FALSE(own.contains(key));
  }
  CHECK(about.at("lockstep.iteration") == "2");
  CHECK(about.at("lockstep.eval_stats") == "device0");
  const std::string file = (trained.folder.path() / "weights.safetensors").string();
  const std::string config = RunFolder{trained.run}.config().string();
  const Outcome own = run_lockstep({"eval", trained.run.string(), "-d", "cpu:1", "--json"});
  const Outcome other = run_lockstep({"eval", trained.run.string(), "-s", "data.mean=[0.5]"});
  CHECK(
      contains(other.err, "normalised otherwise: data.mean ([0.25, 0.5, 0.75] there, [0.5] here)"));
  const Outcome same =
      run_lockstep({"eval", trained.run.string(), "-s", "data.normalize=given", "-d", "cpu:1"});
  CHECK_FALSE(contains(own.err + same.err, "normalised otherwise"));
  trained.safetensors();
  const Outcome again = run_lockstep({"eval", file, "-c", config, "-d", "cpu:1", "--json"});
  CHECK(again.exit_code == 0);
  Json a = Json::parse(own.out), b = Json::parse(again.out);
  for (const char* key : {"mIoU", "loss", "iteration", "confusion"}) {
    CAPTURE(key);
    REQUIRE(a.contains(key));
    CHECK(a[key] == b[key]);
  }
}

TEST_CASE("export by own statistics: no running ones that a network could take unawares") {
  const TrainedRun trained("local");
  const SafetensorsFile file = trained.safetensors({"-s", "bn.eval_stats=own"});
  CHECK(file.metadata.at("lockstep.eval_stats") == "own");
  CHECK(file.tensors.contains("encoder.0.0.bn.weight"));
  for (const auto& [name, tensor] : file.tensors) {
    CAPTURE(name);
    CHECK_FALSE(is_statistic(name));
    CHECK_FALSE(contains(name, "num_batches_tracked"));
  }
  const fs::path path = trained.folder.path() / "net.onnx";
  const Outcome outcome = trained.exported(
      {"onnx", trained.run.string(), "-o", path.string(), "-s", "bn.eval_stats=own"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK(contains(outcome.out, "statistics: own"));
  const std::string onnx = test::read_text(path);
  CHECK(contains(onnx, "InstanceNormalization"));
  CHECK_FALSE(contains(onnx, "running_mean"));
}

TEST_CASE("export onnx: BatchNorm folded or plain, of any size or one, and what the file is") {
  const TrainedRun trained("local");
  const fs::path path = trained.folder.path() / "net.onnx";
  const auto file = [&](const std::vector<std::string>& options) {
    std::vector<std::string> arguments{"onnx", trained.run.string(), "-o", path.string()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = trained.exported(arguments);
    INFO(outcome.err);
    CHECK(outcome.exit_code == 0);
    CHECK(contains(outcome.out, "net.onnx: U-Net of width 4 and depth 2"));
    return test::read_text(path);
  };
  const std::string folded = file({});
  CHECK_FALSE(contains(folded, "BatchNormalization"));
  CHECK(contains(folded, "head.weight"));
  CHECK(contains(folded, "lockstep.class_names"));
  CHECK(contains(folded, "[0.25,0.5,0.75]"));
  const std::string plain = file({"--plain"});
  CHECK(contains(plain, "BatchNormalization"));
  CHECK(contains(plain, "encoder.0.0.bn.running_mean"));
  CHECK(file({"--plain", "-s", "bn.eval_stats=pooled"}) != plain);
  CHECK(file({"--size", "32x48"}) != folded);
  CHECK(file({}) == folded);
}

TEST_CASE("export refuses what it cannot do, and says what to do") {
  const TrainedRun trained("local");
  const std::string run = trained.run.string();
  const std::string out = (trained.folder.path() / "out").string();
  const auto check = [&](const std::vector<std::string>& arguments, int exit_code,
                         const std::string& message) {
    CAPTURE(message);
    const Outcome outcome = trained.exported(arguments);
    INFO(outcome.err);
    CHECK(outcome.exit_code == exit_code);
    CHECK(contains(outcome.err, message));
    CHECK_FALSE(fs::exists(out));
  };
  check({"safetensors", run}, 2, "expected -o FILE");
  check({"torchscript", run, "-o", out}, 2, "got torchscript");
  check({"safetensors", run, "-o", out + "/not/there"}, 2, "there is no folder");
  check({"safetensors", run + "2", "-o", out}, 3, "there is no such run or checkpoint");
  check({"safetensors", run, "-o", out, "-s", "bn.eval_stats=precise"}, 2,
        "-s bn.eval_stats=device0, mean or pooled");
  check({"safetensors", run, "-o", out, "--plain"}, 2,
        "--plain goes with export onnx, not with export safetensors");
  check({"safetensors", run, "-o", out, "--outputs", "aux"}, 2, "--outputs goes with export onnx");
  check({"onnx", run, "-o", out, "--outputs", "out,aux"}, 2, "no output 'aux'");
  for (const char* size : {"32", "32x", "x32", "32x32x3", "0x32", "32X32", "ax32"}) {
    check({"onnx", run, "-o", out, "--size", size}, 2, "expected height and width as 480x640");
  }
  check({"onnx", run, "-o", out, "--size", "33x32"}, 2, "multiples of 2");
  check({"safetensors", run, "-o", out, "-s", "model.width=6"}, 3, "encoder.0.0.conv.weight");

  SafetensorsFile diverged = read_weights(trained.run / "ckpt/last.safetensors");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(diverged.tensors.at("encoder.0.1.bn.bias").data.data(), &nan, sizeof nan);
  const fs::path broken = trained.folder.path() / "broken.safetensors";
  save_safetensors(broken, diverged.tensors);
  check({"onnx", broken.string(), "--config", run + "/config.toml", "-o", out}, 3,
        "broken.safetensors: 1 of 4 values of encoder.0.1.bn.bias are not finite");
}

TEST_CASE("export --average: the mean of the newest numbered checkpoints") {
  const test::TemporaryFolder folder;
  const fs::path run = folder.path() / "run", out = folder.path() / "mean.safetensors";
  const fs::path config =
      folder.write("tiny.toml", test::tiny_config("max_iters = 4\ncheckpoint_every = 1\n"));
  REQUIRE(run_lockstep({"train", config.string(), "-d", "cpu:1", "-o", run.string()}).exit_code ==
          0);
  const auto exported = [&](const char* count) {
    return run_lockstep(
        {"export", "safetensors", run.string(), "--average", count, "-o", out.string()});
  };
  const Outcome outcome = exported("2");
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK(contains(outcome.out, "the mean of iter_4, iter_3"));
  const SafetensorsFile mean = read_weights(out);
  CHECK(mean.metadata.at("lockstep.averaged") == "iter_4, iter_3");
  const auto value = [](const TensorMap& tensors, const char* name) {
    float first = 0;
    std::memcpy(&first, tensors.at(name).data.data(), sizeof first);
    return static_cast<double>(first);
  };
  const RunFolder files{run};
  const TensorMap last = read_weights(files.checkpoint("iter_4")).tensors;
  const TensorMap before = read_weights(files.checkpoint("iter_3")).tensors;
  for (const char* name : {"head.bias", "encoder.0.0.conv.weight", "encoder.0.0.bn.running_var"}) {
    CHECK(value(mean.tensors, name) ==
          static_cast<double>(static_cast<float>((value(last, name) + value(before, name)) / 2)));
  }
  CHECK(mean.tensors.at("encoder.0.0.bn.num_batches_tracked") ==
        last.at("encoder.0.0.bn.num_batches_tracked"));
  CHECK(run_lockstep({"eval", out.string(), "-c", config.string()}).exit_code == 0);
  const Outcome many = exported("4");  // run.keep = 3
  CHECK(many.exit_code == 2);
  CHECK(contains(many.err, "expected 4 numbered checkpoints, got 3"));
}

}  // namespace lockstep
