#include "lockstep/data/dataset.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>

#include "data/fixtures.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"

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
  for (const char* name : {"b.bmp", "a.bmp", ".hidden"})
    write_file(folder.file(concat("images/empty/", name)), std::string("II*"));
  CHECK(contains(loading_failure(options), "found none of them, but a.bmp and 1 more"));
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

DataOptions list_options(const TempFolder& folder) {
  DataOptions options = folder_options(folder);
  options.layout = "list";
  return options;
}

TEST_CASE("lists are read as Windows and spreadsheets write them") {
  const TempFolder folder;
  write_pair(folder, "images/a b.png", "masks/a b.png", 1);
  write_pair(folder, "images/c.png", "masks/c.png", 2);
  write_pair(folder, "images/d,1.png", "masks/d,1.png", 3);
  const std::string bom = "\xEF\xBB\xBF";
  for (const std::string& text : std::vector<std::string>{
           bom + "images/c.png masks/c.png\r\n",
           bom + "images/a b.png\tmasks/a b.png \t\r\n\r\n",
           "  images/c.png   masks/c.png \t\n",
           "\"images/a b.png\" \"masks/a b.png\"\n",
           "\"images/a b.png\"\t\"masks/a b.png\"\n",
           "images/c.png,masks/c.png\n",
           "images/c.png, masks/c.png\n",
           "images/a b.png;masks/a b.png\r\n",
           "images/a b.png; masks/a b.png\n",
           "images/c.png; masks/c.png\n",
           "\"images/d,1.png\",\"masks/d,1.png\"\n",
           "images/d,1.png masks/d,1.png\n",
           "images\\c.png masks\\c.png\r\n",
           "\"D:\\data\\images\\a b.png\"\tD:\\data\\masks\\a b.png\r\n",
       }) {
    CAPTURE(text);
    write_file(folder.file("train.txt"), text);
    CHECK(loading_failure(list_options(folder)).empty());
  }
}

TEST_CASE("what is wrong with a list is named") {
  const TempFolder folder;
  write_pair(folder, "a.png", "b.png", 1);
  const auto failure = [&](const std::string& text) {
    write_file(folder.file("train.txt"), text);
    return loading_failure(list_options(folder));
  };
  CHECK(failure("a.png b.png\n").empty());
  CHECK(contains(failure(std::string("\xFF\xFE"
                                     "a\0.\0",
                                     6)),
                 "UTF-16"));
  CHECK(contains(failure(std::string("\xFE\xFF\0a\0.", 6)), "UTF-16"));
  CHECK(contains(failure(std::string("a\0.\0p\0", 6)), "UTF-16"));
  CHECK(contains(failure(std::string("a.png b.png\n\0", 13)), "byte 12 is 0"));
  CHECK(contains(failure("a.png b.png\n\"a.png b.png\n"), "train.txt:2: a quotation mark"));
  CHECK(contains(failure("a.png b.png\nb\xE4.png b.png\n"), "not UTF-8"));
  CHECK(contains(failure("a.png b.png b.png\n"), "train.txt:1: expected \"image mask\""));
  std::filesystem::remove(folder.path() / "train.txt");
  CHECK(contains(loading_failure(list_options(folder)), "No such file"));
}

TEST_CASE("images that a layout does not take are told of") {
  const TempFolder folder;
  write_pair(folder, "images/train/a.png", "masks/train/a.png", 1);
  write_pair(folder, "images/train/night/b.png", "masks/train/night/b.png", 2);
  write_pair(folder, "images/train/.cache/c.png", "masks/train/.cache/c.png", 3);
  write_pair(folder, "images/train/night/.cache/d.png", "masks/train/night/.cache/d.png", 3);
  for (const char* name : {"images/train/z.jp2", "images/train/y.BMP", "images/train/Thumbs.db"})
    write_file(folder.file(name), std::string("II*"));
  DataOptions options = folder_options(folder);
  const auto dataset = make_dataset(options, Split::kTrain, 0);
  CHECK(dataset->size() == 1);
  const std::vector<std::string> left_out = dataset->left_out();
  REQUIRE(left_out.size() == 3);
  CHECK(contains(left_out[0], "y.BMP and 1 more"));
  CHECK(contains(left_out[1], "images/train: left out, in folders below it: 1 image (night)"));
  CHECK(contains(left_out[1], "data.subfolders = true"));
  CHECK(contains(left_out[2], "masks/train"));
  options.skip_broken = true;
  options.ignore_index = 0;  // a class: the data set is one behind two others
  CHECK(make_dataset(options, Split::kTrain, 0)->left_out() == left_out);

  options = folder_options(folder);
  options.subfolders = true;
  const auto whole = make_dataset(options, Split::kTrain, 0);
  REQUIRE(whole->size() == 2);
  CHECK(contains(whole->describe(1), "night/b.png"));
  CHECK(whole->load(1).labels.pixels == random_labels({4, 6}, 5, 2).pixels);
  CHECK(whole->left_out().size() == 1);
}

