#include "data/data_check.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "data/data_warnings.h"
#include "data/fixtures.h"
#include "data/repeated_samples.h"
#include "io/image_io.h"
#include "io/npy.h"
#include "io/row_writers.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// Samples that a test writes down; an image is of one gray value.
class Listed final : public Dataset {
 public:
  struct Entry {
    std::uint8_t gray = 0;
    std::vector<Label> labels;  // one row
  };
  explicit Listed(std::vector<Entry> entries) : entries_(std::move(entries)) {}

  using Dataset::load;
  std::int64_t size() const override { return static_cast<std::int64_t>(entries_.size()); }
  void load(std::int64_t index, Sample& sample) const override {
    const Entry& entry = entries_[static_cast<std::size_t>(index)];
    if (entry.labels.empty()) throw DataError(concat("picture ", index, " is torn"));
    const auto width = static_cast<int>(entry.labels.size());
    sample.image = {1, width, std::vector<std::uint8_t>(entry.labels.size() * 3, entry.gray)};
    sample.labels = {1, width, entry.labels};
  }
  Size image_size(std::int64_t index) const override {
    const Entry& entry = entries_[static_cast<std::size_t>(index)];
    if (entry.labels.empty()) throw DataError(concat("picture ", index, " is torn"));
    return {1, 4};
  }
  std::string describe(std::int64_t index) const override { return concat("picture ", index); }

 private:
  std::vector<Entry> entries_;
};

DataOptions options_with_classes(int classes) {
  DataOptions options;
  options.num_classes = classes;
  return options;
}

SplitReport examine(const Dataset& dataset, const DataOptions& options, int workers = 0) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(dataset.size()));
  std::iota(samples.begin(), samples.end(), 0);
  return examine_split(dataset, options, Split::kTrain, samples, workers);
}

bool warns(const std::vector<std::string>& warnings, const std::string& part) {
  for (const std::string& text : warnings) {
    if (contains(text, part)) return true;
  }
  return false;
}

TEST_CASE("a class that is data.ignore_index does not count, and is not missed") {
  DataOptions options;
  options.layout = "streets";
  options.size = {32, 32};
  options.train_images = 12;
  const SplitReport all = examine(*make_dataset(options, Split::kTrain, 1), options);
  options.ignore_index = 3;  // the road
  const SplitReport report = examine(*make_dataset(options, Split::kTrain, 1), options);
  REQUIRE(all.class_labels[3] > 0);
  CHECK(report.class_labels[3] == 0);
  CHECK(report.labels == all.labels - all.class_labels[3]);
  CHECK(report.ignored == all.ignored + all.class_labels[3]);
  CHECK_FALSE(warns(data_warnings(report, options), "3 (road)"));
}

TEST_CASE("a classification is told of its labels, not of masks") {
  const Listed dataset({{51, {0}}, {102, {1}}});
  DataOptions options = options_with_classes(3);
  CHECK(warns(data_warnings(examine(dataset, options), options), "num_classes and the masks"));
  options.layout = "cifar10";
  CHECK(warns(data_warnings(examine(dataset, options), options), "num_classes and the labels"));
}

TEST_CASE("a split's labels, sizes and pixels are counted") {
  const Listed dataset({{51, {0, 0, 1, 255}}, {102, {1, 1}}, {0, {}}, {7, {255, 255}}});
  for (const int workers : {0, 2}) {
    const SplitReport report = examine(dataset, options_with_classes(3), workers);
    CHECK(report.images == 4);
    CHECK(report.examined == 4);
    CHECK(report.class_labels == std::vector<std::int64_t>{2, 3, 0});
    CHECK(report.class_images == std::vector<std::int64_t>{1, 2, 0});
    CHECK(report.beside_class == std::vector<std::int64_t>{3, 5, 0});
    CHECK(report.labels == 5);
    CHECK(report.ignored == 3);
    CHECK(report.sizes.at({1, 2}) == 2);
    CHECK(report.without_labels == std::vector<std::string>{"picture 3"});
    CHECK(report.broken == std::vector<std::string>{"picture 2 is torn"});
    // Four pixels of 0.2, two of 0.4, two of 7/255.
    const double mean = (4 * 51 + 2 * 102 + 2 * 7) / 8.0;
    CHECK(report.mean[1] == doctest::Approx(mean / 255));
    const double variance = (4 * 51 * 51 + 2 * 102 * 102 + 2 * 7 * 7) / 8.0 - mean * mean;
    CHECK(report.std[2] == doctest::Approx(std::sqrt(variance) / 255));
  }
}

