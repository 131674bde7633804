// lockstep data, and what a training says of its data.

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/process.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "support/errors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::contains;
using test::Outcome;
using test::run_lockstep;

/// Four training and two validation images of 16x16 with black-and-white masks.
struct BlackAndWhite {
  test::TemporaryFolder folder;
  fs::path config = folder.write("membranes.toml", R"([run]
max_iters = 2
[data]
layout = "folder"
num_classes = 2
[batch]
global = 2
[model]
width = 4
depth = 2
)");

  BlackAndWhite() {
    for (const auto& [split, count] : {std::pair{"train", 4}, {"val", 2}}) {
      for (int i = 0; i < count; ++i) write_sample(split, i);
    }
  }
  void write_sample(const std::string& split, int number) const {
    Image image{16, 16, std::vector<std::uint8_t>(16 * 16 * 3, static_cast<std::uint8_t>(number))};
    if (split == "val") image.pixels[0] = 200;
    LabelMap labels{16, 16, std::vector<Label>(16 * 16, 0)};
    for (std::size_t i = 0; i < 100; ++i) labels.pixels[i] = 255;
    write(split, concat(number, ".png"), image, labels);
  }
  void write(const std::string& split, const std::string& name, const Image& image,
             const LabelMap& labels) const {
    for (const char* kind : {"images", "masks"})
      fs::create_directories(folder.path() / kind / split);
    write_png(folder.path() / "images" / split / name, image);
    write_png(folder.path() / "masks" / split / name, labels);
  }
  Outcome run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"-s", "data.root=" + folder.path().string()});
    return run_lockstep(arguments);
  }
  Outcome train(const std::string& output, std::vector<std::string> options = {}) const {
    options.insert(options.begin(), {"train", config.string(), "-d", "cpu:1", "-o",
                                     (folder.path() / output).string()});
    return run(options);
  }
};

TEST_CASE(
    "black-and-white masks are warned of in data check and in training, and one key reads them") {
  const BlackAndWhite data;
  const Outcome check = data.run({"data", "check", data.config.string()});
  CHECK(check.exit_code == 0);
  CHECK(contains(check.out, "data.mask_values = \"binary\""));
  const Outcome wrong = data.train("wrong");
  CHECK(wrong.exit_code == 0);
  CHECK(contains(wrong.out + wrong.err, "data.mask_values = \"binary\""));
  const std::vector<std::string> remedy{"-s", "data.mask_values=binary"};
  const Outcome right = data.train("right", remedy);
  CHECK(right.exit_code == 0);
  CHECK_FALSE(contains(right.out + right.err, "mask_values"));
  const Outcome json =
      data.run({"data", "check", data.config.string(), "--json", remedy[0], remedy[1]});
  const Json report = Json::parse(json.out);
  CHECK(report["train"]["class_labels"] == Json::array({4 * 156, 4 * 100}));
  CHECK(report["val"]["images"] == 2);
  CHECK(report["warnings"].empty());
}

TEST_CASE("images that no layout takes are told of, by data check, training and predict") {
  const BlackAndWhite data;
  data.write("train/night", "9.png", Image{1, 1, {1, 2, 3}}, LabelMap{1, 1, {0}});
  data.folder.write("images/train/b.bmp", "BM");
  const std::vector<std::string> binary{"-s", "data.mask_values=binary"};
  const Outcome check =
      data.run({"data", "check", data.config.string(), "-s", "data.mask_values=binary"});
  const Outcome trained = data.train("run", binary);
  const Outcome predicted = run_lockstep({"predict", (data.folder.path() / "run").string(),
                                          (data.folder.path() / "images/train").string(), "-o",
                                          (data.folder.path() / "maps").string()});
  for (const Outcome& outcome : {check, trained, predicted}) {
    CHECK(outcome.exit_code == 0);
    CHECK(contains(outcome.out + outcome.err, "b.bmp"));
    CHECK(contains(outcome.out + outcome.err, "1 image (night)"));
  }
}

TEST_CASE("300 classes: training, maps that come back, pictures of training and of a report") {
  const BlackAndWhite data;
  for (const char* split : {"train", "val"}) {
    LabelMap labels{16, 16, std::vector<Label>(256, 299)};
    labels.pixels[0] = 65535;
    data.write(split, "0.png", Image{16, 16, std::vector<std::uint8_t>(768, 7)}, labels);
  }
  const std::vector<std::string> many{"-s", "data.num_classes=300", "-s",
                                      "data.ignore_index=65535"};
  const auto with_many = [&](std::vector<std::string> words) {
    words.insert(words.end(), many.begin(), many.end());
    const Outcome outcome = data.run(words);
    INFO(outcome.out, outcome.err);
    CHECK(outcome.exit_code == 0);
  };
  const fs::path run = data.folder.path() / "run", out = data.folder.path() / "out";
  const Outcome trained = data.train("run", many);
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  with_many({"data", "preview", data.config.string(), "-n", "2", "-o", out.string()});
  with_many({"data", "check", data.config.string()});
  CHECK(run_lockstep({"report", run.string()}).exit_code == 0);
  const auto images = (data.folder.path() / "images/val").string();
  CHECK(run_lockstep({"predict", run.string(), images, "-o", out.string()}).exit_code == 0);
  LabelMap map;
  Image colored;
  CHECK(read_mask(out / "0.png", map, colored) == MaskKind::kValues);
  CHECK(map.height == 16);
  CHECK(*std::max_element(map.pixels.begin(), map.pixels.end()) < 300);
}

