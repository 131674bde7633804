// lockstep predict, and eval with test-time augmentation and other splits, from outside.

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/process.h"
#include "config/config.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "lockstep/data/dataset.h"
#include "lockstep/io/image.h"
#include "support/errors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Arguments = std::vector<std::string>;
using test::contains;
using test::Outcome;
using test::read_text;
using test::run_lockstep;

// 37x45 is a multiple of no divisor.
const char* const kStreets = R"([run]
max_iters = 6
[data]
layout = "streets"
size = [37, 45]
train_images = 8
val_images = 5
[data.augment]
crop = [32, 40]
[batch]
global = 4
[model]
width = 4
depth = 3
[optim]
lr = 0.1
)";

const char* const kShapes = R"([run]
max_iters = 6
[data]
layout = "shapes"
size = [24, 24]
train_images = 32
val_images = 20
[batch]
global = 16
[model]
arch = "resnet18"
resnet_width = 4
small_images = true
)";

Arguments joined(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A trained run, and its validation images as files "0.png", "1.png", ... of a folder.
struct Trained {
  test::TemporaryFolder folder;
  fs::path run = folder.path() / "run", images = folder.path() / "images";
  std::vector<LabelMap> labels;
  DataOptions data;

  explicit Trained(const std::string& text, const Arguments& overrides = {}) {
    const fs::path config = folder.write("tiny.toml", text);
    Arguments train{"train", config.string(), "-d", "cpu:2", "-o", run.string()};
    for (const std::string& word : overrides) train = joined(train, {"-s", word});
    const Outcome outcome = run_lockstep(train);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    const Config resolved = load_config(config, overrides);
    data = resolved.data;
    const auto dataset = make_dataset(data, Split::kVal, resolved.run.seed);
    fs::create_directory(images);
    for (std::int64_t i = 0; i < dataset->size(); ++i) {
      const Sample sample = dataset->load(i);
      write_png(images / (std::to_string(i) + ".png"), sample.image);
      labels.push_back(sample.labels);
    }
  }

  fs::path out(const std::string& name) const { return folder.path() / name; }
  Outcome predict(const std::string& name, const Arguments& options = {}) const {
    return run_lockstep(
        joined({"predict", run.string(), images.string(), "-o", out(name).string()}, options));
  }
  Json predicted(const std::string& name, const Arguments& options = {}) const {
    return parsed(predict(name, joined({"--json"}, options)));
  }
  Json evaluated(const Arguments& options = {}) const {
    return parsed(run_lockstep(joined({"eval", run.string(), "--json"}, options)));
  }
  static Json parsed(const Outcome& outcome) {
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
    return Json::parse(outcome.out);
  }
  LabelMap map(const std::string& name, int image) const {
    LabelMap map;
    Image colored;
    read_mask(out(name) / (std::to_string(image) + ".png"), map, colored);
    return map;
  }
  /// The confusion matrix of written class maps, as `eval --json` shows its own.
  Json confusion_of(const std::string& name) const {
    const auto classes = static_cast<std::size_t>(class_count(data));
    std::vector<std::vector<int>> rows(classes, std::vector<int>(classes));
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const LabelMap written = map(name, static_cast<int>(i));
      REQUIRE(written.height == labels[i].height);
      REQUIRE(written.width == labels[i].width);
      for (std::size_t p = 0; p < labels[i].pixels.size(); ++p) {
        const Label label = labels[i].pixels[p];
        if (label != data.ignore_index) ++rows[label][written.pixels.at(p)];
      }
    }
    return rows;
  }
};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool same_files(const fs::path& a, const fs::path& b) {
  const std::vector<std::string> names = names_in(a);
  return !names.empty() && names == names_in(b) &&
         std::all_of(names.begin(), names.end(), [&](const std::string& name) {
           return read_text(a / name) == read_text(b / name);
         });
}

}  // namespace