TEST_CASE("classes are weighted by the median frequency over their own") {
  // Frequencies where they occur: 0: 2/3, 1: 3/5; median of both 19/30.
  const Listed dataset({{0, {0, 0, 1, 255}}, {0, {1, 1}}});
  const std::vector<double> weights =
      median_frequency_weights(examine(dataset, options_with_classes(3)));
  CHECK(weights[0] == doctest::Approx(19.0 / 30 * 3 / 2));
  CHECK(weights[1] == doctest::Approx(19.0 / 30 * 5 / 3));
  CHECK(weights[2] == 0);
}

TEST_CASE("classes of images are weighted by the median frequency over all images") {
  const Listed dataset({{0, {0}}, {0, {1}}, {0, {0}}, {0, {0}}, {0, {255}}, {0, {}}});
  const std::vector<double> weights =
      median_frequency_weights(examine(dataset, options_with_classes(3)));
  CHECK(weights == std::vector<double>{0.5 / 0.75, 0.5 / 0.25, 0});
}

TEST_CASE("masks of only 0 and 255 are warned of, with the remedy") {
  const Listed dataset({{0, {0, 255, 0, 255}}, {0, {0, 0}}});
  const DataOptions options = options_with_classes(2);
  const auto warnings = data_warnings(examine(dataset, options), options);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "data.mask_values = \"binary\""));
  const Listed both({{0, {0, 255, 0, 255}}, {0, {0, 1}}});
  CHECK(data_warnings(examine(both, options), options).empty());
}

TEST_CASE("masks of two conventions are warned of") {
  const DataOptions options = options_with_classes(2);
  const Listed mixed({{0, {0, 255, 0}}, {1, {0, 255, 0}}, {2, {0, 1, 0}}, {3, {0, 1, 0}}});
  const auto warnings = data_warnings(examine(mixed, options), options);
  CHECK(warns(warnings, "2 masks (of picture 0) hold 0 and 255, 2 masks (of picture 2)"));
  // A border of 255 around an object is one convention.
  const Listed borders({{0, {0, 255, 0}}, {1, {0, 255, 1}}, {2, {0, 1, 0}}, {3, {0, 1, 0}}});
  CHECK(data_warnings(examine(borders, options), options).empty());
}

TEST_CASE("palettes that differ from file to file are warned of") {
  const TempFolder folder;
  const auto write = [&](const std::string& name, std::vector<Color> colors) {
    write_png(folder.file("images/train/" + name), random_image({1, 3}, 1));
    write_png(folder.file("masks/train/" + name), LabelMap{1, 3, {0, 1, 1}}, colors);
  };
  write("a.png", {Color{0, 0, 0}, Color{255, 0, 0}, Color{1, 1, 1}});
  write("b.png", {Color{0, 0, 0}, Color{255, 0, 0}, Color{2, 2, 2}});  // of no pixel
  DataOptions options = options_with_classes(2);
  options.root = folder.path();
  const auto warnings = [&] {
    return data_warnings(examine(*make_dataset(options, Split::kTrain, 0), options), options);
  };
  CHECK(warnings().empty());
  options.palette = {"#ff0000", "#000000"};
  REQUIRE(warnings().size() == 1);
  CHECK(contains(warnings()[0], "class 0 is #000000 in 2 masks"));
  CHECK(contains(warnings()[0], "the colour of 1; the index counts"));
  options.palette = {"#000000", "#ff0000"};
  CHECK(warnings().empty());
  options.palette.clear();
  write("c.png", {Color{0, 0, 0}, Color{0, 255, 0}});
  REQUIRE(warnings().size() == 1);
  for (const char* part : {"class 1 is #00ff00 in 1 mask", "c.png", "#ff0000 in 2 masks", "a.png"})
    CHECK(contains(warnings()[0], part));
}