TEST_CASE("a pipe among images is left out, and is never opened") {
  const TempFolder folder;
  write_pair(folder, "images/train/a.png", "masks/train/a.png", 1);
  for (const char* name : {"images/train/x.png", "masks/train/x.png", "classes/train/0/x.png"})
    REQUIRE(::mkfifo(folder.file(name).c_str(), 0600) == 0);
  const auto left_out = [](const DataOptions& options) {
    const auto dataset = make_dataset(options, Split::kTrain, 0);
    CHECK(dataset->size() == 1);
    return concat(dataset->left_out().size(), " ", dataset->left_out().front());
  };
  CHECK(contains(left_out(folder_options(folder)), "images/train: left out"));
  CHECK(contains(left_out(folder_options(folder)), "x.png"));
  DataOptions classes = folder_options(folder);
  classes.layout = "imagefolder";
  classes.root = folder.path() / "classes";
  write_png(folder.file("classes/train/0/a.png"), random_image({4, 6}, 1));
  CHECK(contains(left_out(classes), "x.png"));
  DataOptions streets = folder_options(folder);
  streets.layout = "cityscapes";
  streets.num_classes = 19;
  write_png(folder.file("leftImg8bit/train/ulm/a_leftImg8bit.png"), random_image({4, 6}, 1));
  write_png(folder.file("gtFine/train/ulm/a_gtFine_labelIds.png"), random_labels({4, 6}, 5, 1));
  REQUIRE(::mkfifo(folder.file("leftImg8bit/train/ulm/x_leftImg8bit.png").c_str(), 0600) == 0);
  CHECK(contains(left_out(streets), "x_leftImg8bit.png"));
  Image image;
  CHECK(contains(
      message_of<DataError>([&] { read_image(folder.path() / "images/train/x.png", image); }),
      "x.png: cannot be read"));
}

TEST_CASE("images that no class and no channel takes are told of") {
  const TempFolder folder;
  for (const char* end : {"_0000", "_0001", "_0002"})
    write_png(folder.file(concat("images/train/a", end, ".png")), random_image({4, 6}, 1));
  write_png(folder.file("masks/train/a.png"), random_labels({4, 6}, 5, 1));
  DataOptions options = folder_options(folder);
  options.channel_files = {"_0000", "_0001"};
  const auto left_out = [&] { return make_dataset(options, Split::kTrain, 0)->left_out(); };
  REQUIRE(left_out().size() == 1);
  CHECK(contains(left_out()[0], "of the layout: a_0002.png; "));
  options.layout = "imagefolder";
  options.root = folder.path() / "classes";
  for (const char* name : {"one/a_0000.png", "one/a_0001.png", "one/a_0002.png", "stray.png"})
    write_png(folder.file(concat("classes/train/", name)), random_image({4, 6}, 1));
  REQUIRE(left_out().size() == 1);
  CHECK(contains(left_out()[0], "of the layout: a_0002.png and 1 more"));
}

TEST_CASE("folders of one name of file are told apart where they count") {
  const TempFolder folder;
  for (const char* city : {"bonn", "ulm"}) {
    write_pair(folder, concat("images/train/", city, "/0.png"),
               concat("masks/train/", city, "/0.png"), 1);
  }
  DataOptions options = folder_options(folder);
  CHECK(contains(loading_failure(options), "2 images (bonn and 1 more) in folders below it"));
  CHECK(contains(loading_failure(options), "data.subfolders = true reads them"));
  options.subfolders = true;
  CHECK(make_dataset(options, Split::kTrain, 0)->size() == 2);
  std::filesystem::remove(folder.path() / "masks/train/ulm/0.png");
  CHECK(contains(loading_failure(options), "images/train/ulm/0.png"));
}

TEST_CASE("names whose accents are written in two ways are told from others") {
  const TempFolder folder;
  write_pair(folder, "images/train/u\xCC\x88.png", "masks/train/\xC3\xBC.png", 1);
  CHECK(contains(loading_failure(folder_options(folder)), "NFC"));
  write_pair(folder, "images/train/\xC3\xBC.png", "masks/train/\xC3\xBC.png", 1);
  std::filesystem::remove(folder.path() / "images/train/u\xCC\x88.png");
  CHECK(loading_failure(folder_options(folder)).empty());
}

