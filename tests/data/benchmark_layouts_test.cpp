// VOC, Cityscapes, ADE20K and lists, in small trees of the true layout.

#include <doctest/doctest.h>

#include "data/fixtures.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "lockstep/io/image.h"

namespace lockstep {
namespace {

using Labels = std::vector<Label>;

DataOptions options_of(const std::string& layout, const TempFolder& folder) {
  DataOptions options;
  options.layout = layout;
  options.root = folder.path();
  return options;
}

void write_image(const TempFolder& folder, const std::string& name, Size size = {1, 4}) {
  if (name.ends_with(".jpg")) return write_jpeg_file(folder.file(name), random_image(size, 1));
  write_png(folder.file(name), random_image(size, 1));
}

void write_mask(const TempFolder& folder, const std::string& name, const Labels& labels) {
  write_png(folder.file(name), LabelMap{1, static_cast<int>(labels.size()), labels});
}

Labels labels_of(const DataOptions& options, std::int64_t index, Split split = Split::kTrain) {
  return make_dataset(options, split, 0)->load(index).labels.pixels;
}

TEST_CASE("VOC: a list of ids, palette masks, 255 does not count") {
  const TempFolder folder;
  const std::string year = "VOCdevkit/VOC2012/";
  for (const char* id : {"2007_000032", "2007_000039"}) {
    write_image(folder, year + "JPEGImages/" + id + ".jpg");
  }
  const auto mask = folder.file(year + "SegmentationClass/2007_000039.png");
  write_png(mask, LabelMap{1, 4, {0, 20, 255, 15}}, std::vector<Color>(21, Color{1, 2, 3}));
  write_mask(folder, year + "SegmentationClass/2007_000032.png", {1, 1, 0, 255});
  const auto list = folder.file(year + "ImageSets/Segmentation/train.txt");
  write_file(list, std::string("2007_000039\r\n\n2007_000032\n"));
  DataOptions options = options_of("voc", folder);
  CHECK(class_count(options) == 21);
  CHECK(class_names(options)[20] == "tvmonitor");
  CHECK(class_colors(options)[15] == Color{192, 128, 128});
  CHECK(make_dataset(options, Split::kTrain, 0)->size() == 2);
  CHECK(labels_of(options, 0) == Labels{0, 20, 255, 15});
  CHECK(labels_of(options, 1) == Labels{1, 1, 0, 255});
  options.ignore_index = 250;
  CHECK(labels_of(options, 0) == Labels{0, 20, 250, 15});
  options.root /= "VOCdevkit/VOC2012";
  CHECK(labels_of(options, 1) == Labels{1, 1, 0, 250});
  options.val = "nothing";
  CHECK(contains(message_of<DataError>([&] { make_dataset(options, Split::kVal, 0); }),
                 "nothing.txt"));
  options.root /= "JPEGImages";
  CHECK(contains(loading_failure(options), "ImageSets/Segmentation"));
}

TEST_CASE("VOC: the augmented lists take SBD's masks, by id or by path") {
  const TempFolder folder;
  write_image(folder, "JPEGImages/a.jpg");
  write_image(folder, "JPEGImages/b.jpg");
  write_mask(folder, "SegmentationClass/b.png", {2, 2, 2, 2});
  write_mask(folder, "SegmentationClassAug/a.png", {7, 7, 0, 0});
  write_file(folder.file("ImageSets/Segmentation/train_aug.txt"),
             std::string("/JPEGImages/a.jpg /SegmentationClassAug/a.png\n"));
  write_file(folder.file("ImageSets/Segmentation/trainaug.txt"), std::string("a\nb\n"));
  DataOptions options = options_of("voc", folder);
  options.train = "train_aug";
  CHECK(labels_of(options, 0) == Labels{7, 7, 0, 0});
  options.train = "trainaug";
  CHECK(labels_of(options, 0) == Labels{7, 7, 0, 0});
  CHECK(labels_of(options, 1) == Labels{2, 2, 2, 2});
}

TEST_CASE("Cityscapes: label ids become the 19 classes; other files of gtFine are left alone") {
  const TempFolder folder;
  const std::string image = "leftImg8bit/train/ulm/ulm_000001_000019_leftImg8bit.png";
  const std::string mask = "gtFine/train/ulm/ulm_000001_000019_gtFine_";
  write_image(folder, image, {1, 8});
  write_mask(folder, mask + "labelIds.png", {7, 33, 0, 26, 24, 29, 255, 11});
  write_image(folder, mask + "color.png", {1, 8});
  for (const char* name : {"ulm/._a_leftImg8bit.png", ".ipynb_checkpoints/a_leftImg8bit.png"})
    write_image(folder, concat("leftImg8bit/train/", name), {1, 8});
  write_mask(folder, mask + "instanceIds.png", {0, 0, 0, 0, 0, 0, 0, 0});
  const DataOptions options = options_of("cityscapes", folder);
  CHECK(class_names(options)[13] == "car");
  CHECK(class_colors(options)[0] == Color{128, 64, 128});
  CHECK(make_dataset(options, Split::kTrain, 0)->size() == 1);
  CHECK(labels_of(options, 0) == Labels{0, 18, 255, 13, 11, 255, 255, 2});

  std::filesystem::remove(folder.path() / (mask + "labelIds.png"));
  CHECK(contains(loading_failure(options), "labelTrainIds.png"));
  write_mask(folder, mask + "labelTrainIds.png", {0, 18, 255, 13, 11, 255, 255, 2});
  CHECK(labels_of(options, 0) == Labels{0, 18, 255, 13, 11, 255, 255, 2});
  DataOptions other = options;
  other.num_classes = 34;
  CHECK_THROWS_AS(make_dataset(other, Split::kTrain, 0), ConfigError);
}

TEST_CASE("ADE20K: 0 does not count and class c is c + 1; gray JPEGs are images") {
  const TempFolder folder;
  const std::string root = "ADEChallengeData2016/";
  write_image(folder, root + "images/training/ADE_train_00000001.jpg");
  write_mask(folder, root + "annotations/training/ADE_train_00000001.png", {0, 1, 150, 21});
  write_image(folder, root + "images/validation/ADE_val_00000001.jpg");
  write_mask(folder, root + "annotations/validation/ADE_val_00000001.png", {3, 3, 3, 151});
  const DataOptions options = options_of("ade20k", folder);
  CHECK(class_count(options) == 150);
  CHECK(class_names(options)[149] == "flag");
  CHECK(labels_of(options, 0) == Labels{255, 0, 149, 20});
  const std::string text = message_of<DataError>([&] { labels_of(options, 0, Split::kVal); });
  for (const char* part : {"label 151", "column 3", "0 (other) or a class in 1..150"})
    CHECK(contains(text, part));
}

TEST_CASE("what a benchmark's server calls classes is what its masks call them") {
  int layouts = 0;
  for (const char* layout : {"cityscapes", "ade20k"}) {
    CAPTURE(layout);
    const TempFolder folder;
    const DataOptions options = options_of(layout, folder);
    const Labels values = find_layout(options).file_values;
    const Size size{1, static_cast<int>(values.size())};
    write_image(folder, "leftImg8bit/train/ulm/a_leftImg8bit.png", size);
    write_mask(folder, "gtFine/train/ulm/a_gtFine_labelIds.png", values);
    write_image(folder, "images/training/a.jpg", size);
    write_mask(folder, "annotations/training/a.png", values);
    Labels classes;
    for (int c = 0; c < class_count(options); ++c) classes.push_back(static_cast<Label>(c));
    CHECK(labels_of(options, 0) == classes);
    ++layouts;
  }
  for (const DataLayout& layout : builtin_layouts()) layouts -= layout.file_values.empty() ? 0 : 1;
  CHECK(layouts == 0);
}

TEST_CASE("a list names images and masks, with tabs where names have spaces") {
  const TempFolder folder;
  write_image(folder, "my images/a b.png");
  write_mask(folder, "masks/a.png", {0, 1, 2, 255});
  write_file(folder.file("lists/train.txt"), std::string("my images/a b.png\tmasks/a.png\n"));
  write_file(folder.file("spaces.txt"), std::string("\nmy images/a b.png masks/a.png\n"));
  DataOptions options = options_of("list", folder);
  options.num_classes = 3;
  options.train = "lists/train";
  CHECK(labels_of(options, 0) == Labels{0, 1, 2, 255});
  options.train = "lists/train.txt";
  CHECK(labels_of(options, 0) == Labels{0, 1, 2, 255});
  options.train = "spaces.txt";
  for (const char* part : {"spaces.txt:2", "tab", "got 4 words"})
    CHECK(contains(loading_failure(options), part));
}

TEST_CASE("black-and-white masks are the classes 0 and 1 where the configuration says so") {
  const TempFolder folder;
  write_image(folder, "images/train/a.png");
  write_mask(folder, "masks/train/a.png", {0, 255, 255, 0});
  DataOptions options = options_of("folder", folder);
  options.num_classes = 2;
  CHECK(labels_of(options, 0) == Labels{0, 255, 255, 0});
  options.mask_values = MaskValues::kBinary;
  CHECK(labels_of(options, 0) == Labels{0, 1, 1, 0});
  write_mask(folder, "masks/train/a.png", {0, 255, 1, 0});
  CHECK(contains(loading_failure(options), "label 1 at row 0, column 2; expected 0 or 255"));
  options.num_classes = 3;
  CHECK_THROWS_AS(make_dataset(options, Split::kTrain, 0), ConfigError);
  // Layouts whose masks are known do not take the key silently.
  options.num_classes = 0;
  for (const char* layout : {"voc", "cityscapes", "ade20k", "camvid"}) {
    options.layout = layout;
    CHECK(contains(message_of<ConfigError>([&] { make_dataset(options, Split::kTrain, 0); }),
                   "leave the key out"));
  }
}

TEST_CASE("masks in RGB are read by the palette, and an unknown colour is named") {
  const TempFolder folder;
  write_image(folder, "images/train/a.png", {1, 3});
  const auto mask = folder.file("masks/train/a.png");
  write_png(mask, Image{1, 3, {0, 0, 192, 128, 128, 128, 0, 0, 0}});
  DataOptions options = options_of("folder", folder);
  options.num_classes = 2;
  CHECK(contains(loading_failure(options), "data.palette"));
  options.palette = {"#808080", "#0000c0"};
  for (const char* part : {"#000000", "row 0, column 2", "data.ignore_colors"})
    CHECK(contains(loading_failure(options), part));
  options.ignore_colors = {"#000000"};
  CHECK(labels_of(options, 0) == Labels{1, 0, 255});
  options.ignore_colors = {"#808080"};
  CHECK_THROWS_AS(make_dataset(options, Split::kTrain, 0), ConfigError);
  // A palette is for pictures, too: masks that hold classes stay what they are.
  options.ignore_colors = {};
  write_mask(folder, "masks/train/a.png", {1, 0, 255});
  CHECK(labels_of(options, 0) == Labels{1, 0, 255});
}

TEST_CASE("more than 255 classes have masks of 16 bits and another ignore_index") {
  const TempFolder folder;
  write_image(folder, "images/train/a.png", {1, 3});
  write_png_file(folder.file("masks/train/a.png"), {0, 16}, {1, 3}, {{1, 43, 0, 255, 255, 255}});
  DataOptions options = options_of("folder", folder);
  options.num_classes = 300;
  CHECK(contains(message_of<ConfigError>([&] { make_dataset(options, Split::kTrain, 0); }),
                 "data.ignore_index = 65535"));
  options.ignore_index = 65535;
  CHECK(labels_of(options, 0) == Labels{299, 255, 65535});
}

TEST_CASE("samples that cannot be read are left out on request, and named") {
  const TempFolder folder;
  for (const char* name : {"a", "b", "c"}) {
    write_image(folder, concat("images/train/", name, ".png"));
    write_mask(folder, concat("masks/train/", name, ".png"), {0, 1, 1, 0});
  }
  std::vector<std::uint8_t> bytes = read_file(folder.path() / "images/train/b.png");
  bytes.resize(bytes.size() - 9);
  write_file(folder.path() / "images/train/b.png", bytes);
  DataOptions options = options_of("folder", folder);
  options.num_classes = 2;
  CHECK_THROWS_AS(make_dataset(options, Split::kTrain, 0)->load(1), DataError);
  options.skip_broken = true;
  for (const int workers : {0, 3}) {
    options.workers = workers;
    const auto dataset = make_dataset(options, Split::kTrain, 0);
    REQUIRE(dataset->size() == 2);
    CHECK(contains(dataset->describe(1), "c.png"));
    REQUIRE(dataset->skipped().size() == 1);
    CHECK(contains(dataset->skipped()[0], "b.png"));
  }
  write_mask(folder, "masks/train/a.png", {0, 9, 1, 0});
  write_mask(folder, "masks/train/c.png", {0, 1, 1});
  CHECK(contains(loading_failure(options), "none of 3 samples can be read"));
}

TEST_CASE("a folder that cannot be listed is an error that names it") {
  const TempFolder folder;
  std::filesystem::create_directories(folder.path() / "images");
  std::filesystem::create_directory_symlink("train", folder.path() / "images/train");
  CHECK(contains(loading_failure(options_of("cityscapes", folder)), "leftImg8bit"));
  DataOptions options = options_of("folder", folder);
  options.num_classes = 2;
  CHECK(contains(loading_failure(options), "images/train"));
}

}  // namespace
}  // namespace lockstep
