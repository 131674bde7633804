// Layouts that give an image one class, and what is done to such images on their way.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "data/augment.h"
#include "data/fixtures.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"

namespace lockstep {
namespace {

constexpr std::size_t kRecord = 1 + 3 * 1024;

Image plain(Size size, std::uint8_t r, std::uint8_t g, std::uint8_t b) {
  Image image{size.height, size.width, {}};
  for (int i = 0; i < size.height * size.width; ++i) {
    image.pixels.insert(image.pixels.end(), {r, g, b});
  }
  return image;
}

/// Three classes of 2, 1 and 1 images in training, of which validation has two.
DataOptions image_folder_options(const TempFolder& folder) {
  write_png(folder.file("train/cat/b.png"), plain({6, 8}, 1, 1, 1));
  write_jpeg_file(folder.file("train/cat/deeper/a.JPG"), plain({8, 8}, 2, 2, 2));
  write_png(folder.file("train/ant/x.png"), plain({6, 8}, 3, 3, 3));
  write_png(folder.file("train/dog/x.png"), plain({6, 8}, 4, 4, 4));
  write_file(folder.file("train/dog/notes.txt"), std::string("not an image"));
  for (const char* name : {"train/dog/._x.png", "train/dog/.ipynb_checkpoints/x-checkpoint.png"})
    write_file(folder.file(name), std::string("hidden"));
  write_png(folder.file("val/dog/x.png"), plain({10, 20}, 5, 5, 5));
  write_png(folder.file("val/ant/x.png"), plain({20, 10}, 6, 6, 6));
  DataOptions data;
  data.layout = "imagefolder";
  data.root = folder.path();
  return data;
}

/// Records whose label is (first + i) mod 10, red 10 * label, green the column, blue the row.
std::string records(int first, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    const int label = (first + i) % 10;
    bytes += static_cast<char>(label);
    bytes += std::string(1024, static_cast<char>(10 * label));
    for (int p = 0; p < 1024; ++p) bytes += static_cast<char>(p % 32);
    for (int p = 0; p < 1024; ++p) bytes += static_cast<char>(p / 32);
  }
  return bytes;
}

DataOptions cifar_options(const TempFolder& folder) {
  for (int i = 1; i <= 5; ++i) {
    const std::string name = concat("cifar-10-batches-bin/data_batch_", i, ".bin");
    write_file(folder.file(name), records(2 * i, 2));
  }
  write_file(folder.file("cifar-10-batches-bin/test_batch.bin"), records(7, 3));
  DataOptions data;
  data.layout = "cifar10";
  data.root = folder.path();
  return data;
}

DataOptions shape_options(int images = 20) {
  DataOptions data;
  data.layout = "shapes";
  data.size = {24, 32};
  data.train_images = images;
  data.val_images = 7;
  return data;
}

Label label_of(const Dataset& dataset, std::int64_t index) {
  const Sample sample = dataset.load(index);
  REQUIRE(sample.labels.pixels.size() == 1);
  return sample.labels.pixels.front();
}

std::string refusal(const DataOptions& data, Split split = Split::kTrain) {
  return message_of<Error>([&] { make_dataset(data, split, 0); });
}

}  // namespace

TEST_CASE("imagefolder: classes are training's folders in order, images at any depth") {
  const TempFolder folder;
  const DataOptions data = image_folder_options(folder);
  CHECK(class_count(data) == 3);
  CHECK(class_names(data) == std::vector<std::string>{"ant", "cat", "dog"});
  const auto train = make_dataset(data, Split::kTrain, 0);
  REQUIRE(train->size() == 4);
  CHECK(contains(train->describe(1), "cat/b.png"));
  CHECK(contains(train->describe(2), "cat/deeper/a.JPG"));
  CHECK(train->image_size(2) == Size{8, 8});
  std::vector<Label> labels;
  for (std::int64_t i = 0; i < 4; ++i) labels.push_back(label_of(*train, i));
  CHECK(labels == std::vector<Label>{0, 1, 1, 2});
  CHECK(train->load(1).image.pixels == plain({6, 8}, 1, 1, 1).pixels);
  // "dog" is class 2 though validation has no "cat".
  const auto val = make_dataset(data, Split::kVal, 0);
  REQUIRE(val->size() == 2);
  CHECK(label_of(*val, 0) == 0);
  CHECK(label_of(*val, 1) == 2);
}