TEST_CASE("predict: the class maps are those that eval counts, with and without augmentation") {
  const Trained trained(kStreets);
  const Json plain = trained.evaluated({"-d", "cpu:1"});
  CHECK_FALSE(plain.contains("tta"));
  CHECK_FALSE(plain.contains("split"));
  trained.predicted("plain", {"-d", "cpu:1"});
  CHECK(trained.confusion_of("plain") == plain["confusion"]);

  const Arguments augmented{"--flip", "--scales", "0.5,1,1.5"};
  const Json tta = trained.evaluated(joined({"-d", "cpu:1"}, augmented));
  CHECK(tta["tta"] == Json{{"flip", true}, {"scales", {0.5, 1.0, 1.5}}});
  trained.predicted("tta", joined({"-d", "cpu:1"}, augmented));
  CHECK(trained.confusion_of("tta") == tta["confusion"]);
  CHECK(tta["confusion"] != plain["confusion"]);
  CHECK(tta["images"] == 5);
  CHECK(tta["loss"].get<double>() > 0);
  const std::string text =
      run_lockstep(joined({"eval", trained.run.string(), "-d", "cpu:2"}, augmented)).out;
  CHECK(contains(text, "test-time augmentation: flip, scales 0.5, 1, 1.5"));

  // On any devices the same bytes; scale 1 alone is no augmentation.
  trained.predicted("three", joined({"-d", "cpu:3"}, augmented));
  CHECK(same_files(trained.out("tta"), trained.out("three")));
  trained.predicted("one", {"-d", "cpu:2", "--scales", "1"});
  CHECK(same_files(trained.out("plain"), trained.out("one")));
  Json devices = trained.evaluated(joined({"-d", "cpu:3"}, augmented));
  for (const char* key : {"confusion", "loss", "mIoU"}) CHECK(devices[key] == tta[key]);
}

TEST_CASE("predict by own statistics: the class maps are those that eval counts") {
  const Trained trained(kStreets);
  const Arguments own{"-d", "cpu:1", "-s", "bn.eval_stats=own"};
  const Json evaluated = trained.evaluated(own);
  CHECK(evaluated["eval_stats"] == "own");
  trained.predicted("own", own);
  CHECK(trained.confusion_of("own") == evaluated["confusion"]);
  CHECK(evaluated["confusion"] != trained.evaluated({"-d", "cpu:1"})["confusion"]);
  const Arguments augmented = joined(own, {"--flip"});
  trained.predicted("flip", augmented);
  CHECK(trained.confusion_of("flip") == trained.evaluated(augmented)["confusion"]);
}

TEST_CASE("predict in windows: the class maps are those that eval counts, on any devices") {
  const Trained trained(kStreets);
  const Arguments windows{"--window", "16,24", "--overlap", "0.5"};
  for (const Arguments& more : {Arguments{}, Arguments{"--blend", "gaussian"}, Arguments{"--flip"},
                                Arguments{"-s", "bn.eval_stats=own"}}) {
    CAPTURE(more);
    const Arguments asked = joined(windows, more);
    const Json evaluated = trained.evaluated(joined(asked, {"-d", "cpu:1"}));
    CHECK(evaluated["tile_mismatch"]["pixels"].get<int>() > 0);
    CHECK(evaluated["tile_mismatch"]["mean_difference"].get<double>() > 0);
    trained.predicted("windows", joined(asked, {"--force", "-d", "cpu:2"}));
    CHECK(trained.confusion_of("windows") == evaluated["confusion"]);
    const Json three = trained.evaluated(joined(asked, {"-d", "cpu:3"}));
    for (const char* key : {"confusion", "loss", "tile_mismatch"}) {
      CHECK(three[key] == evaluated[key]);
    }
  }
  const Json plain = trained.evaluated({"-d", "cpu:1"});
  CHECK_FALSE(plain.contains("tile_mismatch"));
  const Json one = trained.evaluated({"-d", "cpu:1", "--window", "64"});  // larger than the image
  CHECK(one["confusion"] == plain["confusion"]);
  CHECK(contains(run_lockstep(joined({"eval", trained.run.string()}, windows)).out,
                 "tile mismatch 0."));

  const auto error = [&](const Arguments& options) {
    const Outcome outcome = run_lockstep(joined({"eval", trained.run.string()}, options));
    CHECK(outcome.exit_code == 2);
    return outcome.err;
  };
  CHECK(contains(error({"--window", "2,2"}), "eval.window"));
  CHECK(contains(error({"--window", "wide"}), "eval.window"));
  CHECK(contains(error({"--window", "16,16", "--overlap", "1"}), "eval.overlap"));
  CHECK(contains(error({"--window", "16,16", "--blend", "mean"}), "expected one of crop, "));
}

