#include "lockstep/data/dataset.h"

#include <doctest/doctest.h>

#include "data/fixtures.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

DataOptions folder_options(const TempFolder& folder, int num_classes = 5) {
  DataOptions options;
  options.root = folder.path();
  options.num_classes = num_classes;
  return options;
}

void write_pair(const TempFolder& folder, const std::string& image, const std::string& mask,
                std::uint64_t seed) {
  write_png(folder.file(image), random_image({4, 6}, seed));
  write_png(folder.file(mask), random_labels({4, 6}, 5, seed));
}

TEST_CASE("layout folder pairs by stem, in the order of the stems, whatever the extension") {
  const TempFolder folder;
  write_pair(folder, "images/train/b.2.png", "masks/train/b.2.png", 2);
  write_jpeg_file(folder.file("images/train/a.JPG"), random_image({4, 6}, 1));
  write_png(folder.file("masks/train/a.png"), random_labels({4, 6}, 5, 1));
  write_file(folder.file("images/train/notes.txt"), std::string("not an image"));
  write_file(folder.file("images/train/._b.2.png"), std::string("not an image"));
  const auto dataset = make_dataset(folder_options(folder), Split::kTrain, 0);
  REQUIRE(dataset->size() == 2);
  CHECK(contains(dataset->describe(0), "a.JPG"));
  CHECK(dataset->load(0).labels.pixels == random_labels({4, 6}, 5, 1).pixels);
  CHECK(dataset->load(1).image.pixels == random_image({4, 6}, 2).pixels);
  CHECK(dataset->image_size(0) == Size{4, 6});
  CHECK_THROWS_AS(dataset->load(2), Error);
}

TEST_CASE("what is missing is named") {
  const TempFolder folder;
  DataOptions options = folder_options(folder);
  CHECK(contains(loading_failure(options), "images"));
  write_pair(folder, "images/training/a.png", "masks/training/a.png", 1);
  CHECK(contains(loading_failure(options), "training"));
  options.train = "training";
  CHECK(loading_failure(options).empty());
  write_png(folder.file("images/training/b.png"), random_image({4, 6}, 1));
  CHECK(contains(loading_failure(options), "b.png"));
  for (const char* name : {"c", "d", "e"})
    write_png(folder.file(concat("images/training/", name, ".png")), random_image({4, 6}, 1));
  CHECK(contains(loading_failure(options), "(4 in all)"));
  for (const char* name : {"b", "c", "d", "e", "f"})
    write_png(folder.file(concat("masks/training/", name, ".png")), random_labels({4, 6}, 5, 1));
  CHECK(contains(loading_failure(options), "f.png"));
  write_png(folder.file("images/training/f.png"), random_image({4, 6}, 1));
  CHECK(loading_failure(options).empty());
  write_jpeg_file(folder.file("images/training/f.jpg"), random_image({4, 6}, 1));
  CHECK(contains(loading_failure(options), "same stem"));
  std::filesystem::create_directories(folder.path() / "images/empty");
  options.train = "empty";
  CHECK(contains(loading_failure(options), "found none"));
  CHECK(!contains(loading_failure(options), "found none of them"));
  for (const char* name : {"b.tif", "a.tif", ".hidden"})
    write_file(folder.file(concat("images/empty/", name)), std::string("II*"));
  CHECK(contains(loading_failure(options), "found none of them, but a.tif and 1 more"));
  options.root = folder.path() / "nowhere";
  CHECK(contains(loading_failure(options), "nowhere"));
  options.root.clear();
  CHECK_THROWS_AS(make_dataset(options, Split::kTrain, 0), ConfigError);
}

TEST_CASE("a label outside the classes names file, value, pixel and what is allowed") {
  const TempFolder folder;
  write_png(folder.file("images/train/a.png"), random_image({3, 4}, 1));
  LabelMap labels{3, 4, std::vector<Label>(12, 2)};
  labels.pixels[0] = 255;  // ignored
  labels.pixels[1 * 4 + 2] = 7;
  write_png(folder.file("masks/train/a.png"), labels);
  const std::string text = loading_failure(folder_options(folder));
  for (const char* part :
       {"masks/train/a.png", "label 7", "row 1, column 2", "0..4", "ignore_index 255"}) {
    CHECK(contains(text, part));
  }
  CHECK_FALSE(contains(text, "black-and-white"));
  CHECK(loading_failure(folder_options(folder, 8)).empty());
}

TEST_CASE("a black-and-white mask gets a hint") {
  const TempFolder folder;
  write_png(folder.file("images/train/a.png"), random_image({1, 3}, 1));
  write_png(folder.file("masks/train/a.png"), LabelMap{1, 3, {0, 255, 0}});
  DataOptions options = folder_options(folder, 2);
  options.ignore_index = 99;
  CHECK(contains(loading_failure(options), "data.mask_values = \"binary\""));
}

TEST_CASE("a mask that is not black and white is told what it is") {
  const TempFolder folder;
  DataOptions options = folder_options(folder, 2);
  options.mask_values = MaskValues::kBinary;
  const auto says = [&](const std::vector<Label>& values, const char* part) {
    const auto width = static_cast<int>(values.size());
    write_png(folder.file("images/train/a.png"), random_image({1, width}, 1));
    write_png(folder.file("masks/train/a.png"), LabelMap{1, width, values});
    const std::string text = loading_failure(options);
    CAPTURE(text);
    CHECK(contains(text, part));
    CHECK_FALSE(contains(text, "data.ignore_index"));
  };
  says({0, 1, 1, 0}, "holds only 0 and 1, which are classes already: leave data.mask_values out");
  says({1, 1}, "leave data.mask_values out");
  says({0, 3, 90, 180, 250, 255, 255}, "4 of 7 pixels lie between black and white");
  says({0, 128, 255}, "The mask holds 0, 128, 255");
}