TEST_CASE("imagefolder: named classes need no training split, and no folder shifts their numbers") {
  const TempFolder folder;
  DataOptions data = image_folder_options(folder);
  data.classes = class_names(data);
  data.num_classes = 3;
  std::filesystem::remove_all(folder.file("train/cat"));
  CHECK(label_of(*make_dataset(data, Split::kTrain, 0), 1) == 2);  // "dog" stays class 2
  std::filesystem::remove_all(folder.file("train"));
  const auto val = make_dataset(data, Split::kVal, 0);
  CHECK(label_of(*val, 0) == 0);
  CHECK(label_of(*val, 1) == 2);
  std::filesystem::remove_all(folder.path());
  CHECK(class_names(data) == std::vector<std::string>{"ant", "cat", "dog"});
  data.classes = {};
  CHECK(contains(message_of<DataError>([&] { class_names(data); }),
                 "without the data, data.classes = [...] names the 3 classes"));
}

TEST_CASE("imagefolder: names of one's own are those of the folders in their order") {
  const TempFolder folder;
  DataOptions data = image_folder_options(folder);
  data.classes = {"Ameise", "Katze", "Hund"};
  CHECK(label_of(*make_dataset(data, Split::kVal, 0), 1) == 2);
  CHECK(class_names(data)[1] == "Katze");
}

TEST_CASE("imagefolder: what does not fit is refused and named") {
  const TempFolder folder;
  DataOptions data = image_folder_options(folder);
  data.num_classes = 2;
  CHECK(contains(refusal(data), "has 3 folders, one for each class"));
  data.num_classes = 5;  // a head that has room for more
  CHECK(class_names(data)[4] == "class_4");
  CHECK(make_dataset(data, Split::kTrain, 0)->size() == 4);
  data.num_classes = 0;
  data.val = "test";
  CHECK(contains(refusal(data, Split::kVal), "test; it does not exist ("));
  CHECK(contains(refusal(data, Split::kVal), "data.val_share"));
  data.val = "val";
  write_png(folder.file("val/bird/x.png"), plain({6, 8}, 1, 1, 1));
  CHECK(
      contains(refusal(data, Split::kVal), "val/bird is not a class: none of the 3 has this name"));
  write_file(folder.file("train/dog/photo.webp"), std::string("RIFF"));
  const auto with_other = make_dataset(data, Split::kTrain, 0);
  REQUIRE(with_other->left_out().size() == 1);
  CHECK(contains(with_other->left_out()[0], "photo.webp"));
  std::filesystem::create_directory_symlink("..", folder.file("train/dog/loop"));
  CHECK(contains(refusal(data), "cannot be read: "));
  const TempFolder empty;
  data.root = empty.path();
  CHECK(contains(refusal(data), "expected the folder"));
  CHECK_FALSE(contains(refusal(data), "data.val_share"));
  write_png(empty.file("train/only.png"), plain({6, 8}, 1, 1, 1));
  CHECK(contains(refusal(data), "expected a folder for each class, found none"));
}

TEST_CASE("cifar10: records of five files in order, planes as pixels") {
  const TempFolder folder;
  DataOptions data = cifar_options(folder);
  CHECK(class_names(data)[9] == "truck");
  const auto train = make_dataset(data, Split::kTrain, 0);
  REQUIRE(train->size() == 10);
  for (std::int64_t i = 0; i < 10; ++i) CHECK(label_of(*train, i) == (2 + i) % 10);
  CHECK(contains(train->describe(3), "data_batch_2.bin, record 1"));
  const Image image = train->load(3).image;
  CHECK(Size{image.height, image.width} == train->image_size(3));
  const std::size_t pixel = (5 * 32 + 9) * 3;  // row 5, column 9
  CHECK(image.pixels[pixel] == 50);
  CHECK(image.pixels[pixel + 1] == 9);
  CHECK(image.pixels[pixel + 2] == 5);
  CHECK(make_dataset(data, Split::kVal, 0)->size() == 3);
  data.root /= "cifar-10-batches-bin";  // the folder itself will do
  data.val = "test";
  CHECK(label_of(*make_dataset(data, Split::kVal, 0), 2) == 9);
}