TEST_CASE("predict: what is written, and what is said of it") {
  const Trained trained(kStreets);
  const Json report = trained.predicted("a", {"-d", "cpu:2", "--probabilities"});
  CHECK(report["images"].size() == 5);
  CHECK(report["failed"].empty());
  CHECK(report["tta"].is_null());
  CHECK(report["devices"] == "cpu:2");
  CHECK(report["iteration"] == 6);
  CHECK(report["task"] == "segmentation");
  CHECK(report["images"][3]["image"] == (trained.images / "3.png").string());
  CHECK(report["images"][3]["map"] == (trained.out("a") / "3.png").string());
  CHECK(report["images"][3]["height"] == 37);
  std::int64_t pixels = 0;
  for (const Json& count : report["pixels"]) pixels += count.get<std::int64_t>();
  CHECK(pixels == 5 * 37 * 45);
  CHECK(names_in(trained.out("a")).size() == 15);

  // The picture is a palette PNG in the layout's colours, the overlay half of it over the image.
  const LabelMap map = trained.map("a", 2);
  const std::vector<Color> colors = class_colors(trained.data);
  Image seen, image, over;
  read_image(trained.out("a") / "2.png", seen);
  CHECK(seen.pixels == paint(map, colors).pixels);
  read_image(trained.images / "2.png", image);
  read_image(trained.out("a") / "2_overlay.png", over);
  CHECK(over.pixels == overlay(image, map, colors).pixels);

  trained.predicted("b", {"--no-overlay"});
  CHECK(names_in(trained.out("b")) == Arguments{"0.png", "1.png", "2.png", "3.png", "4.png"});
  const Outcome text = trained.predict("c");
  CHECK(text.exit_code == 0);
  CHECK(contains(text.out, "5 images in"));
  CHECK(contains(text.out, "pavement"));
  CHECK(text.err.empty());  // no terminal, no progress
}

TEST_CASE("predict: images of several sizes, each as alone, at its own size") {
  const Trained trained(kStreets);
  const fs::path mixed = trained.folder.path() / "mixed";
  fs::create_directory(mixed);
  const std::vector<Size> sizes{{37, 45}, {16, 80}, {37, 45}, {3, 5}, {1, 1}, {40, 48}};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    DataOptions data = trained.data;
    data.size = {40, 80};
    Image image = make_dataset(data, Split::kVal, i)->load(0).image;
    image.height = sizes[i].height;  // its first pixels
    image.width = sizes[i].width;
    image.pixels.resize(static_cast<std::size_t>(image.height * image.width * 3));
    write_png(mixed / (std::to_string(i) + ".png"), image);
  }
  for (const Arguments& options : {Arguments{}, Arguments{"--flip", "--scales", "1,1.5"},
                                   Arguments{"-s", "data.resize=[24, 36]"}}) {
    const auto run = [&](const fs::path& images, const std::string& name) {
      const Outcome outcome = run_lockstep(joined({"predict", trained.run.string(), images.string(),
                                                   "--force", "-o", trained.out(name).string()},
                                                  options));
      INFO(outcome.err);
      REQUIRE(outcome.exit_code == 0);
    };
    run(mixed, "all");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CAPTURE(i);
      const std::string name = std::to_string(i) + ".png";
      run(mixed / name, "alone");
      CHECK(read_text(trained.out("all") / name) == read_text(trained.out("alone") / name));
      const LabelMap map = trained.map("all", static_cast<int>(i));
      CHECK(Size{map.height, map.width} == sizes[i]);
    }
  }
}

TEST_CASE("predict: a broken image is named, and the others are predicted") {
  const Trained trained(kStreets);
  const fs::path broken = trained.images / "2.png";
  fs::resize_file(broken, fs::file_size(broken) / 2);
  trained.folder.write("images/notes.jpg", "no image");
  const Outcome outcome = trained.predict("a", {"--no-overlay", "--json"});
  CHECK(outcome.exit_code == 3);
  CHECK(contains(outcome.err, "2 of 6 images failed"));
  CHECK(contains(outcome.err, broken.string()));
  CHECK(contains(outcome.err, "notes.jpg: expected a JPEG, PNG, TIFF or .npy image"));
  const Json report = Json::parse(outcome.out);
  CHECK(report["images"].size() == 4);
  CHECK(report["failed"].size() == 2);
  CHECK(report["failed"][0]["image"] == broken.string());
  CHECK(names_in(trained.out("a")) == Arguments{"0.png", "1.png", "3.png", "4.png"});
}