TEST_CASE("a TIFF's palette is one, too") {
  const TempFolder folder;
  const auto write = [&](const std::string& name, std::vector<Color> colors) {
    write_png(folder.file(concat("images/train/", name, ".png")), random_image({1, 3}, 1));
    const auto map =
        tiff_map(folder.file(concat("masks/train/", name, ".tif")), {1, 3}, colors, false, {});
    map->write(std::vector<Label>{0, 1, 1});
    map->close();
  };
  write("a", {Color{0, 0, 0}, Color{255, 0, 0}});
  DataOptions options = options_with_classes(2);
  options.root = folder.path();
  const auto warnings = [&] {
    return data_warnings(examine(*make_dataset(options, Split::kTrain, 0), options), options);
  };
  CHECK(warnings().empty());
  write("b", {Color{0, 0, 0}, Color{0, 255, 0}});
  REQUIRE(warnings().size() == 1);
  CHECK(contains(warnings()[0], "class 1 is #00ff00 in 1 mask"));
}

TEST_CASE("alpha that is dropped, and images of several types, are warned of") {
  const TempFolder folder;
  write_png_file(folder.file("images/train/a.png"), {.color_type = 6}, {1, 2},
                 {{1, 2, 3, 255, 4, 5, 6, 255}});
  write_png(folder.file("masks/train/a.png"), LabelMap{1, 2, {0, 1}});
  DataOptions options = options_with_classes(2);
  options.root = folder.path();
  const auto warnings = [&] {
    return data_warnings(examine(*make_dataset(options, Split::kTrain, 0), options), options);
  };
  REQUIRE(warnings().size() == 1);
  for (const char* part : {"1 images", "a.png", "alpha, which is dropped", "data.channels = 4"})
    CHECK(contains(warnings()[0], part));
  write_png_file(folder.file("images/train/gray.png"), {.color_type = 4}, {1, 2}, {{1, 255, 9, 0}});
  write_png(folder.file("masks/train/gray.png"), LabelMap{1, 2, {0, 1}});
  for (const char* part : {"2 images", "data.channels = 4 (of gray 2)"})
    CHECK(contains(warnings()[0], part));
  write_png_file(folder.file("images/train/b.png"), {.color_type = 0, .bit_depth = 16}, {1, 2},
                 {{0, 1, 15, 255}});
  write_png(folder.file("masks/train/b.png"), LabelMap{1, 2, {0, 1}});
  REQUIRE(warnings().size() == 2);
  for (const char* part : {"of one type", "a.png (uint8)", "b.png (uint16)"})
    CHECK(contains(warnings()[1], part));
}

/// Images of floats with one channel, whose masks have class 1 on the right half.
struct Floats {
  TempFolder folder;
  DataOptions options = options_with_classes(2);

  explicit Floats(const std::vector<std::vector<float>>& images) {
    options.root = folder.path();
    options.channels = 1;
    for (std::size_t i = 0; i < images.size(); ++i) {
      write_npy(folder.file(concat("images/train/", i, ".npy")), {1, 4}, images[i]);
      write_png(folder.file(concat("masks/train/", i, ".png")), LabelMap{1, 4, {0, 0, 1, 1}});
    }
  }
  SplitReport report() const { return examine(*make_dataset(options, Split::kTrain, 0), options); }
};

TEST_CASE("labels of pixels that are not there do not count") {
  const float gap = std::nanf("");
  const Floats data({{gap, gap, 3, INFINITY}, {gap, gap, gap, gap}, {1, 2, 3, 4}});
  const SplitReport report = data.report();
  CHECK(report.class_labels == std::vector<std::int64_t>{2, 3});
  CHECK(report.ignored == 7);
  CHECK(report.most == std::vector<double>{4});
  REQUIRE(report.without_labels.size() == 1);
  CHECK(contains(report.without_labels[0], "1.npy"));
  CHECK(report.hashes[1] == 0);
  CHECK(median_frequency_weights(report)[0] == doctest::Approx(0.55 / 0.5));
}