TEST_CASE("cifar10: files that are missing, cut or of another format") {
  const TempFolder folder;
  DataOptions data = cifar_options(folder);
  const auto file = folder.file("cifar-10-batches-bin/data_batch_4.bin");
  write_file(file, records(0, 2).substr(0, 2 * kRecord - 1));
  CHECK(contains(refusal(data), "data_batch_4.bin: expected records of 3073 bytes, got 6145"));
  std::string wrong = records(0, 2);
  wrong[kRecord] = 100;
  write_file(file, wrong);
  const auto dataset = make_dataset(data, Split::kTrain, 0);
  CHECK(contains(message_of<DataError>([&] { dataset->load(7); }),
                 "data_batch_4.bin, record 1: class 100, expected 0..9"));
  std::filesystem::remove(file);
  CHECK(contains(refusal(data), "data_batch_4.bin: the files of CIFAR-10's binary version are"));
  data.train = "all";
  CHECK(contains(refusal(data), "there is no split 'all' of layout \"cifar10\""));
  data.num_classes = 100;
  CHECK(contains(refusal(data), "layout \"cifar10\" has 10 classes"));
}

TEST_CASE("shapes: a function of seed, split and index; all classes alike") {
  const DataOptions data = shape_options();
  const auto one = make_dataset(data, Split::kTrain, 1),
             again = make_dataset(data, Split::kTrain, 1);
  const auto other = make_dataset(data, Split::kTrain, 2), val = make_dataset(data, Split::kVal, 1);
  CHECK(class_count(data) == 10);
  for (std::int64_t i = 0; i < 20; ++i) {
    const Sample sample = one->load(i);
    CHECK(sample.labels.pixels.front() == i % 10);
    CHECK(sample.image.pixels == again->load(i).image.pixels);
    CHECK(sample.image.pixels != other->load(i).image.pixels);
    if (i < val->size()) CHECK(sample.image.pixels != val->load(i).image.pixels);
    // There is something to see.
    const auto [lo, hi] =
        std::minmax_element(sample.image.pixels.begin(), sample.image.pixels.end());
    CHECK(int{*hi} - int{*lo} > 20);
  }
}

TEST_CASE("batches of images with a class each have a label per image") {
  DataOptions data = shape_options();
  data.augment = AugmentOptions{.crop = Size{16, 16},
                                .crop_area = std::array{0.2F, 1.0F},
                                .hflip = 0.5F,
                                .photometric = true};
  std::vector<Batch> batches;
  for (const int workers : {0, 3}) {
    data.workers = workers;
    TrainLoader loader(data, {.batch = 6, .drop_last = false, .seed = 1});
    for (int i = 0; i < 4; ++i) {
      const Batch& batch = loader.next();
      REQUIRE(batch.labels.size() == batch.samples.size());
      CHECK(batch.images.size() == batch.samples.size() * 16 * 16 * 3);
      std::vector<std::int64_t> counts(10);
      for (std::size_t n = 0; n < batch.labels.size(); ++n) {
        CHECK(batch.labels[n] == batch.samples[n] % 10);
        ++counts[batch.labels[n]];
      }
      CHECK(batch.class_pixels == counts);
      if (workers == 0) {
        batches.push_back(batch);
      } else {
        CHECK(batch.images == batches[static_cast<std::size_t>(i)].images);
      }
    }
  }
}

TEST_CASE(
    "validation of images with a class each: single ones and several at a time are the same") {
  const ValLoader loader(shape_options(), 3);
  CHECK(loader.task() == Task::kClassification);
  CHECK(loader.one_size());
  const Batch together = loader.load(2, 3, 1);
  REQUIRE(together.labels == std::vector<Label>{2, 3, 4});
  std::vector<float> images;
  for (std::int64_t i = 2; i < 5; ++i) {
    const Batch one = loader.load(i, 1, 1);
    images.insert(images.end(), one.images.begin(), one.images.end());
  }
  CHECK(together.images == images);
}