TEST_CASE("predict refuses what it cannot do, says what to do, and writes nothing") {
  const Trained trained(kStreets);
  const std::string run = trained.run.string(), images = trained.images.string();
  const std::string out = trained.out("out").string(), one = images + "/1.png";
  const auto check = [&](const Arguments& arguments, int exit_code, const std::string& message) {
    CAPTURE(message);
    const Outcome outcome = run_lockstep(joined({"predict"}, arguments));
    INFO(outcome.err);
    CHECK(outcome.exit_code == exit_code);
    CHECK(contains(outcome.err, message));
    CHECK_FALSE(fs::exists(out));
  };
  fs::create_directory(trained.out("empty"));
  fs::create_directory(trained.out("other"));
  fs::copy_file(one, trained.out("other") / "1.png");
  check({run, images}, 2, "expected -o DIR");
  check({run, "-o", out}, 2, "predict: expected IMAGES: JPEG, PNG, TIFF");
  check({run, "/not/there.jpg", "-o", out}, 3, "/not/there.jpg: expected an image or a folder");
  check({run, trained.out("empty").string(), "-o", out}, 3, "*.jpg *.jpeg *.png");
  check({run + "2", images, "-o", out}, 3, "there is no such run or checkpoint");
  check({run, images, "-o", out, "-s", "model.width=6"}, 3, "encoder.0.0.conv.weight");
  check({run, images, "-o", out, "-s", "bn.eval_stats=precise"}, 2, "device0, mean or pooled");
  check({run, images, trained.out("other").string(), "-o", out}, 2, "other/1.png would both be");
  check({run, images, "-o", images, "--force"}, 2, "is one of the images");
  check({run, images, "-o", one}, 2, "expected a folder to write to");
  check({run, images, "-o", out, "--scales", "1,x"}, 2, "got \"x\" in \"1,x\"");
  check({run, images, "-o", out, "--submission"}, 2, "(cityscapes, ade20k)");
  check({run, images, "-o", out, "-d", "cuda:77"}, 1, "cuda:77 is not there");

  // Once named twice is once; what is there stays unless it is forced.
  CHECK(run_lockstep({"predict", run, one, images, "-o", out}).exit_code == 0);
  CHECK(names_in(out).size() == 10);
  const std::string before = read_text(out + "/3.png");
  const Outcome again = run_lockstep({"predict", run, images, "-o", out, "--flip"});
  CHECK(again.exit_code == 2);
  CHECK(contains(again.err, "0.png and 9 more are there already"));
  CHECK(read_text(out + "/3.png") == before);
  CHECK(run_lockstep({"predict", run, images, "-o", out, "--force"}).exit_code == 0);
  CHECK(read_text(out + "/3.png") == before);
}

TEST_CASE("predict: a submission has the values that the benchmark's server takes") {
  // A tree of Cityscapes with pictures of other streets; class c of them is called c + 7 there.
  const Trained drawn(kStreets);
  const fs::path root = drawn.folder.path() / "cityscapes";
  const fs::path images = root / "leftImg8bit/train/ulm", masks = root / "gtFine/train/ulm";
  fs::create_directories(images);
  fs::create_directories(masks);
  for (int i = 0; i < 5; ++i) {
    const std::string stem = "ulm_" + std::to_string(i);
    LabelMap ids = drawn.labels[static_cast<std::size_t>(i)];
    for (Label& id : ids.pixels)
      id = static_cast<Label>(id == drawn.data.ignore_index ? 0 : id + 7);
    fs::copy_file(drawn.images / (std::to_string(i) + ".png"),
                  images / (stem + "_leftImg8bit.png"));
    write_png(masks / (stem + "_gtFine_labelIds.png"), ids);
  }
  const std::string run = drawn.out("run19").string();
  const auto lockstep = [](const Arguments& arguments) {
    const Outcome outcome = run_lockstep(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 0);
  };
  lockstep({"train", (drawn.folder.path() / "tiny.toml").string(), "-s", "data.layout=cityscapes",
            "-s", "data.root=" + root.string(), "-s", "data.val=train", "-d", "cpu:1", "-o", run});
  lockstep({"predict", run, images.string(), "-o", drawn.out("plain").string(), "--no-overlay"});
  lockstep({"predict", run, images.string(), "-o", drawn.out("sent").string(), "--submission"});
  CHECK(names_in(drawn.out("sent")) == names_in(drawn.out("plain")));
  // What is sent is read as masks are.
  for (int i = 0; i < 5; ++i) {
    const std::string stem = "ulm_" + std::to_string(i);
    fs::copy_file(drawn.out("sent") / (stem + "_leftImg8bit.png"),
                  masks / (stem + "_gtFine_labelIds.png"), fs::copy_options::overwrite_existing);
  }
  DataOptions data;
  data.layout = "cityscapes";
  data.root = root;
  const auto sent = make_dataset(data, Split::kTrain, 0);
  REQUIRE(sent->size() == 5);
  for (int i = 0; i < 5; ++i) {
    LabelMap plain;
    Image colored;
    read_mask(drawn.out("plain") / ("ulm_" + std::to_string(i) + "_leftImg8bit.png"), plain,
              colored);
    CHECK(sent->load(i).labels.pixels == plain.pixels);
  }
}