TEST_CASE("masks have a suffix where it is said, and it is found where it is not") {
  const TempFolder folder;
  for (const char* name : {"a", "a1"}) {
    write_pair(folder, concat("images/train/", name, ".png"),
               concat("masks/train/", name, "_mask.png"), 1);
  }
  DataOptions options = folder_options(folder);
  CHECK(contains(loading_failure(options), "data.mask_suffix = \"_mask\" pairs them"));
  options.mask_suffix = "_mask";
  CHECK(make_dataset(options, Split::kTrain, 0)->size() == 2);
  // Other files of the mask's folder are others' business.
  write_png(folder.file("masks/train/a_color.png"), random_image({4, 6}, 1));
  CHECK(make_dataset(options, Split::kTrain, 0)->size() == 2);
  std::filesystem::remove(folder.path() / "masks/train/a1_mask.png");
  CHECK(contains(loading_failure(options), "a1.png"));
  options.mask_suffix = "_gt";
  CHECK(contains(loading_failure(options), "*_gt.png *_gt.tif"));
}

std::vector<std::string> file_names(const Dataset& dataset) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < dataset.size(); ++i)
    names.push_back(std::filesystem::path(dataset.describe(i)).filename().string());
  return names;
}

TEST_CASE("one folder is divided by names, the same wherever it lies") {
  const TempFolder here, there;
  for (int i = 0; i < 10; ++i) {
    write_pair(here, concat("images/", i, ".png"), concat("masks/", i, ".png"), 1);
    write_pair(there, concat("images/", i, ".png"), concat("masks/", i, ".png"), 2);
  }
  DataOptions options = folder_options(here);
  CHECK(contains(loading_failure(options), "has no folders, but 10 images"));
  CHECK(contains(loading_failure(options), "data.val_share = 0.2"));
  options.val_share = 0.3F;
  const auto train = make_dataset(options, Split::kTrain, 0);
  const auto val = make_dataset(options, Split::kVal, 0);
  CHECK(train->size() == 7);
  CHECK(val->size() == 3);
  std::vector<std::string> all = file_names(*train);
  for (const std::string& name : file_names(*val)) all.push_back(name);
  std::sort(all.begin(), all.end());
  CHECK(std::unique(all.begin(), all.end()) - all.begin() == 10);
  CHECK(file_names(*val) == std::vector<std::string>{"0.png", "2.png", "5.png"});
  options.root = there.path() / "images/..";
  CHECK(file_names(*make_dataset(options, Split::kVal, 5)) == file_names(*val));
  CHECK(make_dataset(options, Split::kVal, 0)->load(0).labels.pixels ==
        random_labels({4, 6}, 5, 2).pixels);
  options.val_share = 0.001F;
  CHECK(make_dataset(options, Split::kVal, 0)->size() == 1);
  options.val_share = 0.999F;
  CHECK(make_dataset(options, Split::kTrain, 0)->size() == 1);
  // Where there are folders of splits, training's is divided.
  write_pair(here, "images/train/x.png", "masks/train/x.png", 1);
  options.root = here.path();
  CHECK(contains(loading_failure(options), "only 1"));
}

TEST_CASE("an error says which layout would find the files") {
  const TempFolder folder;
  DataOptions options = folder_options(folder, 11);
  const auto hint = [&](const std::string& layout) {
    options.layout = layout;
    return loading_failure(options);
  };
  write_pair(folder, "train/a.png", "trainannot/a.png", 1);
  CHECK(contains(hint("folder"), "the files lie as data.layout = \"camvid\" has them"));
  CHECK(contains(hint("voc"), "camvid"));
  CHECK(contains(hint("ade20k"), "camvid"));
  CHECK(hint("camvid").empty());
  options.train = "test";
  CHECK_FALSE(contains(hint("folder"), "the files lie as"));
}

