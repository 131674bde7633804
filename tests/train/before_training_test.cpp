// `data check`, `plan` and `train` over data sets and configurations of which something is wrong or
// odd: they come to the same verdict.

#include "train/before_training.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "data/place.h"
#include "io/image_io.h"
#include "run/exit_code.h"
#include "train/evaluator.h"
#include "train/plan.h"
#include "train/runs.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Overrides = std::vector<std::string>;

using test::Place;

/// What a command says: its exit code, and its error and warnings.
struct Said {
  int code = kExitDone;
  std::string error;
  std::vector<std::string> warnings;

  bool tells(const std::string& part) const {
    return error.find(part) != std::string::npos ||
           std::any_of(warnings.begin(), warnings.end(), [&](const std::string& warning) {
             return warning.find(part) != std::string::npos;
           });
  }
  std::string text() const {
    std::string all = concat("exit code ", code, "\n", error);
    for (const std::string& warning : warnings) all += "\nwarning: " + warning;
    return all;
  }
};

/// `command(said)` adds warnings and may throw.
Said say(const std::function<void(Said&)>& command) {
  Said said;
  try {
    command(said);
  } catch (const std::exception& error) {
    said.code = exit_code_of(error);
    said.error = error.what();
  }
  return said;
}

struct Row {
  const char* name;
  std::function<void(const Place&)> make;
  Overrides overrides;
  int code;
  std::vector<std::string> parts;  // that all commands must say; none: they warn of nothing
  std::string devices = "cpu:1";
};

Said check(const Row& row, const Place& place) {
  return say([&](Said& said) {
    const Config config = place.load(row.overrides, &said.warnings);
    const DataReport report = check_data(config, parse_devices(row.devices), 0);
    said.warnings.insert(said.warnings.end(), report.warnings.begin(), report.warnings.end());
    const bool broken = !report.train.broken.empty() || !report.val.broken.empty();
    if (broken && !config.data.skip_broken) {
      said.code = kExitData;
    } else if (report.refusal) {
      std::rethrow_exception(report.refusal);
    }
  });
}

Said plan(const Row& row, const Place& place) {
  return say([&](Said& said) {
    const Config config = place.load(row.overrides, &said.warnings);
    const TrainingPlan planned = plan_training(config, parse_devices(row.devices), 1);
    said.warnings.insert(said.warnings.end(), planned.warnings.begin(), planned.warnings.end());
  });
}

/// Those of a run that has begun; one that has not says its error alone.
void read_warnings(const fs::path& run, std::vector<std::string>& warnings) {
  if (!fs::exists(RunFolder{run}.events())) return;
  for (const auto& line : test::lines_of(RunFolder{run}.events())) {
    if (line.at("type") == "warning") warnings.push_back(line.at("text"));
  }
}

Said train_it(const Row& row, const Place& place) {
  const fs::path run = place.path("run/x").parent_path();
  Said said = say([&](Said&) {
    TrainRequest request;
    request.output = run;
    request.config = place.load(row.overrides, &request.warnings);
    request.devices = row.devices;
    request.console = Console::kQuiet;
    train(request);
  });
  read_warnings(run, said.warnings);
  return said;
}

