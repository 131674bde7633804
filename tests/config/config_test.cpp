#include "config/config.h"

#include <doctest/doctest.h>
#include <pwd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "config/config_schema.h"
#include "config/judged_values.h"
#include "lockstep/core/check.h"
#include "support/check_contains.h"
#include "support/temporary_folder.h"
#include "support/with_variable.h"

namespace lockstep {
namespace {

using test::check_contains;
using test::TemporaryFolder;

const char* const kStreets = R"([data]
layout = "streets"
size = [32, 32]
)";

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const TemporaryFolder folder;
  try {
    load_config(folder.write("camvid.toml", text), overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

Config config_from(const std::string& text, const std::vector<std::string>& overrides = {},
                   std::vector<std::string>* warnings = nullptr) {
  const TemporaryFolder folder;
  return load_config(folder.write("camvid.toml", text), overrides, warnings);
}

}  // namespace

TEST_CASE("a misspelt key is shown as a compiler shows an error") {
  const std::string error =
      error_of("[data]\nlayout = \"streets\"\nsize = [32, 32]\n[bn]\nmomntum = 0.1\n");
  check_contains(error,
                 "camvid.toml:5:1: error: unknown key `momntum` in [bn]\n"
                 "     5 | momntum = 0.1\n"
                 "       | ^^^^^^^ did you mean `momentum`?");
}

TEST_CASE("all errors come at once, in the order of the file") {
  const std::string error = error_of(
      "[optim]\nlr = -1\n[bn]\nmode = \"snc\"\n[bnn]\neps = 1\n[run]\nlr = 1\n"
      "max_iters = 3\nepochs = 2\n[data]\nlayout = \"streets\"\nsize = 32\n");
  check_contains(error, ":2:6: error: optim.lr: expected a number >= 0, got -1");
  check_contains(error, "got \"snc\"; did you mean \"sync\"?");
  check_contains(error, ":5:2: error: unknown section [bnn]");
  check_contains(error, "did you mean [bn]?");
  check_contains(error, "unknown key `lr` in [run]");
  check_contains(error, "did you mean `optim.lr`?");
  check_contains(error, "`run.max_iters` and `run.epochs` exclude each other");
  check_contains(error,
                 "data.size: expected [height, width] in pixels, each from 1 to 65536, got 32");
  CHECK(error.find(":2:6") < error.find(":5:2"));
}

TEST_CASE("a syntax error has its place") {
  check_contains(error_of("[data\nlayout = 1\n"), "camvid.toml:1:");
  check_contains(error_of("[data\nlayout = 1\n"), "     1 | [data\n");
}

TEST_CASE("a missing file, root and class count are named") {
  CHECK_THROWS_AS(load_config("/nowhere/at/all.toml", {}), ConfigError);
  const std::string error = error_of("[data]\nlayout = \"folder\"\n");
  check_contains(error, "data.root is missing");
  check_contains(error, "data.num_classes is missing");
}

TEST_CASE("ranges") {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"optim.momentum=1", "expected a number >= 0 and < 1, got 1"},
      {"optim.momentum=-0.1", "expected a number"},
      {"optim.lr=nan", "expected a number >= 0"},
      {"run.max_iters=0", "expected an integer >= 1 and <= 100000000, got 0"},
      {"run.max_iters=2.5", "expected an integer >= 1 and <= 100000000, got 2.5"},
      {"run.seed=-1", "expected an integer >= 0"},
      {"bn.eps=0", "expected a number > 0, got 0"},
      {"bn.momentum=2", "or \"cumulative\""},
      {"bn.momentum_convention=tf", "one of \"torch\", \"keras\""},
      {"data.augment.scale=[2,1]", "0 < lo <= hi"},
      {"data.augment.hflip=1.5", "expected a number >= 0 and <= 1"},
      {"data.exposure=[0,1]", "lo > 0"},
      {"data.mean=[1,2]", "data.channels is 3"},
      {"data.shuffle=1", "expected true or false"},
      {"data.classes=[1]", "expected a list of class names"},
      {"data.classes=['a']", "has 1 names, but data.num_classes is 11"},
      {"loss.class_weight=[1,2]", "has 2 weights, but there are 11 classes"},
      {"loss.class_weight=[-1]", "expected a list, each a number >= 0"},
      {"model.arch=unett", "did you mean \"unet\"?"},
      {"run.precision=bf6", "did you mean \"bf16\"?"},
      {"run.precision=16", "one of \"fp32\", \"bf16\", \"fp16\""},
      {"run.loss_scale=3", "run.loss_scale is 3, but must be a power of two"},
      {"run.loss_scale=0.5", "run.loss_scale: "},
      {"run.tf32=1", "expected true or false"},
      {"optim.type=adamx",
       "one of \"sgd\", \"adamw\", \"lion\", \"adam\", \"rmsprop\", got \"adamx\"; did you mean"},
      {"optim.beta1=0.9", "optim.beta1 is a number of optim.type = \"adamw\", but it is \"sgd\""},
      {"optim.eps=1e-8", "optim.eps is a number of optim.type = \"adamw\", but it is \"sgd\""},
      {"optim.eps=0", "expected a number >= 1e-38"},
      {"optim.beta2=1", "expected a number >= 0 and < 1, got 1"},
      {"optim.head_lr_mult=-1", "expected a number >= 0, got -1"},
      {"schedule.milestones=[0.5,0]", "expected a list"},
      {"schedule.milestones=[0.5,1.5]", "neither a share below 1 nor a number of iterations"},
      {"data.val_share=1", "expected a number > 0 and < 1"},
      {"optim.lr=1e39", "optim.lr: 1e+39 is beyond what is computed with: 0, or from 1.4e-45 to"},
      {"bn.eps=1e-46", "bn.eps: 1e-46 is beyond"},
      {"data.mean=[1e39,0,0]", "data.mean: 1e+39 is beyond"},
      {"loss.class_weight=[1e39]", "loss.class_weight: 1e+39 is beyond"},
      {"data.augment.gain=[1e-46,1]", "data.augment.gain: 1e-46 is beyond"},
      {"data.orientation=exif", "one of \"viewer\", \"stored\""},
  };
  for (const auto& [override_text, message] : wrong) {
    CAPTURE(override_text);
    const std::string error = error_of(kStreets, {override_text});
    check_contains(error, "-s " + override_text + ": error: ");
    check_contains(error, message);
  }
}