TEST_CASE(
    "images and masks are turned as EXIF says, and the error of unequal sizes names the key") {
  const TempFolder folder;
  const Image image = random_image({4, 6}, 1);
  write_png(folder.file("images/train/a.png"), image);
  write_png(folder.file("masks/train/a.png"), random_labels({4, 6}, 5, 1));
  std::vector<std::uint8_t> file = read_file(folder.file("images/train/a.png"));
  // A chunk eXIf with the orientation 6, a quarter turn, and its CRC, which nobody looks at.
  const std::string chunk(
      "\0\0\0\x16"
      "eXIfII*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"
      "crc!",
      34);
  file.insert(file.begin() + 33, chunk.begin(), chunk.end());
  write_file(folder.file("images/train/a.png"), file);
  DataOptions options = folder_options(folder);
  CHECK(make_dataset(options, Split::kTrain, 0)->image_size(0) == Size{6, 4});
  CHECK(contains(loading_failure(options), "data.orientation = \"stored\""));
  options.orientation = ImageOrientation::kStored;
  CHECK(make_dataset(options, Split::kTrain, 0)->image_size(0) == Size{4, 6});
  CHECK(make_dataset(options, Split::kTrain, 0)->load(0).image.pixels == image.pixels);
  options = {};
  options.layout = "imagefolder";
  options.root = folder.path();
  options.train = "images";
  CHECK(make_dataset(options, Split::kTrain, 0)->image_size(0) == Size{6, 4});
  CHECK(make_dataset(options, Split::kTrain, 0)->load(0).image.height == 6);
  options.orientation = ImageOrientation::kStored;
  CHECK(make_dataset(options, Split::kTrain, 0)->load(0).image.height == 4);
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

namespace {

/// A sample, as it is given.
class OneSample final : public Dataset {
 public:
  explicit OneSample(Sample sample, std::int64_t size = 1)
      : sample_(std::move(sample)), size_(size) {}

  std::int64_t size() const override { return size_; }
  void load(std::int64_t, Sample& sample) const override { sample = sample_; }
  Size image_size(std::int64_t) const override { return {2, 3}; }
  std::string describe(std::int64_t) const override { return "the sample"; }

 private:
  Sample sample_;
  std::int64_t size_;
};

/// What loading the sample by a layout of one's own throws; empty: nothing.
std::string error_of_own(const Sample& sample, Task task) {
  const LayoutTable layouts{
      {.name = "own",
       .make = [&](const DataOptions&, Split,
                   std::uint64_t) { return std::make_unique<OneSample>(sample); },
       .task = task}};
  DataOptions options;
  options.layout = "own";
  options.layouts = &layouts;
  options.num_classes = 2;
  const std::unique_ptr<Dataset> dataset = make_dataset(options, Split::kTrain, 0);
  Sample loaded;
  try {
    dataset->load(0, loaded);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a sample of one's own that is not what it says is an error, not read beyond its end") {
  const Sample whole{{2, 3, std::vector<std::uint8_t>(18)}, {2, 3, std::vector<Label>(6)}};
  CHECK(error_of_own(whole, Task::kSegmentation).empty());
  const auto broken = [&](const std::function<void(Sample&)>& change,
                          Task task = Task::kSegmentation) {
    Sample sample = whole;
    change(sample);
    return error_of_own(sample, task);
  };
  CHECK(broken([](Sample& s) { s.image.pixels.pop_back(); }) ==
        "the sample: an image of 2x3 in 3 channels has 17 values");
  CHECK(broken([](Sample& s) { s.image.floats.resize(6); }) ==
        "the sample: an image of 2x3 in 3 channels has 6 values");
  CHECK(broken([](Sample& s) { s.image = {}; }) ==
        "the sample: an image of 0x0 in 3 channels has 0 values");
  CHECK(broken([](Sample& s) { s.labels.pixels.clear(); }) ==
        "the sample: expected 2x3 labels, as the image, got 0 as 2x3");
  CHECK(broken([](Sample& s) {
          s.labels = {1, 1, {0}};
        }) == "the sample: expected 2x3 labels, as the image, got 1 as 1x1");
  CHECK(broken([](Sample& s) { std::swap(s.labels.height, s.labels.width); }) ==
        "the sample: expected 2x3 labels, as the image, got 6 as 3x2");
  CHECK(broken([](Sample&) {}, Task::kClassification) ==
        "the sample: expected 1x1 label, got 6 as 2x3");
  CHECK(broken([](Sample& s) { s.labels = {1, 1, {0}}; }, Task::kClassification).empty());
}

TEST_CASE("a layout of one's own that makes nothing, or nothing to evaluate, is an error") {
  LayoutTable layouts{{.name = "own", .make = nullptr}};
  DataOptions options;
  options.layout = "own";
  options.layouts = &layouts;
  options.num_classes = 2;
  CHECK_THROWS_WITH_AS(make_dataset(options, Split::kTrain, 0),
                       doctest::Contains("'own' makes no data set"), ConfigError);
  layouts[0].make = [](const DataOptions&, Split, std::uint64_t) -> std::unique_ptr<Dataset> {
    return nullptr;
  };
  CHECK_THROWS_WITH_AS(ValLoader(options, 0), doctest::Contains("'own' makes no data set"),
                       ConfigError);
  layouts[0].make = [](const DataOptions&, Split, std::uint64_t) {
    return std::make_unique<OneSample>(Sample{}, 0);
  };
  CHECK_THROWS_WITH_AS(ValLoader(options, 0), doctest::Contains("expected samples to evaluate"),
                       DataError);
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