TEST_CASE("a value that often stands for nothing is warned of, until it is data.nodata") {
  for (const auto& [value, text] : {std::pair{-9999.0F, "data.nodata = -9999"},
                                    {-3.4028235e38F, "data.nodata = -3.4028235e+38"},
                                    {1e30F, "data.nodata = 1e+30"}}) {
    Floats data({{value, 0.1F, 0.2F, 0.3F}});
    CHECK(warns(data_warnings(data.report(), data.options), text));
    data.options.nodata = value;
    CHECK(data_warnings(data.report(), data.options).empty());
  }
  const Floats data({{-32768, 1, 2, 3}});
  SplitReport report = data.report();
  CHECK(data_warnings(report, data.options).empty());
  report.types = {{PixelType::kInt16, {}}};
  CHECK(warns(data_warnings(report, data.options), "data.nodata = -32768"));
}

TEST_CASE("images of 0 and 1 are warned of where they count as 8 bits") {
  const Listed dataset({{0, {0, 1}}, {1, {0, 1}}});
  DataOptions options = options_with_classes(2);
  const auto warnings = [&] { return data_warnings(examine(dataset, options), options); };
  REQUIRE(warnings().size() == 1);
  CHECK(contains(warnings()[0], "Multiply the images by 255"));
  options.normalize = Normalization::kDataset;
  CHECK(warnings().empty());
}

/// An uncompressed TIFF of one row, of 8 bits, or of one where `bytes` are fewer than `width`.
void write_tiff(const std::filesystem::path& path, std::uint8_t width, bool white_is_zero,
                const std::string& bytes) {
  const auto size = static_cast<std::uint8_t>(bytes.size());
  const std::uint8_t bits = size < width ? 1 : 8, photometric = white_is_zero ? 0 : 1;
  const std::vector<std::pair<std::uint16_t, std::uint8_t>> tags{
      {256, width}, {257, 1}, {258, bits}, {259, 1},   {262, photometric},
      {273, 122},   {277, 1}, {278, 1},    {279, size}};
  std::string file("II*\0\x08\0\0\0\x09\0", 10);
  for (const auto& [tag, value] : tags) {
    file += {static_cast<char>(tag & 255),
             static_cast<char>(tag >> 8),
             3,
             0,
             1,
             0,
             0,
             0,
             static_cast<char>(value),
             0,
             0,
             0};
  }
  write_file(path, file + std::string(4, '\0') + bytes);
}

TEST_CASE("a TIFF with 0 for white: masks are turned round, of images it is said") {
  const TempFolder folder;
  for (const bool white_is_zero : {false, true}) {
    write_tiff(folder.file(concat("images/train/", white_is_zero, ".tif")), 2, white_is_zero,
               "\x10\x80");
    write_tiff(folder.file(concat("masks/train/", white_is_zero, ".tif")), 2, white_is_zero,
               white_is_zero ? std::string("\xFF\0", 2) : std::string("\0\xFF", 2));
  }
  DataOptions options = options_with_classes(2);
  options.root = folder.path();
  options.channels = 1;
  options.mask_values = MaskValues::kBinary;
  const auto load = [&](std::int64_t index) {
    return make_dataset(options, Split::kTrain, 0)->load(index);
  };
  for (const std::int64_t index : {0, 1}) {
    CHECK(load(index).labels.pixels == std::vector<Label>{0, 1});
    CHECK(load(index).image.pixels == std::vector<std::uint8_t>{0x10, 0x80});
  }
  write_tiff(folder.file("masks/train/1.tif"), 2, true, "\x80");
  CHECK(load(1).labels.pixels == std::vector<Label>{0, 1});
  const auto warnings =
      data_warnings(examine(*make_dataset(options, Split::kTrain, 0), options), options);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "1.tif) have 0 for white"));
}

TEST_CASE("samples that are listed twice, or in both splits, are told without reading them") {
  const TempFolder folder;
  for (const char* name : {"a.png", "b.png"}) write_file(folder.file(name), std::string("torn"));
  write_file(folder.file("train.txt"), std::string("a.png a.png\na.png b.png\n"));
  write_file(folder.file("val.txt"), std::string("b.png b.png\n"));
  DataOptions options = options_with_classes(2);
  options.layout = "list";
  options.root = folder.path();
  const auto warnings = [&] {
    return repetition_warnings(*make_dataset(options, Split::kTrain, 0),
                               *make_dataset(options, Split::kVal, 0), options);
  };
  REQUIRE(warnings().size() == 1);
  CHECK(contains(warnings()[0], "data (train): 1 sample is listed before, such as"));
  write_file(folder.file("val.txt"), std::string("b.png b.png\na.png a.png\n"));
  REQUIRE(warnings().size() == 2);
  CHECK(contains(warnings()[1], "1 validation images are training images, too, such as"));
}