std::vector<Row> rows_of_configurations() {
  const auto nothing = [](const Place&) {};
  return {
      {"all is well", nothing, {}, 0, {}},
      {"mean of 0..255", nothing, {"data.mean=[123.675,116.28,103.53]"}, 2, {"divide by 255"}},
      {"std of 0..255", nothing, {"data.std=[58.395,57.12,57.375]"}, 2, {"divide by 255"}},
      {"Caffe's mean", nothing, {"data.mean=[104,117,123]", "data.std=[1,1,1]"}, 2, {"data.mean"}},
      {"mean below 0", nothing, {"data.mean=[-1,0,0]"}, 0, {"below all"}},
      {"one class", nothing, {"data.num_classes=1"}, 2, {"data.num_classes = 2", "\"binary\""}},
      {"one class and what is ignored",
       nothing,
       {"data.num_classes=2", "data.ignore_index=0"},
       2,
       {"leaves one class"}},
      {"milestones beyond the run",
       nothing,
       {"schedule.type=step", "schedule.milestones=[100]"},
       0,
       {"never falls"}},
      {"a rate that rises", nothing, {"schedule.min_lr=1"}, 0, {"the learning rate rises"}},
      {"warm-up beyond the run", nothing, {"schedule.warmup_iters=10"}, 0, {"% of optim.lr"}},
      {"warm-up as long as the run", nothing, {"schedule.warmup_iters=4"}, 0, {"% of optim.lr"}},
      {"warm-up within the run", nothing, {"schedule.warmup_iters=3"}, 0, {}},
      {"an average over more steps", nothing, {"ema.decay=0.9999"}, 0, {"ema.decay"}},
      {"class weights all 0", nothing, {"loss.class_weight=[0,0,0]"}, 2, {"0 for every class"}},
      {"alpha all 0", nothing, {"loss.type=focal", "loss.alpha=[0,0,0]"}, 2, {"loss.alpha is 0"}},
      {"counts as weights", nothing, {"loss.class_weight=[1,2,123456]"}, 0, {"no weights"}},
      {"too few weights", nothing, {"loss.class_weight=[1,2]"}, 2, {"2 weights"}},
      {"a negative weight", nothing, {"loss.class_weight=[1,2,-1]"}, 2, {"class_weight"}},
      {"balanced weights", nothing, {"loss.class_weight=balanced"}, 0, {}},
      {"balanced alpha", nothing, {"loss.type=focal", "loss.alpha=balanced"}, 0, {}},
      {"a word for weights", nothing, {"loss.class_weight=even"}, 2, {"or \"balanced\""}},
      {"rate 0", nothing, {"optim.lr=0"}, 0, {"nothing is learnt"}},
      {"rate of SGD for Adam", nothing, {"optim.type=adam", "optim.lr=0.2"}, 0, {"much for adam"}},
      {"a rate that is scaled",
       nothing,
       {"optim.lr=5", "optim.lr_reference_batch=1"},
       0,
       {"scaled to 10"}},
      {"momentum 1", nothing, {"optim.momentum=1"}, 2, {"optim.momentum"}},
      {"momentum near 1", nothing, {"optim.momentum=0.9999"}, 0, {"times as long"}},
      {"betas exchanged",
       nothing,
       {"optim.type=adam", "optim.lr=0.001", "optim.beta1=0.999", "optim.beta2=0.9"},
       0,
       {"optim.beta1"}},
      {"decay of all", nothing, {"optim.weight_decay=200"}, 0, {"optim.weight_decay"}},
      {"Keras' momentum", nothing, {"bn.momentum=0.99"}, 0, {"momentum_convention"}},
      {"BatchNorm's momentum 0", nothing, {"bn.momentum=0"}, 0, {"at the start"}},
      {"scale in percent",
       nothing,
       {"data.augment.crop=[16,16]", "data.augment.scale=[50,100]"},
       2,
       {"50 % as 0.5"}},
      {"a large scale",
       nothing,
       {"data.augment.crop=[16,16]", "data.augment.scale=[0.5,12]"},
       0,
       {"50 % as 0.5"}},
      {"a crop that the network does not take",
       nothing,
       {"data.augment.crop=[15,16]"},
       0,
       {"are padded to 16x16"}},
      {"a turned crop that is not square",
       nothing,
       {"data.augment.crop=[16,32]", "data.augment.rotate90=true"},
       2,
       {"turns 16x32 into 32x16", "write data.augment.crop = [16, 16]"}},
      {"crops of a class without a size",
       nothing,
       {"data.augment.class_crops=0.3"},
       2,
       {"class_crops needs data.augment.crop"}},
      {"crops of a class that there is not",
       nothing,
       {"data.augment.crop=[16,16]", "data.augment.class_crops=0.3",
        "data.augment.class_crops_of=[3]"},
       2,
       {"has 3: expected classes, 0..2"}},
      {"a gain in percent", nothing, {"data.augment.gain=[50,80]"}, 2, {"50 % as 0.5"}},
      {"noise in gray values", nothing, {"data.augment.noise=10"}, 0, {"standard deviations"}},
      {"a crop of mostly nothing", nothing, {"data.augment.crop=[64,64]"}, 0, {"choose a crop"}},
      {"random-resized without a size",
       nothing,
       {"data.augment.crop_area=[0.1,1]"},
       2,
       {"crop_area"}},
      {"scale without a crop", nothing, {"data.augment.scale=[0.5,2]"}, 2, {"data.augment.crop"}},
      {"a central crop that is larger",
       nothing,
       {"data.val_resize=16", "data.val_crop=[32,32]"},
       0,
       {"cuts nothing off"}},
      {"all is frozen",
       nothing,
       {"optim.freeze=[\"encoder\",\"decoder\",\"head\"]"},
       0,
       {"nothing is learnt but"}},
      {"all is frozen, and no statistics",
       nothing,
       {"optim.freeze=[\"encoder\",\"decoder\",\"head\"]", "bn.mode=instance"},
       2,
       {"nothing is learnt"}},
      {"frozen by a misspelt name",
       nothing,
       {"optim.freeze=[\"encodr\"]"},
       2,
       {"fits no parameter"}},
      {"a pattern of no layer",
       nothing,
       {"bn.mode=sync", "bn.sync_layers=[\"stem*\"]"},
       2,
       {"stands for no"},
       "cpu:2"},
      {"groups of devices that do not divide",
       nothing,
       {"bn.mode=sync", "bn.sync_group=2"},
       2,
       {"bn.sync_group"},
       "cpu:3"},
      {"groups of channels that do not divide",
       nothing,
       {"bn.mode=group", "bn.groups=3"},
       2,
       {"groups"}},
      {"more micro-batches than images", nothing, {"batch.accumulate=5"}, 2, {"batch.accumulate"}},
      {"more micro-batches than images of a device",
       nothing,
       {"batch.accumulate=3", "batch.global=3", "batch.drop_last=false"},
       0,
       {}},
      {"a batch larger than the data", nothing, {"batch.global=8"}, 2, {"drop_last"}},
      {"a batch larger than the data, kept",
       nothing,
       {"batch.global=8", "batch.drop_last=false"},
       0,
       {}},
      {"a batch of more crops than images",
       nothing,
       {"batch.global=8", "data.augment.crop=[16,16]", "data.crops_per_image=2"},
       0,
       {}},
      {"several crops of a whole image",
       nothing,
       {"data.crops_per_image=2"},
       2,
       {"1 without data.augment.crop"}},
      {"a run too long", nothing, {"run.epochs=100000000"}, 2, {"longest run"}},
      {"too few names", nothing, {"data.classes=[\"a\",\"b\"]"}, 2, {"data.classes"}},
      {"too few colours", nothing, {"data.palette=[\"#000000\"]"}, 2, {"data.palette"}},
      {"one colour twice",
       nothing,
       {"data.palette=[\"#000000\",\"#000000\",\"#010101\"]"},
       2,
       {"twice"}},
      {"precision of GPUs", nothing, {"run.precision=fp16"}, 2, {"run.precision"}},
      {"precision of the CPU", nothing, {"run.precision=bf16"}, 0, {}},
      {"memory of GPUs", nothing, {"memory.offload=true"}, 2, {"memory.offload"}},
      {"binary of three classes", nothing, {"data.mask_values=binary"}, 2, {"expected 2"}},
      {"a split that is not there", nothing, {"data.train=training"}, 3, {"training"}},
  };
}