TEST_CASE("overrides: TOML values, bare words, the other key of a pair, unknown keys") {
  const Config config =
      config_from(std::string(kStreets) + "[run]\nepochs = 3\n[batch]\nglobal = 4\n",
                  {"bn.mode=sync", "optim.lr=1e-4", "data.augment.crop=[16, 24]", "run.max_iters=7",
                   "batch.per_device=2", "run.name=\"a b\""});
  CHECK(config.bn.mode == BatchNormMode::kSync);
  CHECK(base_learning_rate(config.optim.optimizer) == 1e-4F);
  CHECK(config.data.augment.value().crop.value() == Size{16, 24});
  CHECK(config.run.max_iters == 7);
  CHECK_FALSE(config.run.epochs);
  CHECK(config.global_batch(3) == 6);
  CHECK(config.max_iters(100) == 7);
  CHECK(config.run.name == "a b");
  // A shell takes the quotes of run.name="7".
  CHECK(config_from(kStreets, {"run.name=7"}).run.name == "7");
  CHECK(config_from(kStreets, {"data.val=1e3"}).data.val == "1e3");
  CHECK(config_from(kStreets, {"run.name=true"}).run.name == "true");
  check_contains(error_of(kStreets, {"run.name=[7]"}), "expected a string, got [ 7 ]");
  check_contains(error_of(std::string(kStreets) + "[run]\nname = 7\n"), "expected a string, got 7");
  check_contains(error_of(kStreets, {"bn.mod=sync"}),
                 "-s bn.mod=sync: error: unknown key `mod` in [bn]; did you mean `mode`?");
  check_contains(error_of(kStreets, {"bn.mode"}), "expected key=value");
  check_contains(error_of(kStreets, {"mode=sync"}), "did you mean `bn.mode`?");
}

TEST_CASE("a key that was removed is an error that says what to use instead") {
  check_contains(error_of(std::string(kStreets) + "[run]\nmetrics_file = \"a.prom\"\n"),
                 "camvid.toml:5:1: error: `run.metrics_file` was removed\n"
                 "     5 | metrics_file = \"a.prom\"\n"
                 "       | ^^^^^^^^^^^^ leave it out: scalars.json");
  check_contains(error_of(kStreets, {"run.metrics_file=a.prom"}),
                 "-s run.metrics_file=a.prom: error: `run.metrics_file` was removed; leave it out");
  check_contains(error_of(kStreets, {"run.bf16_convolutions=true"}),
                 "`run.bf16_convolutions` was removed; write `precision = \"bf16\"`");
}

TEST_CASE("a run's own configuration is read without a key that was removed") {
  const TemporaryFolder folder;
  const auto path =
      folder.write("config.toml", std::string(kStreets) + "[run]\nmetrics_file = \"a\"\n");
  CHECK_THROWS_AS(load_config(path, {}), ConfigError);
  std::filesystem::create_directory(folder.path() / "ckpt");
  std::vector<std::string> warnings;
  CHECK(to_toml(load_config(path, {}, &warnings)).find("metrics_file") == std::string::npos);
  REQUIRE(warnings.size() == 1);
  check_contains(warnings.front(), "config.toml:5:1: `run.metrics_file` is ignored");
  CHECK_THROWS_AS(load_config(path, {"run.metrics_file=b"}), ConfigError);
}

TEST_CASE("defaults") {
  const Config config = config_from(kStreets);
  CHECK(config.run.name == "camvid");
  CHECK(config.run.epochs == 20);
  CHECK(config.max_iters(10) == 200);
  CHECK(config.global_batch(4) == 8);
  CHECK(config.data.num_classes == 11);
  CHECK(config.model.num_classes == 11);
  CHECK(config.data.ignore_index == 255);
  CHECK(config.run.precision == DType::kFloat32);
  CHECK(config.run.tf32);
  CHECK_FALSE(config.data.augment);
  const Config augmented = config_from(std::string(kStreets) + "[data.augment]\n");
  CHECK(augmented.data.augment.value().hflip == 0.5F);
}

TEST_CASE("the optimizer: bounds of the gradient and frozen parameters are options of a run") {
  const Config config = config_from(
      kStreets, {"optim.clip_norm=1", "optim.clip_value=0.5", "optim.bias_weight_decay=0",
                 "optim.freeze=[\"encoder\", \"head\"]", "optim.head_lr_mult=10"});
  CHECK(config.optim.clipping.norm == 1);
  CHECK(config.optim.clipping.value == 0.5F);
  CHECK(std::get<Sgd>(config.optim.optimizer).bias_weight_decay == 0.0F);
  const std::vector<ParameterGroup> groups = config.parameter_groups();
  REQUIRE(groups.size() == 2);  // a frozen head has no learning rate of its own
  CHECK(groups[0].prefix == "encoder");
  CHECK(groups[0].frozen);
  CHECK(groups[1].frozen);
  CHECK(config_hash(config) != config_hash(config_from(kStreets)));
  check_contains(error_of(kStreets, {"optim.clip_norm=-1"}), "expected a number >= 0, got -1");
  check_contains(error_of(kStreets, {"optim.clip_norm=nan"}), "optim.clip_norm");
  check_contains(error_of(kStreets, {"optim.bias_weight_decay=-1"}), "expected a number >= 0");
}