TEST_CASE("predict: a classifier's five likeliest, as eval counts them") {
  const Trained trained(kShapes);
  const auto check = [&](const std::string& name, const Arguments& options) {
    const Json eval = trained.evaluated(options);
    const Json report =
        trained.predicted(name, joined({"--probabilities", "-d", "cpu:2"}, options));
    REQUIRE(report["images"].size() == 20);
    int first = 0, five = 0;
    for (const Json& image : report["images"]) {
      const int index = std::stoi(fs::path(image["image"].get<std::string>()).stem().string());
      const Label label = trained.labels[static_cast<std::size_t>(index)].pixels.front();
      REQUIRE(image["top5"].size() == 5);
      double before = 1;
      for (const Json& score : image["top5"]) {
        CHECK(score["probability"] <= before);
        before = score["probability"];
        five += score["class"] == label ? 1 : 0;
      }
      first += image["top5"][0]["class"] == label ? 1 : 0;
    }
    CHECK(eval["top1"].get<double>() == doctest::Approx(first * 5));
    CHECK(eval["top5"].get<double>() == doctest::Approx(five * 5));
    return eval;
  };
  const Json plain = check("a", {}), tta = check("b", {"--flip", "--scales", "1,1.5"});
  CHECK(plain["loss"] != tta["loss"]);
  CHECK(names_in(trained.out("a")).size() == 21);  // a table, and probabilities
  const std::string table = read_text(trained.out("a") / "predictions.csv");
  CHECK(table.starts_with("image,rank,class,name,probability\n" +
                          (trained.images / "0.png").string() + ",1,"));
  CHECK(std::count(table.begin(), table.end(), '\n') == 101);
  CHECK(contains(trained.predict("c").out, "0.png  "));
}

TEST_CASE("eval: another split, and what is none") {
  const Trained trained(kStreets);
  // A copy of the images as a split of layout folder.
  const fs::path root = trained.folder.path() / "data";
  for (const char* split : {"val", "test"}) {
    fs::create_directories(root / "images" / split);
    fs::create_directories(root / "masks" / split);
    const int count = split == std::string("val") ? 1 : 3;
    for (int i = 0; i < count; ++i) {
      const std::string name = std::to_string(i) + ".png";
      fs::copy_file(trained.images / name, root / "images" / split / name);
      write_png(root / "masks" / split / name, trained.labels[static_cast<std::size_t>(i)]);
    }
  }
  const Arguments folder{"-s", "data.layout=folder", "-s", "data.root=" + root.string(),
                         "-s", "data.num_classes=11"};
  CHECK(trained.evaluated(folder)["images"] == 1);
  for (const Arguments& more : {Arguments{}, Arguments{"--flip"}}) {
    const Json test = trained.evaluated(joined(joined(folder, {"--split", "test"}), more));
    CHECK(test["images"] == 3);
    CHECK(test["split"] == "test");
    CHECK(test["confusion"] ==
          trained.evaluated(joined(joined(folder, {"-s", "data.val=test"}), more))["confusion"]);
    const Outcome none = run_lockstep(
        joined(joined(joined({"eval", trained.run.string()}, folder), {"--split", "tset"}), more));
    CHECK(none.exit_code == 3);
    CHECK(contains(none.err, "has the folders: test val"));
    const Outcome drawn =
        run_lockstep(joined({"eval", trained.run.string(), "--split", "train"}, more));
    CHECK(drawn.exit_code == 2);
    CHECK(contains(drawn.err, "are generated"));
  }
}