std::vector<Row> rows_of_sizes() {
  const auto one_larger = [](const Place& place) { place.write("train/3.png", 3, 32); };
  const auto val_larger = [](const Place& place) { place.write("val/1.png", 3, 32); };
  const auto all_of = [](int size) { return [=](const Place& place) { place.every_size(size); }; };
  return {
      {"images of two sizes", one_larger, {}, 2, {"different sizes"}},
      {"images of two sizes, cropped", one_larger, {"data.augment.crop=[16,16]"}, 0, {}},
      {"images of two sizes, resized", one_larger, {"data.resize=[16,16]"}, 0, {}},
      {"validation images of two sizes", val_larger, {}, 0, {}},
      {"of two sizes, normalised together",
       val_larger,
       {"bn.eval_stats=batch"},
       2,
       {"of one size"}},
      {"of two sizes, by each image, where disparity would be of batches",
       val_larger,
       {"bn.mode=instance", "run.eval_disparity=true"},
       0,
       {}},
      {"sizes that the network does not take", all_of(15), {}, 0, {"are padded to 16x16"}},
      {"a deeper network", nullptr, {"model.depth=6"}, 0, {"are padded to 32x32"}},
      {"one value of each device", all_of(2), {}, 5, {"more than one value"}, "cpu:2"},
      {"one value of each device, synchronized", all_of(2), {"bn.mode=sync"}, 0, {}, "cpu:2"},
      {"one value of a slice",
       all_of(2),
       {"bn.mode=ghost", "bn.virtual_devices=2"},
       5,
       {"more than one value"}},
      {"one value of a micro-batch", all_of(2), {"batch.accumulate=2"}, 5, {"more than one value"}},
      {"one value of the last batch",
       all_of(2),
       {"batch.global=3", "batch.drop_last=false"},
       5,
       {"more than one value", "a batch of 1"}},
      {"one value of an image", all_of(2), {"bn.mode=instance"}, 2, {"more than one value"}},
      {"one value of an evaluated image",
       all_of(2),
       {"bn.track_running_stats=false"},
       2,
       {"more than one value", "keep running statistics"}},
      {"one value, frozen", all_of(2), {"bn.mode=frozen", "batch.global=1"}, 0, {}},
  };
}