TEST_CASE("the optimizer: each type has its keys and its defaults") {
  const Sgd sgd = std::get<Sgd>(config_from(kStreets, {"optim.lr=0.5"}).optim.optimizer);
  CHECK(sgd.lr == 0.5F);
  CHECK(sgd.momentum == 0.9F);
  CHECK(sgd.weight_decay == 1e-4F);
  const Config config = config_from(kStreets, {"optim.type=adamw", "optim.beta1=0.8"});
  const AdamW adamw = std::get<AdamW>(config.optim.optimizer);
  CHECK(adamw.lr == 1e-3F);
  CHECK(adamw.beta1 == 0.8);
  CHECK(adamw.beta2 == 0.999);
  CHECK(adamw.eps == 1e-8F);
  CHECK(adamw.weight_decay == 1e-2F);
  CHECK(adamw.norm_weight_decay == 0);
  CHECK(config.parameter_groups().empty());
  const Config lion = config_from(kStreets, {"optim.type=lion"});
  CHECK(std::get<Lion>(lion.optim.optimizer).beta2 == 0.99);
  check_contains(error_of(kStreets, {"optim.type=adamw", "optim.momentum=0.9"}),
                 "optim.momentum is a number of optim.type = \"sgd\", but it is \"adamw\"");
  CHECK(to_toml(config).find("momentum = 0.9") == std::string::npos);
  CHECK(to_toml(config_from(kStreets)).find("beta1") == std::string::npos);
  CHECK(to_toml(config_from(kStreets)).find("head_lr_mult") == std::string::npos);
  const Config rmsprop = config_from(kStreets, {"optim.type=rmsprop", "optim.momentum=0.5"});
  CHECK(std::get<RMSprop>(rmsprop.optim.optimizer).momentum == 0.5F);
  CHECK(std::get<Adam>(config_from(kStreets, {"optim.type=adam"}).optim.optimizer).lr == 1e-3F);
  CHECK(std::get<Sgd>(config_from(kStreets, {"optim.nesterov=true"}).optim.optimizer).nesterov);
  for (const char* silent :
       {"nesterov", "bias_weight_decay", "freeze", "clip_norm", "clip_value"}) {
    CAPTURE(silent);
    CHECK(to_toml(config_from(kStreets)).find(silent) == std::string::npos);
  }
  const auto groups = config_from(kStreets, {"optim.head_lr_mult=10"}).parameter_groups();
  REQUIRE(groups.size() == 1);
  CHECK(groups[0].prefix == "head");
  CHECK(groups[0].lr_mult == 10);
}

TEST_CASE("Keras' momentum is converted, and a momentum that looks like Keras' warns") {
  std::vector<std::string> warnings;
  const Config keras = config_from(
      std::string(kStreets) + "[bn]\nmomentum = 0.99\nmomentum_convention = \"keras\"\n", {},
      &warnings);
  CHECK(keras.bn.momentum == 0.01);
  CHECK(warnings.empty());
  config_from(std::string(kStreets) + "[bn]\nmomentum = 0.99\n", {}, &warnings);
  REQUIRE(warnings.size() == 1);
  check_contains(warnings[0], "camvid.toml:5:12: bn.momentum = 0.99");
  CHECK_FALSE(config_from(kStreets, {"bn.momentum=cumulative"}).bn.momentum);
}

TEST_CASE("values that no person can mean are errors, with the remedy") {
  struct Case {
    std::vector<std::string> overrides;
    const char *message, *remedy;
  };
  for (const Case& c : std::vector<Case>{
           {{"data.mean=[123.675,116.28,103.53]"},
            "images in 0..255",
            "mean = [0.485, 0.456, 0.406]"},
           {{"data.std=[58.395,57.12,57.375]"}, "images in 0..255", "std = [0.229, 0.224, 0.225]"},
           {{"data.mean=[104,117,123]", "data.std=[1,1,1]"}, "data.mean", "divide by 255"},
           {{"data.num_classes=1"}, "nothing is learnt", "data.num_classes = 2"},
           {{"data.num_classes=1"}, "nothing is learnt", "data.mask_values = \"binary\""},
           {{"data.num_classes=2", "data.ignore_index=0"},
            "leaves one class",
            "leave data.ignore_"},
           {{"data.num_classes=2", "data.ignore_index=1"},
            "leaves one class",
            "leave data.ignore_"},
           {{"loss.class_weight=[0,0,0,0,0,0,0,0,0,0,0]"}, "0 for every class", "leave it out"},
           {{"loss.type=focal", "loss.alpha=[0,0,0,0,0,0,0,0,0,0,0]"},
            "loss.alpha is 0",
            "leave it out"},
           {{"data.augment.crop=[8,8]", "data.augment.scale=[50,100]"}, "factors", "0.5"}}) {
    const std::string error = error_of(kStreets, c.overrides);
    CAPTURE(error);
    check_contains(error, c.message);
    check_contains(error, c.remedy);
  }
  CHECK(error_of(kStreets, {"data.mean=[1,0,0.5]", "data.std=[1,1,1]"}).empty());
  CHECK(error_of(kStreets, {"data.num_classes=2", "data.ignore_index=2"}).empty());
  CHECK(error_of(kStreets, {"data.num_classes=3", "data.ignore_index=0"}).empty());
  CHECK(error_of(kStreets, {"loss.class_weight=[0,0,0,0,0,0,0,0,0,0,1]"}).empty());
}