TEST_CASE(
    "training images whose sides are no multiple of the network's are padded, and once told") {
  const BlackAndWhite data;  // 16x16
  const std::vector<std::string> deep{
      "-s", "data.mask_values=binary", "-s", "data.augment.crop=[10,13]", "-s", "model.depth=3"};
  const Outcome trained = data.train("run", deep);
  INFO(trained.err);
  CHECK(trained.exit_code == 0);
  const std::string said = "training images of 10x13 are padded to 12x16";
  const std::string text = trained.out + trained.err;
  CHECK(contains(text, said));
  CHECK_FALSE(contains(text.substr(text.find(said) + 1), said));
}

TEST_CASE("data check names what is broken and what is in both splits; training can leave it out") {
  const BlackAndWhite data;
  const Image image{16, 16, std::vector<std::uint8_t>(16 * 16 * 3, 2)};
  data.write("val", "again.png", image, LabelMap{16, 16, std::vector<Label>(16 * 16, 1)});
  std::ofstream(data.folder.path() / "images/train/1.png") << "torn";
  const std::vector<std::string> binary{"-s", "data.mask_values=binary"};
  const Outcome twice = data.run({"data", "check", data.config.string()});
  CHECK(twice.exit_code == 3);
  for (const char* part : {"images/train/1.png", "data.skip_broken = true", "images/val/again.png"})
    CHECK(contains(twice.out, part));
  CHECK(data.train("torn", {"-s", "run.max_iters=4"}).exit_code == 3);
  const Outcome skipped = data.train("skipped", {"-s", "data.skip_broken=true"});
  CHECK(skipped.exit_code == 0);
  CHECK(contains(skipped.out + skipped.err, "1 of 4 samples are left out"));
  CHECK(contains(skipped.out + skipped.err, "images/train/1.png"));
  std::ofstream(data.folder.path() / "images/val/0.png") << "torn";
  const fs::path run = data.folder.path() / "skipped";
  CHECK(run_lockstep({"eval", run.string()}).exit_code == 0);
  CHECK(contains(run_lockstep({"eval", run.string()}).err, "images/val/0.png"));
}

TEST_CASE("a name that is not UTF-8 is told as far as it can be, in JSON too") {
  const BlackAndWhite data;
  for (const char* kind : {"images", "masks"})
    std::ofstream(data.folder.path() / kind / "train" / "\xff.png") << "torn";
  const Outcome check = data.run({"data", "check", data.config.string(), "--json"});
  CHECK(check.exit_code == 3);
  CHECK(contains(Json::parse(check.out)["train"]["broken"][0].get<std::string>(), ".png"));
  const Outcome trained = data.train("run", {"-s", "data.skip_broken=true"});
  CHECK(trained.exit_code == 0);
  CHECK(contains(trained.out + trained.err, "left out: "));
}

TEST_CASE(
    "data check ends as a training would that is refused, and prints what it has found first") {
  const BlackAndWhite data;
  const std::vector<std::string> sound{"-s", "data.mask_values=binary", "-s", "model.depth=5"};
  std::vector<std::string> check{"data", "check", data.config.string(), "-d", "cpu:2"};
  check.insert(check.end(), sound.begin(), sound.end());
  const Outcome refused = data.run(check);  // one value at the lowest of five stages
  CHECK(refused.exit_code == 5);
  CHECK(contains(refused.out, "mean = ["));
  CHECK(contains(refused.err, "more than one value"));
  CHECK_FALSE(contains(refused.out, "nothing to warn of"));
  check[4] = "cpu:1";  // both images on one device
  CHECK(contains(data.run(check).out, "nothing to warn of"));
  check.insert(check.end(), {"-s", "schedule.warmup_iters=9", "--json"});
  const Json report = Json::parse(data.run(check).out);
  CHECK(report["refusal"].is_null());
  CHECK(contains(report["warnings"][0].get<std::string>(), "schedule.warmup_iters = 9"));
}

TEST_CASE("data check gives no mean of images that cannot be read") {
  const BlackAndWhite data;
  for (const auto& entry : fs::directory_iterator(data.folder.path() / "images" / "train"))
    std::ofstream(entry.path()) << "torn";
  const Outcome check = data.run({"data", "check", data.config.string()});
  CHECK(check.exit_code == 3);
  CHECK(contains(check.out, "no training image could be read"));
  CHECK_FALSE(contains(check.out, "mean = ["));
  const Outcome json = data.run({"data", "check", data.config.string(), "--json"});
  CHECK(Json::parse(json.out)["train"]["mean"].is_null());
}

TEST_CASE("data preview writes images, palette masks and both together") {
  const BlackAndWhite data;
  const fs::path out = data.folder.path() / "preview";
  const Outcome outcome =
      data.run({"data", "preview", data.config.string(), "-n", "2", "-o", out.string(), "-s",
                "data.mask_values=binary", "-s", "data.shuffle=false"});
  CHECK(outcome.exit_code == 0);
  CHECK(contains(outcome.out, "001: "));
  LabelMap labels;
  Image image;
  read_mask(out / "001_labels.png", labels, image);
  CHECK(labels.pixels[99] == 1);
  CHECK(labels.pixels[100] == 0);
  read_image(out / "001_image.png", image);
  CHECK(image.pixels[30] == 1);  // normalisation taken back
  read_image(out / "001_overlay.png", image);
  CHECK(image.pixels[0] == 65);  // half of (1, 1, 1), half of VOC's (128, 0, 0)
  CHECK_FALSE(fs::exists(out / "002_image.png"));
  CHECK(run_lockstep({"data", "look", data.config.string()}).exit_code == 2);
}

}  // namespace
}  // namespace lockstep