TEST_CASE("val_resize and val_crop: the shorter side, then the central part, of validation only") {
  const TempFolder folder;
  DataOptions data = image_folder_options(folder);
  CHECK_FALSE(ValLoader(data, 0).one_size());  // 20x10 and 10x20
  data.val_resize = 20;
  CHECK(ValLoader(data, 0).load(0, 1, 1).size == Size{40, 20});
  CHECK(ValLoader(data, 0).load(1, 1, 1).size == Size{20, 40});
  data.val_crop = Size{16, 16};
  const ValLoader cropped(data, 0);
  CHECK(cropped.one_size());
  CHECK(cropped.load(0, 2, 1).size == Size{16, 16});
  // Rows 4 to 7 of an image whose rows are its numbers.
  Image rows{12, 8, {}};
  for (int i = 0; i < 12 * 8 * 3; ++i) rows.pixels.push_back(static_cast<std::uint8_t>(i / 24));
  write_png(folder.file("val/ant/x.png"), rows);
  data.val_resize.reset();
  data.val_crop = Size{4, 4};
  data.mean = {0, 0, 0};
  data.std = {1, 1, 1};
  const Batch part = ValLoader(data, 0).load(0, 1, 1);
  CHECK(part.images.front() == doctest::Approx(4.0 / 255));
  CHECK(part.images.back() == doctest::Approx(7.0 / 255));
  data.resize = Size{8, 8};
  data.val_resize = 4;
  CHECK(contains(message_of<ConfigError>([&] { ValLoader(data, 0); }), "data.val_resize both say"));
}

TEST_CASE("random-resized crop: parts of the area and shape that were asked for") {
  AugmentOptions options{.crop = Size{50, 100}, .crop_area = std::array{0.25F, 0.5F}};
  const Size image{200, 300};
  double smallest = 1, largest = 0, narrowest = 10, widest = 0;
  std::set<int> tops;
  for (int sample = 0; sample < 300; ++sample) {
    const AugmentDraw draw = draw_augment(options, image, 1, sample, 2);
    CHECK(draw.window.size == Size{50, 100});
    REQUIRE(draw.window.top + 50 <= draw.scaled.height);
    REQUIRE(draw.window.left + 100 <= draw.scaled.width);
    const double height = 50.0 * image.height / draw.scaled.height;
    const double width = 100.0 * image.width / draw.scaled.width;
    const double area = height * width / (200.0 * 300.0);
    smallest = std::min(smallest, area), largest = std::max(largest, area);
    narrowest = std::min(narrowest, width / height), widest = std::max(widest, width / height);
    tops.insert(static_cast<int>(draw.window.top * height / 50));
  }
  CHECK(smallest == doctest::Approx(0.25).epsilon(0.05));
  CHECK(largest == doctest::Approx(0.5).epsilon(0.05));
  CHECK(narrowest == doctest::Approx(0.75).epsilon(0.05));
  CHECK(widest == doctest::Approx(4.0 / 3).epsilon(0.05));
  CHECK(tops.size() > 30);

  // The other draws are what they are without it.
  const AugmentDraw with = draw_augment(options, image, 1, 5, 2);
  options.crop_area.reset();
  const AugmentDraw without = draw_augment(options, image, 1, 5, 2);
  CHECK(with.flip == without.flip);
  CHECK(with.hue_shift == without.hue_shift);
}

TEST_CASE("random-resized crop of an image no part of which has the shape: the largest that has") {
  const AugmentOptions options{.crop = Size{10, 10}, .crop_area = std::array{0.9F, 1.0F}};
  const AugmentDraw wide = draw_augment(options, {20, 400}, 1, 0, 0);
  CHECK(wide.scaled.height == 10);
  CHECK(wide.scaled.width == doctest::Approx(400.0 * 10 / 26).epsilon(0.01));
  const AugmentDraw high = draw_augment(options, {400, 20}, 1, 0, 0);
  CHECK(high.scaled.width == 10);
}

}  // namespace lockstep