TEST_CASE("a gray mask that is saved as RGB is told from one in colours") {
  const TempFolder folder;
  write_png(folder.file("images/train/a.png"), random_image({1, 2}, 1));
  write_png(folder.file("masks/train/a.png"), Image{1, 2, {1, 1, 1, 0, 0, 0}});
  CHECK(contains(loading_failure(folder_options(folder, 2)), "convert it to gray"));
  write_png(folder.file("masks/train/a.png"), Image{1, 2, {1, 0, 1, 0, 0, 0}});
  CHECK(contains(loading_failure(folder_options(folder, 2)), "data.palette"));
}

TEST_CASE("an image and a mask of different sizes are an error that names both") {
  const TempFolder folder;
  write_png(folder.file("images/train/a.png"), random_image({3, 4}, 1));
  write_png(folder.file("masks/train/a.png"), random_labels({4, 3}, 5, 1));
  const std::string text = loading_failure(folder_options(folder));
  for (const char* part : {"images/train/a.png", "masks/train/a.png", "4x3", "3x4"})
    CHECK(contains(text, part));
}

TEST_CASE("layout camvid: folders with annot, void becomes ignore_index") {
  const TempFolder folder;
  write_png(folder.file("train/x_001.png"), random_image({2, 3}, 1));
  write_png(folder.file("trainannot/x_001.png"), LabelMap{2, 3, {0, 10, 11, 11, 255, 3}});
  DataOptions options = folder_options(folder, 11);
  options.layout = "camvid";
  CHECK(make_dataset(options, Split::kTrain, 0)->load(0).labels.pixels ==
        std::vector<Label>{0, 10, 255, 255, 255, 3});
  options.ignore_index = 11;
  CHECK(contains(loading_failure(options), "label 255"));
  write_png(folder.file("trainannot/x_001.png"), LabelMap{2, 3, {0, 10, 11, 11, 12, 3}});
  CHECK(contains(loading_failure(options), "label 12"));
}

TEST_CASE("layout camvid: a list written elsewhere is resolved by the tails of its paths") {
  const TempFolder folder;
  for (const char* name : {"b", "a"}) {
    write_pair(folder, concat("train/", name, ".png"), concat("trainannot/", name, ".png"), 1);
  }
  DataOptions options = folder_options(folder, 11);
  options.layout = "camvid";
  write_file(folder.file("train.txt"),
             std::string("/SegNet/CamVid/train/b.png /SegNet/CamVid/trainannot/b.png\n"
                         "\n/SegNet/CamVid/train/a.png /SegNet/CamVid/trainannot/a.png\n"));
  const auto dataset = make_dataset(options, Split::kTrain, 0);
  REQUIRE(dataset->size() == 2);
  CHECK(contains(dataset->describe(0), "train/b.png"));
  write_file(folder.file("train.txt"), std::string("/S/train/b.png\n"));
  CHECK(contains(loading_failure(options), "train.txt:1"));
  write_file(folder.file("train.txt"),
             std::string("train/b.png trainannot/b.png\n/S/train/c.png /S/trainannot/b.png\n"));
  CHECK(contains(loading_failure(options), "train.txt:2"));
  write_file(folder.file("train.txt"), std::string("\n"));
  CHECK(contains(loading_failure(options), "found none"));
  std::string a_thousand_folders;
  for (int i = 0; i < 1000; ++i) a_thousand_folders += "x/";
  for (const std::string& name : {std::string(300, 'x'), a_thousand_folders}) {
    write_file(folder.file("train.txt"), name + "a.png b.png\n");
    CHECK(contains(loading_failure(options), "train.txt:1: no tail of"));
  }
}

TEST_CASE("two classes of one name are refused, wherever the names come from") {
  DataOptions options;
  options.num_classes = 2;
  options.classes = {"a", "a"};
  CHECK_THROWS_WITH_AS(class_names(options), doctest::Contains("two classes have the name \"a\""),
                       ConfigError);
  const LayoutTable layouts{{.name = "own", .make = nullptr, .classes = {"b", "c", "b"}}};
  options = {};
  options.layout = "own";
  options.layouts = &layouts;
  CHECK_THROWS_WITH_AS(class_names(options), doctest::Contains("\"b\""), ConfigError);
  for (const DataLayout& layout : builtin_layouts()) {
    options = {};
    options.layout = layout.name;
    if (!layout.classes.empty()) CHECK(class_names(options) == layout.classes);
  }
}

TEST_CASE("class names and counts") {
  DataOptions options;
  CHECK_THROWS_AS(class_count(options), ConfigError);
  CHECK_THROWS_AS(class_names(options), ConfigError);
  options.num_classes = 2;
  CHECK(class_names(options) == std::vector<std::string>{"class_0", "class_1"});
  options.classes = {"road"};
  CHECK_THROWS_AS(class_names(options), ConfigError);
  options.classes = {"road", "rest"};
  CHECK(class_names(options)[1] == "rest");
  DataOptions camvid;
  camvid.layout = "camvid";
  CHECK(class_count(camvid) == 11);
  CHECK(class_names(camvid)[6] == "sign_symbol");
  options.num_classes = 257;
  options.root = ".";
  CHECK_THROWS_AS(make_dataset(options, Split::kTrain, 0), ConfigError);
  options.num_classes = 2;
  options.ignore_index = 65536;
  CHECK_THROWS_AS(make_dataset(options, Split::kTrain, 0), ConfigError);
}

}  // namespace
}  // namespace lockstep