TEST_CASE("eval --per-image: scores that add up to the global ones, a table and pictures") {
  const Trained trained(kStreets);
  const std::string run = trained.run.string(), out = (trained.folder.path() / "worst").string();
  const Outcome text = run_lockstep({"eval", run, "-d", "cpu:2", "--per-image", "-o", out});
  INFO(text.err);
  REQUIRE(text.exit_code == 0);
  CHECK(contains(text.out, "per image: mIoU mean "));
  CHECK(contains(text.out, "(5 images)"));
  // The median of two is their mean, and a tenth of the way from the lower one the lowest tenth.
  const Outcome two = run_lockstep({"eval", run, "--per-image", "-s", "data.val_images=2"});
  double mean = 0, median = 1, tenth = 0;
  REQUIRE(std::sscanf(two.out.substr(two.out.find("per image:")).c_str(),
                      "per image: mIoU mean %lf %%  median %lf %%  lowest tenth up to %lf", &mean,
                      &median, &tenth) == 3);
  CHECK(mean == median);
  CHECK(tenth < median);
  const std::string csv = read_text(fs::path(out) / "per_image.csv");
  CHECK(csv.starts_with("image,mIoU,aAcc,sky,building,"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 6);
  CHECK(std::distance(fs::directory_iterator(out), {}) == 6);  // five images, and the table
  const Json json = Json::parse(run_lockstep({"eval", run, "--per-image", "--json"}).out);
  REQUIRE(json.at("per_image").size() == 5);
  // Of one image they are the global ones.
  const Json one = Json::parse(
      run_lockstep({"eval", run, "--per-image", "--json", "-s", "data.val_images=1"}).out);
  for (const char* key : {"mIoU", "aAcc", "IoU.road"}) {
    CAPTURE(key);
    CHECK(one.at("per_image").at(0).at(key) == json.at("per_image").at(0).at(key));
    CHECK(one.at("per_image").at(0).at(key) == one.at(key));
  }
  CHECK(contains(run_lockstep({"eval", run, "--per-image", "--flip"}).err, "leave out --flip"));
  CHECK(contains(run_lockstep({"eval", run, "-o", out}).err, "--per-image"));
  CHECK(contains(run_lockstep({"eval", run, "--per-image", "-s", "bn.eval_stats=batch"}).err,
                 "images together"));
}

TEST_CASE("a classifier's run knows the names of its classes, with its data or without") {
  const test::TemporaryFolder folder;
  const fs::path data = folder.path() / "data";
  for (const char* name :
       {"train/cat/a.png", "train/dog/a.png", "val/cat/b.png", "val/dog/b.png"}) {
    fs::create_directories((data / name).parent_path());
    write_png(data / name, Image{16, 16, std::vector<std::uint8_t>(16 * 16 * 3, 90)});
  }
  const fs::path config = folder.write("c.toml", R"([run]
max_iters = 1
[data]
layout = "imagefolder"
[batch]
global = 2
[model]
arch = "resnet18"
resnet_width = 4
small_images = true
)");
  const std::string root = "data.root=" + data.string();
  const std::string run = (folder.path() / "run").string();
  const Outcome trained =
      run_lockstep({"train", config.string(), "-d", "cpu:1", "-o", run, "-s", root});
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  const std::string image = (folder.path() / "photo.png").string();
  fs::copy_file(data / "val/cat/b.png", image);
  // Written in the run, they change nothing that a hash tells.
  CHECK(config_hash(load_config(fs::path(run) / "config.toml", {})) ==
        config_hash(load_config(config, {root})));
  CHECK(load_config(fs::path(run) / "config.toml", {}).data.classes ==
        std::vector<std::string>{"cat", "dog"});
  fs::remove_all(data / "train");
  CHECK(run_lockstep({"eval", run}).exit_code == 0);  // of what is left, the validation split
  fs::remove_all(data);
  const Outcome predicted =
      run_lockstep({"predict", run, image, "-o", (folder.path() / "p").string(), "--json"});
  INFO(predicted.err);
  REQUIRE(predicted.exit_code == 0);
  CHECK(Json::parse(predicted.out).at("classes") == Json{"cat", "dog"});
  const std::string file = (folder.path() / "m.onnx").string();
  const Outcome exported = run_lockstep({"export", "onnx", run, "-o", file, "--json"});
  REQUIRE(exported.exit_code == 0);
  CHECK(Json::parse(exported.out).at("about").at("lockstep.class_names") == "[\"cat\",\"dog\"]");
  CHECK(run_lockstep({"report", run}).exit_code == 0);
  CHECK(run_lockstep({"inspect", run}).exit_code == 0);
}

}  // namespace lockstep