TEST_CASE("a validation image is a training image once, however often both repeat") {
  const Listed train(std::vector<Listed::Entry>(50, {7, {0, 0}}));
  const Listed val(std::vector<Listed::Entry>(40, {7, {0, 0}}));
  const DataOptions options = options_with_classes(2);
  const auto found = find_duplicates(train, examine(train, options), val, examine(val, options));
  CHECK(found.size() == 40);
  CHECK(found[39] == std::pair<std::int64_t, std::int64_t>{0, 39});
}

TEST_CASE("classes that never occur are warned of when enough was looked at") {
  std::vector<Listed::Entry> entries(20, {0, {0, 2}});
  const Listed dataset(entries);
  const DataOptions options = options_with_classes(3);
  CHECK(warns(data_warnings(examine(dataset, options), options), "class 1 (class_1) does not"));
  const auto part = [&](int count) {
    std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
    std::iota(samples.begin(), samples.end(), 0);
    return data_warnings(examine_split(dataset, options, Split::kTrain, samples, 0), options);
  };
  CHECK(part(11).empty());
  CHECK(warns(part(12), "12 images looked at, of 20"));
  const Listed whole({{0, {0, 1, 2}}});
  CHECK(data_warnings(examine(whole, options), options).empty());
}

TEST_CASE("what cannot be read and what has no labels is warned of") {
  const Listed dataset({{0, {0, 1}}, {0, {}}, {0, {255, 255}}});
  const DataOptions options = options_with_classes(2);
  const auto warnings = data_warnings(examine(dataset, options), options);
  CHECK(warns(warnings, "data.skip_broken"));
  CHECK(warns(warnings, "no label that counts: picture 2"));
}

TEST_CASE("a crop that no image fills half is warned of, in training alone") {
  const Listed dataset({{0, {0, 1, 0, 1}}, {0, {0, 1}}});  // 1x4 and 1x2
  DataOptions options = options_with_classes(2);
  const SplitReport report = examine(dataset, options);
  const auto crop = [&](Size size) {
    options.augment = AugmentOptions{.crop = size};
    return data_warnings(report, options);
  };
  CHECK(crop({1, 8}).empty());
  CHECK(crop({1, 4}).empty());
  REQUIRE(crop({1, 10}).size() == 1);
  CHECK(contains(crop({1, 10})[0], "data.augment.crop = [1, 10]"));
  CHECK(contains(crop({2, 10})[0], "at most 20 % of a training sample is image"));
  options.augment->scale_hi = 2;  // 2x8 in 2x10
  CHECK(data_warnings(report, options).empty());
  crop({2, 10});
  options.augment->crop_area = {0.1F, 1.0F};  // random-resized crops are filled
  CHECK(data_warnings(report, options).empty());
  crop({2, 10});
  options.resize = Size{2, 5};
  CHECK(data_warnings(report, options).empty());
  options.resize.reset();
  SplitReport val = report;
  val.name = options.val;
  CHECK(data_warnings(val, options).empty());
}

TEST_CASE("equal images of both splits are found, whatever their labels") {
  const Listed train({{1, {0, 0}}, {2, {0, 0}}, {3, {0, 0, 0}}});
  const Listed val({{3, {1, 1}}, {2, {1, 1}}, {2, {1, 1}}});
  const DataOptions options = options_with_classes(2);
  using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;
  CHECK(find_duplicates(train, examine(train, options), val, examine(val, options)) ==
        Pairs{{1, 1}, {1, 2}});
}

TEST_CASE("samples are taken evenly, and fewer of large images") {
  const Listed dataset(std::vector<Listed::Entry>(10, {0, {0, 0}}));
  CHECK(sample_evenly(dataset, 64).size() == 10);
  CHECK(sample_evenly(dataset, 5) == std::vector<std::int64_t>{0, 2, 4, 6, 8});
  CHECK(sample_evenly(Listed({{0, {}}, {0, {0, 0}}}), 64).size() == 2);
  CHECK(sample_evenly(Listed(std::vector<Listed::Entry>(1)), 64).size() == 1);
}

}  // namespace
}  // namespace lockstep