std::vector<Row> rows_of_files() {
  const auto black = [](const Place& p, int i) {
    const std::vector<std::uint8_t> pixels(std::size_t{16} * 16 * 3, 0);
    write_png(p.path("images/" + Place::file("train", i)), Image{16, 16, pixels});
  };
  const auto one_black = [=](const Place& p) { black(p, 1); };
  const auto all_deep = [](const Place& p) {
    for (int i = 0; i < 4; ++i) p.deep(Place::file("train", i), static_cast<std::uint8_t>(15 + i));
    for (int i = 0; i < 2; ++i) p.deep(Place::file("val", i), static_cast<std::uint8_t>(25 + i));
  };
  return {
      {"a torn image", [](const Place& p) { p.tear("train/2.png"); }, {}, 3, {}},
      {"a torn validation image", [](const Place& p) { p.tear("val/1.png"); }, {}, 3, {}},
      {"a torn image that is left out",
       [](const Place& p) { p.tear("train/2.png"); },
       {"data.skip_broken=true"},
       0,
       {"train/2.png"}},
      {"a torn validation image that is left out",
       [](const Place& p) { p.tear("val/1.png"); },
       {"data.skip_broken=true"},
       0,
       {"val/1.png"}},
      {"no image that can be read",
       [](const Place& p) {
         for (int i = 0; i < 4; ++i) p.tear(Place::file("train", i));
       },
       {"data.skip_broken=true"},
       3,
       {}},
      {"too few left",
       [](const Place& p) {
         for (int i = 0; i < 3; ++i) p.tear(Place::file("train", i));
       },
       {"data.skip_broken=true"},
       2,
       {"drop_last"}},
      {"a mask that is not there",
       [](const Place& p) { fs::remove(p.path("masks/train/1.png")); },
       {},
       3,
       {"without a mask"}},
      {"a folder without images",
       [](const Place& p) {
         fs::remove_all(p.path("images/val"));
         fs::create_directories(p.path("images/val"));
       },
       {},
       3,
       {"found none"}},
      {"a mask of another size",
       [](const Place& p) {
         p.mask("train/1.png", {8, 8}, {0, 1});
       },
       {},
       3,
       {}},
      {"a label that is no class",
       [](const Place& p) {
         p.mask("train/1.png", {16, 16}, {0, 7});
       },
       {},
       3,
       {}},
      {"a lossy mask",
       [](const Place& p) {
         write_jpeg_file(p.path("masks/train/1.png"), random_image({16, 16}, 1));
       },
       {},
       3,
       {}},
      {"a class that never occurs",
       [](const Place& p) {
         p.every_mask({0, 1});
       },
       {},
       0,
       {"class 2"}},
      {"an image without labels",
       [](const Place& p) {
         p.mask("train/1.png", {16, 16}, {255});
       },
       {},
       0,
       {"no label that counts"}},
      {"an image of which nothing is there", one_black, {"data.nodata=0"}, 0, {"no label"}},
      {"nothing there, by image",
       one_black,
       {"data.nodata=0", "data.normalize=image"},
       0,
       {"no label"}},
      {"nothing there in any image",
       [=](const Place& p) {
         for (int i = 0; i < 4; ++i) black(p, i);
       },
       {"data.nodata=0", "data.normalize=dataset"},
       3,
       {"no pixel of it is there"}},
      {"black and white",
       [](const Place& p) {
         p.every_mask({0, 255});
       },
       {"data.num_classes=2"},
       0,
       {"\"binary\""}},
      {"black and white, read as that",
       [](const Place& p) {
         p.every_mask({0, 255});
       },
       {"data.num_classes=2", "data.mask_values=binary"},
       0,
       {}},
      {"0 and 1, read as black and white",
       [](const Place& p) {
         p.every_mask({0, 1});
       },
       {"data.num_classes=2", "data.mask_values=binary"},
       3,
       {"leave data.mask_values out"}},
      {"gray edges",
       [](const Place& p) {
         p.every_mask({0, 3, 90, 180, 250, 255});
       },
       {"data.num_classes=2", "data.mask_values=binary"},
       3,
       {"between black and white"}},
      {"a second value",
       [](const Place& p) {
         p.every_mask({0, 128, 255});
       },
       {"data.num_classes=2", "data.mask_values=binary"},
       3,
       {"The mask holds 0, 128, 255"}},
      {"two conventions",
       [](const Place& p) {
         p.every_mask({0, 1});
         p.mask("train/1.png", {16, 16}, {0, 255});
       },
       {"data.num_classes=2"},
       0,
       {"two kinds"}},
      {"two conventions, to validate on",
       [](const Place& p) {
         for (int i = 2; i < 5; ++i) p.write(Place::file("val", i), 20 + i);
         p.every_mask({0, 1});
         for (int i = 2; i < 5; ++i) p.mask(Place::file("val", i), {16, 16}, {0, 255});
       },
       {"data.num_classes=2"},
       0,
       {"data (val): masks of two kinds"}},
      {"palettes that differ",
       [](const Place& p) {
         for (int i = 0; i < 2; ++i)
           write_png(p.path(concat("masks/train/", i, ".png")), p.labels({16, 16}, {0, 1, 2}),
                     std::vector<Color>{
                         {0, 0, 0}, {static_cast<std::uint8_t>(100 * i), 1, 1}, {9, 9, 9}});
       },
       {},
       0,
       {"palettes"}},
      {"a mask in colours",
       [](const Place& p) {
         write_png(p.path("masks/train/1.png"), random_image({16, 16}, 1));
       },
       {},
       3,
       {}},
      {"16 bits of all", all_deep, {}, 0, {}},
      {"two channels, evaluated together",
       nullptr,
       {"data.channels=2", "data.bands=[0,1]", "bn.eval_stats=batch"},
       0,
       {}},
      {"16 bits of all, by the mean of 8",
       all_deep,
       {"data.normalize=given"},
       2,
       {"data.mean is the default"}},
      {"colours of 16 bits", all_deep, {"data.augment.photometric=true"}, 2, {"is of 8-bit RGB"}},
      {"colours that each image scales",
       nullptr,
       {"data.augment.photometric=true", "data.normalize=image"},
       2,
       {"is of 8-bit RGB"}},
      {"16 bits of one", [](const Place& p) { p.deep("train/1.png", 250); }, {}, 3, {"uint16"}},
      {"a sample twice",
       [](const Place& p) {
         p.list("train", {"train/0.png", "train/1.png", "train/0.png"});
         p.list("val", {"val/0.png"});
       },
       {"data.layout=list"},
       0,
       {"listed before"}},
      {"a sample in both splits",
       [](const Place& p) {
         p.list("train", {"train/0.png", "train/1.png"});
         p.list("val", {"train/1.png"});
       },
       {"data.layout=list"},
       0,
       {"validation images are training images"}},
      {"a line that names no file",
       [](const Place& p) {
         p.list("train", {"train/0.png", "train/9.png"});
         p.list("val", {"val/0.png"});
       },
       {"data.layout=list"},
       3,
       {"train/9.png"}},
      {"an empty list",
       [](const Place& p) {
         p.list("train", {});
         p.list("val", {"val/0.png"});
       },
       {"data.layout=list"},
       3,
       {"expected lines"}},
      {"a folder for one class",
       [](const Place& p) {
         write_png(p.path("train/a/1.png"), random_image({8, 8}, 1));
         write_png(p.path("val/a/1.png"), random_image({8, 8}, 2));
       },
       {"data.layout=imagefolder", "data.num_classes=1", "model.arch=resnet18",
        "model.resnet_width=4"},
       2,
       {"a class of their own"}},
      {"a folder that is no class",
       [](const Place& p) {
         for (const char* name : {"train/a/1.png", "train/b/1.png", "val/c/1.png"})
           write_png(p.path(name), random_image({8, 8}, 1));
       },
       {"data.layout=imagefolder", "data.num_classes=2", "model.arch=resnet18",
        "model.resnet_width=4"},
       3,
       {"is not a class"}},
  };
}