TEST_CASE("balanced class weights are a word, and the numbers that it stood for behind it") {
  const auto weights = [](const Config& config) {
    return std::get<CrossEntropyLoss>(config.losses[0].loss).class_weight;
  };
  Config config = config_from(kStreets, {"loss.class_weight=balanced"});
  CHECK(weights(config).balanced);
  CHECK(weights(config).empty());
  check_contains(to_toml(config), "class_weight = \"balanced\"");
  std::get<CrossEntropyLoss>(config.losses[0].loss)
      .class_weight.assign({0.1F, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1e9F});
  const Config measured = config_from(to_toml(config));
  CHECK(weights(measured).balanced);
  CHECK(weights(measured).front() == 0.1F);
  CHECK(weights(measured).size() == 11);
  CHECK_FALSE(weights(config_from(kStreets)).balanced);
  check_contains(error_of(kStreets, {"loss.class_weight=[\"balanced\", 1]"}), "has 1 weights");
  check_contains(error_of(kStreets, {"loss.class_weight=[1, \"balanced\"]"}), "or \"balanced\"");
}

TEST_CASE("values that hardly anybody means are warned of, with the remedy") {
  struct Case {
    std::vector<std::string> overrides;
    const char* message;
  };
  std::vector<std::string> warnings;
  for (const Case& c : std::vector<Case>{
           {{"data.mean=[-0.5,0,0]"}, "below all that RGB"},
           {{"loss.class_weight=[1,1,1,1,1,1,1,1,1,1,123456]"}, "no weights"},
           {{"optim.lr=0"}, "nothing is learnt"},
           {{"optim.lr=50"}, "much for sgd"},
           {{"optim.type=adamw", "optim.lr=0.5"}, "much for adamw"},
           {{"optim.momentum=0.9999"}, "times as long"},
           {{"optim.type=adam", "optim.beta1=0.99", "optim.beta2=0.9"}, "above optim.beta2"},
           {{"optim.weight_decay=1000"}, "weight off"},
           {{"bn.momentum=0"}, "what they were at the start"},
           {{"data.augment.crop=[8,8]", "data.augment.scale=[0.5,20]"}, "factors"},
           {{"data.val_resize=8", "data.val_crop=[16,16]"}, "cuts nothing off"}}) {
    config_from(kStreets, c.overrides, &warnings);
    REQUIRE(warnings.size() == 1);
    check_contains(warnings[0], c.message);
    check_contains(warnings[0], "; ");
  }
  for (const std::vector<std::string>& usual :
       std::vector<std::vector<std::string>>{{},
                                             {"optim.lr=0.5"},
                                             {"optim.type=adamw", "optim.lr=0.001"},
                                             {"bn.momentum=0.5"},
                                             {"bn.mode=frozen", "bn.momentum=0"},
                                             {"optim.type=lion"},
                                             {"optim.type=rmsprop"}}) {
    config_from(kStreets, usual, &warnings);
    CHECK(warnings.empty());
  }
}

TEST_CASE("a run that is there can be looked at, whatever it was trained with") {
  std::string text = to_toml(config_from(kStreets));
  const std::string mean = "mean = [0.485, 0.456, 0.406]";
  text.replace(text.find(mean), mean.size(), "mean = [123.675, 116.28, 103.53]");
  std::vector<std::string> warnings;
  REQUIRE(error_of(text).empty());
  const Config config = config_from(text, {}, &warnings);
  REQUIRE(warnings.size() == 1);
  check_contains(warnings[0], "divide by 255");
  CHECK_THROWS_AS(throw_if_refused(judge_values(config)), ConfigError);
}

TEST_CASE("what only the length of a run tells is judged by it") {
  const auto judged = [](const std::vector<std::string>& overrides, std::int64_t steps) {
    std::string all;
    for (const JudgedValue& value : judge_run(config_from(kStreets, overrides), steps, 2))
      all += to_string(value);
    return all;
  };
  check_contains(judged({"schedule.warmup_iters=10"}, 4), "at most 11 % of optim.lr");
  check_contains(judged({"schedule.warmup_iters=4"}, 4), "schedule.warmup_iters = 4");
  CHECK(judged({"schedule.warmup_iters=3"}, 4).empty());
  check_contains(judged({"ema.decay=0.9999"}, 100), "averages over 10000 steps");
  CHECK(judged({"ema.decay=0.99"}, 100).empty());
  const std::string step = "schedule.type=step";
  check_contains(judged({step, "schedule.milestones=[4,9]"}, 4), "never falls");
  CHECK(judged({step, "schedule.milestones=[3,9]"}, 4).empty());
  CHECK(judged({step, "schedule.milestones=[9,0.9]"}, 4).empty());
  CHECK(judged({step}, 4).empty());
  for (const char* type : {"poly", "cosine"}) {
    const std::string chosen = std::string("schedule.type=") + type;
    check_contains(judged({chosen, "optim.lr=0.01", "schedule.min_lr=0.02"}, 4), "rises from 0.01");
    CHECK(judged({chosen, "optim.lr=0.01", "schedule.min_lr=0.01"}, 4).empty());
  }
  check_contains(judged({"optim.lr_reference_batch=8", "batch.global=8000"}, 4), "scaled to 10");
}

TEST_CASE("options of another network are warned of, but not in a run's own configuration") {
  std::vector<std::string> warnings;
  const std::string text = std::string(kStreets) + "[model]\nwidth = 8\n";
  config_from(text, {}, &warnings);
  CHECK(warnings.empty());
  const Config resnet = config_from(text, {"model.arch=fcn_resnet50"}, &warnings);
  REQUIRE(warnings.size() == 1);
  check_contains(warnings[0],
                 "camvid.toml:5:9: model.width means nothing with model.arch = "
                 "\"fcn_resnet50\", and is ignored");
  const Config again = config_from(to_toml(resnet), {}, &warnings);
  CHECK(warnings.empty());
  CHECK(config_hash(again) == config_hash(resnet));
}

TEST_CASE("keys that mean nothing beside others are warned of where somebody wrote them") {
  const std::string text = std::string(kStreets) +
                           "[schedule]\ntype = \"constant\"\npower = 0.9\nmilestones = [0.5]\n"
                           "[loss]\naux_weight = 0.4\n[run]\nloss_scale = 1024\n"
                           "[bn]\ntrack_running_stats = false\neval_stats = \"mean\"\n";
  std::vector<std::string> warnings;
  const Config config = config_from(text, {"schedule.gamma=0.5"}, &warnings);
  REQUIRE(warnings.size() == 6);
  check_contains(warnings[0],
                 "camvid.toml:6:9: schedule.power means nothing with schedule.type = \"constant\"");
  check_contains(warnings[1], "schedule.gamma means nothing");
  check_contains(warnings[2], "schedule.milestones means nothing");
  check_contains(warnings[3], "loss.aux_weight means nothing with model.aux_head = false");
  check_contains(warnings[4], "run.loss_scale means nothing with run.precision = \"fp32\"");
  check_contains(warnings[5], "bn.eval_stats means nothing with bn.track_running_stats = false");
  CHECK(config.bn.eval_stats == EvalStats::kOwn);  // by what there is
  // A run's own configuration says every key.
  config_from(to_toml(config), {"run.max_iters=8"}, &warnings);
  CHECK(warnings.empty());
  config_from(to_toml(config), {"schedule.power=2"}, &warnings);
  REQUIRE(warnings.size() == 1);
  check_contains(warnings[0], "-s schedule.power=2: schedule.power means nothing");
  config_from(std::string(kStreets) + "[schedule]\npower = 2\n", {}, &warnings);
  CHECK(warnings.empty());
  // Also where -s asks for what has more keys than it.
  const TemporaryFolder run;
  std::filesystem::create_directory(run.path() / "ckpt");
  load_config(run.write("config.toml", to_toml(config)), {"schedule.type=step", "ema.decay=0.9"},
              &warnings);
  CHECK(warnings.empty());
}

TEST_CASE("what is wrong with a value is said once") {
  CHECK(error_of(kStreets, {"data.mean=[1e39,0,0]"}).find("numbers") == std::string::npos);
  const std::string error = error_of(
      "[data]\nlayout = \"folder\"\nroot = \"/tmp\"\nnum_classes = 2.0\n[loss]\n"
      "class_weight = [1, 2]\n");
  check_contains(error, "data.num_classes: expected an integer >= 1 and <= 4096, got 2.0");
  CHECK(error.find("missing") == std::string::npos);
  CHECK(error.find("there are 0 classes") == std::string::npos);
}

TEST_CASE("two classes of one name are refused") {
  check_contains(error_of("[data]\nlayout = \"folder\"\nroot = \"/tmp\"\nnum_classes = 3\n"
                          "classes = [\"a\", \"b\", \"a\"]\n"),
                 "data.classes: \"a\" is the name of the classes 0 and 2");
}

TEST_CASE("a path that a run's config.toml cannot hold is named") {
  Config config = config_from(kStreets);
  check_can_be_written(config);
  config.data.root = "/data/\xff";
  CHECK_THROWS_WITH_AS(check_can_be_written(config), doctest::Contains("data.root"), ConfigError);
}

TEST_CASE("run.name is a name, and no path") {
  Config config = config_from(kStreets);
  for (const char* name : {"a b", "..a", "a.toml", "é"}) {
    config.run.name = name;
    check_can_be_written(config);
  }
  for (const char* name : {"../../evil", "/tmp/evil", "a/b", "a/", "..", ".", ""}) {
    config.run.name = name;
    CHECK_THROWS_WITH_AS(check_can_be_written(config), doctest::Contains("expected a name"),
                         ConfigError);
  }
}

TEST_CASE("a relative root is looked for here, then beside the configuration") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "images_of_mine");
  const auto path = folder.write("a.toml", "[data]\nroot = \"images_of_mine\"\nnum_classes = 2\n");
  CHECK(load_config(path, {}).data.root == folder.path() / "images_of_mine");
  CHECK(load_config(path, {"data.root=tests"}).data.root == std::filesystem::absolute("tests"));
}

TEST_CASE("~ in a path is what a shell makes of it") {
  const TemporaryFolder home;
  std::filesystem::create_directories(home.path() / "data");
  const test::WithVariable variable("HOME", home.path().string());
  const std::string text =
      "[run]\nwork_dir = \"~/runs\"\n[data]\nroot = \"~/data\"\nnum_classes = 2\n"
      "[model]\narch = \"fcn_resnet50\"\nbackbone_weights = \"~/w.pth\"\n";
  const Config config = config_from(text);
  CHECK(config.data.root == home.path() / "data");
  CHECK(config.run.work_dir == home.path() / "runs");
  CHECK(config.model.backbone_weights == (home.path() / "w.pth").string());
  CHECK(config_from(text, {"data.root=~"}).data.root == home.path());
  const passwd* const user = getpwuid(0);
  REQUIRE(user != nullptr);
  const std::string of_user = std::string("data.root=~") + user->pw_name + "/x";
  CHECK(config_from(text, {of_user}).data.root == std::filesystem::path(user->pw_dir) / "x");
  // A user that there is not, and a name that only begins so, stay.
  CHECK(config_from(text, {"data.root=~nobody-of-this-name/x"}).data.root.filename() == "x");
  CHECK(config_from(text, {"data.root=a/~/b"}).data.root.parent_path().filename() == "~");
}