void check_rows(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    CAPTURE(std::string(row.name));
    const Place place;
    if (row.make) row.make(place);
    const Said checked = check(row, place), planned = plan(row, place);
    const Said trained = train_it(row, place);
    CAPTURE(checked.text());
    CAPTURE(planned.text());
    CAPTURE(trained.text());
    CHECK(checked.code == row.code);
    CHECK(trained.code == row.code);
    // A few steps and evaluations may pass by what is broken.
    if (row.code != kExitData) CHECK(planned.code == row.code);
    for (const std::string& part : row.parts) {
      CHECK(checked.tells(part));
      CHECK(planned.tells(part));
      CHECK(trained.tells(part));
    }
    if (row.parts.empty() && row.code == kExitDone) {
      CHECK(checked.warnings.empty());
      CHECK(planned.warnings.empty());
    }
  }
}

}  // namespace

TEST_CASE("data check, plan and train say the same of odd configurations") {
  check_rows(rows_of_configurations());
}

TEST_CASE("data check, plan and train say the same of images' sizes") {
  check_rows(rows_of_sizes());
}

TEST_CASE("what a training alone measures refuses no evaluation") {
  const Place place;
  place.write("val/1.png", 3, 32);
  TrainRequest request;
  request.output = place.path("run/x").parent_path();
  request.config = place.load({"run.eval_disparity=true", "bn.eval_images=1"});
  request.devices = "cpu:1";
  request.console = Console::kQuiet;
  train(request);
  CHECK(evaluate_checkpoint({request.output, {}, {"bn.eval_images=2"}, "cpu:1"}).iteration > 0);
}

TEST_CASE("data check, plan and train say the same of odd files") { check_rows(rows_of_files()); }

}  // namespace lockstep