TEST_CASE("a configuration is read as editors of any system write it") {
  const std::string bom = "\xEF\xBB\xBF";
  CHECK(config_from(bom + "[data]\r\nlayout = \"streets\"\r\nsize = [32, 48]\r\n").data.size ==
        Size{32, 48});
  check_contains(error_of(bom + "[data\r\n"), "camvid.toml:1:");
  check_contains(error_of(std::string("\xFF\xFE[\0d\0", 6)), "UTF-16");
  check_contains(error_of(std::string("[\0d\0", 4)), "save it as UTF-8");
}

TEST_CASE("keys of files that a layout does not know are warned of") {
  const auto warned = [](const std::string& layout, const std::string& override_text) {
    const TemporaryFolder folder;
    std::filesystem::create_directories(folder.path() / "train/a");
    std::vector<std::string> warnings;
    config_from("[data]\nlayout = \"" + layout + "\"\nroot = \"" + folder.path().string() +
                    "\"\nnum_classes = 2\n[model]\narch = \"" +
                    (layout == "imagefolder" ? "resnet18" : "unet") + "\"\n",
                {override_text}, &warnings);
    return warnings.size();
  };
  CHECK(warned("folder", "data.mask_suffix=_mask") == 0);
  CHECK(warned("list", "data.mask_suffix=_mask") == 1);
  CHECK(warned("imagefolder", "data.subfolders=true") == 1);
  CHECK(warned("imagefolder", "data.val_share=0.2") == 0);
  CHECK(warned("streets", "data.val_share=0.2") == 1);
  CHECK(warned("streets", "schedule.min_lr=0.001") == 0);
}

TEST_CASE("ghost is what virtual is called now: both are read, and runs of the old name go on") {
  const Config ghost = config_from(kStreets, {"bn.mode=ghost"});
  const Config former = config_from(kStreets, {"bn.mode=virtual"});
  CHECK(ghost.bn.mode == BatchNormMode::kGhost);
  CHECK(former.bn.mode == BatchNormMode::kGhost);
  check_contains(to_toml(former), "mode = \"ghost\"");
  CHECK(config_hash(ghost) == config_hash(former));
  const Config run =
      config_from(kStreets, {"bn.mode=virtual", "run.max_iters=1", "run.tf32=false"});
  CHECK(config_hash(run) == "ece64bea1afa48be");  // in the header of such a run from before
  CHECK(current_mode_name("virtual") == "ghost");
  CHECK(current_mode_name("sync") == "sync");
}

TEST_CASE("norms that stand in for synchronized BatchNorm have keys of their own") {
  const Config config = config_from(kStreets, {"bn.mode=group", "bn.groups=4", "bn.freeze_at=0.8"});
  CHECK(config.bn.mode == BatchNormMode::kGroup);
  CHECK(config.bn.groups == 4);
  CHECK(config.bn.shares_statistics());
  CHECK(config.bn.freeze_step(100) == 80);
  CHECK(config.bn.freeze_step(101) == 81);
  check_contains(to_toml(config), "groups = 4");
  check_contains(to_toml(config), "freeze_at = 0.8");

  const Config plain = config_from(kStreets);
  CHECK(plain.bn.freeze_step(100) == 100);
  for (const char* key : {"\ngroups", "\nfreeze_at", "\nrenorm"}) {
    CHECK(to_toml(plain).find(key) == std::string::npos);
  }
  const Config renorm = config_from(kStreets, {"bn.mode=renorm", "bn.renorm_max_d=2"});
  check_contains(to_toml(renorm), "renorm_max_r = 3");
  check_contains(to_toml(renorm), "renorm_warmup = 0.03125");
  CHECK(renorm.bn.renorm_max_d == 2);
  CHECK(to_toml(renorm).find("renorm_slices") == std::string::npos);
  CHECK(renorm.bn.slices() == 1);
  CHECK(config_from(kStreets, {"bn.mode=renorm", "bn.renorm_slices=4"}).bn.slices() == 4);
  CHECK_FALSE(renorm.bn.shares_statistics());
  CHECK(config_from(kStreets, {"bn.mode=frozen"}).bn.shares_statistics());
}

TEST_CASE("a batch that no machine holds is refused where it is written") {
  for (const char* key : {"batch.global", "batch.per_device"}) {
    CHECK_THROWS_WITH_AS(
        config_from(kStreets, {concat(key, "=9223372036854775807")}),
        doctest::Contains("expected an integer >= 1 and <= 1000000, got 9223372036854775807"),
        ConfigError);
  }
}

TEST_CASE("a norm without statistics of batches is evaluated as it is") {
  const auto evaluated_by = [](const char* mode, const char* stats, std::size_t warned) {
    std::vector<std::string> warnings;
    const Config config = config_from(
        kStreets, {concat("bn.mode=", mode), concat("bn.eval_stats=", stats)}, &warnings);
    CHECK(warnings.size() == warned);
    return config.bn.eval_stats;
  };
  CHECK(evaluated_by("instance", "batch", 1) == EvalStats::kDevice0);
  CHECK(evaluated_by("layer", "precise", 1) == EvalStats::kDevice0);
  CHECK(evaluated_by("frozen", "precise", 1) == EvalStats::kDevice0);
  CHECK(evaluated_by("instance", "own", 0) == EvalStats::kOwn);
  CHECK(evaluated_by("sync", "precise", 0) == EvalStats::kPrecise);
}

TEST_CASE("what needs running statistics, or another step later on, says so") {
  const auto check = [](const std::vector<std::string>& overrides, const char* message) {
    CHECK_THROWS_WITH_AS(config_from(kStreets, overrides), doctest::Contains(message), ConfigError);
  };
  const char* const no_statistics = "needs running statistics, but bn.track_running_stats is false";
  for (const char* key : {"bn.mode=renorm", "bn.mode=frozen", "bn.freeze_at=0.5"}) {
    check({key, "bn.track_running_stats=false"}, no_statistics);
  }
  check({"bn.freeze_at=0.5", "run.cuda_graph=true"}, "bn.freeze_at changes a step on the way");
  check({"bn.mode=renorm", "run.cuda_graph=true"}, "bn.mode changes a step on the way");
  check({"bn.renorm_max_r=0.5"}, "renorm_max_r");
  check({"bn.freeze_at=1.5"}, "freeze_at");
  check({"bn.groups=0"}, "groups");
}

TEST_CASE("the resolved configuration loads as is, to the same values") {
  const std::vector<std::vector<std::string>> cases{
      {},
      {"bn.mode=renorm", "bn.freeze_at=0.9", "bn.renorm_warmup=0.1"},
      {"bn.mode=group", "bn.groups=2"},
      {"bn.mode=virtual", "bn.momentum=0.3", "bn.momentum_convention=keras", "optim.lr=0.1"},
      {"data.augment.scale=[0.5,2]", "data.exposure=[0.15,80]", "run.name='q\"\\x'",
       "loss.class_weight=[1,1,1,1,1,1,1,1,1,1,0.3]", "bn.momentum=cumulative",
       "batch.per_device=3"},
      {"data.layout=camvid", "data.root=/tmp", "data.resize=[176,240]", "schedule.type=step",
       "schedule.milestones=[0.5,0.75]", "bn.eps_mode=clamp", "bn.eval_stats=precise"},
      {"run.precision=bf16", "run.tf32=false"},
      {"run.precision=fp16", "run.loss_scale=1024"},
      {"optim.type=adamw", "optim.beta2=0.95", "optim.eps=1e-6", "optim.head_lr_mult=10"}};
  for (const auto& overrides : cases) {
    CAPTURE(overrides.empty() ? std::string("defaults") : overrides.front());
    const Config config = config_from(kStreets, overrides);
    const std::string text = to_toml(config);
    const Config again = config_from(text);
    CHECK(to_toml(again) == text);
    CHECK(config_hash(again) == config_hash(config));
    CHECK(again.bn.momentum == config.bn.momentum);
    CHECK(optimizer_name(again.optim.optimizer) == optimizer_name(config.optim.optimizer));
    CHECK(base_learning_rate(again.optim.optimizer) == base_learning_rate(config.optim.optimizer));
    if (const auto* adamw = std::get_if<AdamW>(&again.optim.optimizer)) {
      CHECK(adamw->beta2 == std::get<AdamW>(config.optim.optimizer).beta2);
      CHECK(adamw->eps == std::get<AdamW>(config.optim.optimizer).eps);
    }
    CHECK(again.optim.head_lr_mult == config.optim.head_lr_mult);
    CHECK(again.run.name == config.run.name);
    CHECK(again.run.precision == config.run.precision);
    CHECK(again.run.tf32 == config.run.tf32);
    CHECK(again.run.loss_scale == config.run.loss_scale);
  }
}

TEST_CASE("the documentation's tables have every key once, with what it expects and its default") {
  const std::string tables = keys_as_markdown();
  check_contains(tables, "### [data.augment]\n");
  check_contains(tables,
                 "| `stall_timeout` | a number > 0 | `60` | seconds until a waiting replica is a "
                 "failure ¹ |\n");
  check_contains(tables, "| `beta1` | a number >= 0 and < 1 | `0.9` | adam, adamw, lion |\n");
  check_contains(
      tables, "| `lr` | a number >= 0 | `0.01`, adamw: `0.001`, lion: `0.0001`, adam: `0.001` |");
  check_contains(tables, "| `beta2` | a number >= 0 and < 1 | `0.999`, lion: `0.99` |");
  check_contains(tables, "| `momentum` | a number >= 0 and < 1 | `0.9`, rmsprop: `0` |");
  check_contains(tables, "| `max_iters` | an integer >= 1 and <= 100000000 |  | this or epochs");
  std::size_t rows = 0;
  for (std::size_t at = tables.find("\n| `"); at != std::string::npos;
       at = tables.find("\n| `", at + 1)) {
    ++rows;
  }
  CHECK(rows == config_keys().size());
  const std::vector<ConfigKey>& keys = config_keys();
  for (auto key = keys.begin(); key != keys.end(); ++key) {
    CAPTURE(key->path);
    CHECK(std::count_if(keys.begin(), keys.end(),
                        [&](const ConfigKey& other) { return other.path == key->path; }) == 1);
  }
}

TEST_CASE("keys of several optimizers lie in the order of the file") {
  std::vector<std::string> names;
  for (const ConfigKey& key : config_keys()) {
    if (section_of(key.path) == "optim") names.push_back(name_of(key.path));
  }
  CHECK(names == std::vector<std::string>{"type", "lr", "lr_reference_batch", "beta1", "beta2",
                                          "alpha", "eps", "momentum", "nesterov", "weight_decay",
                                          "norm_weight_decay", "bias_weight_decay", "head_lr_mult",
                                          "freeze", "clip_norm", "clip_value"});
}

const char* const kTwoLosses = R"(loss = [{type = "cross_entropy", label_smoothing = 0.1},
        {type = "dice", weight = 0.5}]
[data]
layout = "streets"
size = [32, 32]
)";

TEST_CASE("a section of a loss, or a list of losses") {
  const Config one = config_from(std::string(kStreets) + "[loss]\ntype = 'focal'\ngamma = 1.5\n");
  REQUIRE(one.losses.size() == 1);
  CHECK(std::get<FocalLoss>(one.losses[0].loss).gamma == 1.5F);

  const Config two = config_from(kTwoLosses);
  REQUIRE(two.losses.size() == 2);
  CHECK(std::get<CrossEntropyLoss>(two.losses[0].loss).label_smoothing == 0.1F);
  CHECK(two.losses[0].weight == 1.0F);
  CHECK(std::holds_alternative<DiceLoss>(two.losses[1].loss));
  CHECK(two.losses[1].weight == 0.5F);

  const Config blocks = config_from(std::string(kStreets) +
                                    "[[loss]]\nlabel_smoothing = 0.1\n"
                                    "[[loss]]\ntype = 'dice'\nweight = 0.5\n");
  CHECK(config_hash(blocks) == config_hash(two));
  const Config single =
      config_from(std::string(kStreets) + "[[loss]]\ntype = 'focal'\ngamma = 1.5\n");
  CHECK(config_hash(single) == config_hash(one));
}

TEST_CASE("a list of losses is written and read back, and hashed with its order and number") {
  const Config two = config_from(kTwoLosses);
  const std::string text = to_toml(two);
  check_contains(text, "\n[[loss]]\ntype = \"cross_entropy\"");
  check_contains(text, "\n[[loss]]\ntype = \"dice\"");
  CHECK(to_toml(config_from(text)) == text);
  CHECK(config_hash(config_from(text)) == config_hash(two));

  const std::string plain = config_hash(config_from(kStreets));
  CHECK(config_hash(config_from(std::string(kStreets) + "[[loss]]\n")) == plain);
  CHECK(config_hash(config_from(std::string(kStreets) + "[[loss]]\n[[loss]]\n")) != plain);
  const std::string other = "loss = [{type = 'dice', weight = 0.5}, {label_smoothing = 0.1}]\n";
  CHECK(config_hash(config_from(other + kStreets)) != config_hash(two));
}

TEST_CASE("errors in a list of losses say where") {
  check_contains(error_of("loss = [{type = 'dice'}, {tpye = 'dice'}]\n" + std::string(kStreets)),
                 "camvid.toml:1:27: error: unknown key `tpye` in [[loss]]");
  check_contains(error_of("loss = [{type = 'dice'}, {tpye = 'dice'}]\n" + std::string(kStreets)),
                 "did you mean `type`?");
  check_contains(error_of("loss = [{type = 'dice', smooth = 0}, {}]\n" + std::string(kStreets)),
                 "camvid.toml:1:34: error: loss[0].smooth: expected a number > 0, got 0");
  check_contains(error_of("loss = [{}, {type = 'dcie'}]\n" + std::string(kStreets)),
                 "loss[1].type: expected one of \"cross_entropy\", \"dice\", \"focal\", "
                 "\"ohem_cross_entropy\", got \"dcie\"; did you mean \"dice\"?");
  check_contains(error_of("loss = [{}, {gamma = 1}]\n" + std::string(kStreets)),
                 "loss[1].gamma is a number of loss[1].type = \"focal\", but it is "
                 "\"cross_entropy\"");
  check_contains(error_of("loss = [{}, {class_weight = [1, 2]}]\n" + std::string(kStreets)),
                 "loss[1].class_weight has 2 weights, but there are 11 classes");
  for (const char* wrong : {"loss = 'dice'\n", "loss = ['dice']\n", "loss = []\n"}) {
    CAPTURE(wrong);
    check_contains(error_of(wrong + std::string(kStreets)), "camvid.toml:1:");
    check_contains(error_of(wrong + std::string(kStreets)), "`loss` is a section");
  }
  std::string nine = "loss = [";
  for (int i = 0; i < 9; ++i) nine += "{},";
  check_contains(error_of(nine + "]\n" + kStreets), "9 losses at the head");
}

TEST_CASE("overrides of losses") {
  const Config two = config_from(kTwoLosses, {"loss[1].weight=2"});
  CHECK(two.losses[1].weight == 2.0F);
  CHECK(two.losses[0].weight == 1.0F);
  CHECK(config_from(kTwoLosses, {"loss=[{type='focal'}]"}).losses.size() == 1);
  CHECK(config_from(kStreets, {"loss=[{}, {type='dice'}]"}).losses.size() == 2);
  CHECK(config_from(kStreets, {"loss.type=dice"}).losses.size() == 1);
  check_contains(error_of(kTwoLosses, {"loss.weight=2"}),
                 "there is no loss.weight among 2 of [[loss]]");
  check_contains(error_of(kTwoLosses, {"loss.weight=2"}), "say which: loss[0].weight");
  check_contains(error_of(kTwoLosses, {"loss[2].weight=2"}), "there is no loss[2].weight");
}

TEST_CASE("the hash covers what changes the result and nothing else") {
  const std::string base = config_hash(config_from(kStreets));
  CHECK(base.size() == 16);
  for (const char* same : {"run.name=x", "run.work_dir=/x", "run.log_every=3", "run.keep=9",
                           "data.workers=7", "run.loss_scale=2", "optim.head_lr_mult=1"}) {
    CHECK(config_hash(config_from(kStreets, {same})) == base);
  }
  for (const char* other :
       {"run.seed=1", "optim.lr=0.011", "bn.mode=sync", "data.train_images=3", "run.precision=bf16",
        "run.tf32=false", "run.gradient_exchange=all_reduce", "optim.type=adamw",
        "optim.head_lr_mult=10"}) {
    CHECK(config_hash(config_from(kStreets, {other})) != base);
  }
}

TEST_CASE("what makes two hashes differ is named, and nothing else") {
  const Config base = config_from(kStreets);
  CHECK(config_difference(base, config_from(kStreets, {"run.name=x", "run.log_every=3"})).empty());
  const Config other = config_from(kStreets, {"run.tf32=false", "run.epochs=2"});
  CHECK(config_difference(base, other) ==
        "run.epochs (20 there, 2 here), run.tf32 (true there, false here)");
  const std::string more = config_difference(base, config_from(kStreets, {"optim.type=adamw"}));
  check_contains(more, "optim.type (\"sgd\" there, \"adamw\" here)");
  check_contains(more, " more");
}

}  // namespace lockstep
