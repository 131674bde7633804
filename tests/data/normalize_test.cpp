#include "data/normalize.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/fixtures.h"
#include "data/sample_store.h"
#include "io/image_io.h"
#include "io/npy.h"
#include "io/raw_pixels.h"
#include "io/row_source.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

const fs::path kOtherImages = "../shared/images";

bool without_images() {
  if (fs::is_regular_file(kOtherImages / "expected.json")) return false;
  std::puts("SKIPPED: statistics of images: ../shared/images is not there");
  return true;
}

nlohmann::json numbers_of(const char* of) {
  return nlohmann::json::parse(std::ifstream(kOtherImages / "expected.json"))
      .at("arithmetic")
      .at(of);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Two classes in the layout folder.
DataOptions options_in(const TempFolder& folder, int channels) {
  DataOptions options;
  options.layout = "folder";
  options.root = folder.path();
  options.num_classes = 2;
  options.channels = channels;
  options.workers = 0;
  return options;
}

/// The image's mask is a column of class 0 and others of class 1.
void add_mask(const TempFolder& folder, const std::string& stem, Size size) {
  LabelMap labels{size.height, size.width, {}};
  for (int i = 0; i < size.height * size.width; ++i)
    labels.pixels.push_back(static_cast<Label>(i % size.width == 0 ? 0 : 1));
  for (const char* split : {"train", "val"})
    write_png(folder.file("masks/" + std::string(split) + "/" + stem + ".png"), labels);
}

void add_case(const TempFolder& folder, const std::string& file, int channels) {
  const fs::path path = kOtherImages / file;
  for (const char* split : {"train", "val"}) {
    const fs::path to =
        folder.file("images/" + std::string(split) + "/" + path.filename().string());
    fs::copy_file(path, to);
  }
  add_mask(folder, path.stem().string(), read_image_size(path, {.channels = channels}));
}

/// An array of floats [height, width, channels] as an image of both splits.
void add_floats(const TempFolder& folder, const std::string& stem, Size size, int channels,
                const std::vector<float>& values) {
  for (const char* split : {"train", "val"}) {
    write_npy(folder.file("images/" + std::string(split) + "/" + stem + ".npy"),
              {size.height, size.width, channels}, values);
  }
  add_mask(folder, stem, size);
}

TEST_CASE("a data set's mean and deviation are of all pixels that are there") {
  if (without_images()) return;
  const nlohmann::json about = numbers_of("statistics");
  const TempFolder folder;
  std::vector<PixelMoments> all(2);
  for (const std::string file : about.at("files")) {
    add_case(folder, file, 2);
    Image image;
    read_image(kOtherImages / file, image,
               {.channels = 2, .nodata = about.at("nodata").get<double>()});
    const std::vector<PixelMoments> moments = moments_of(image);
    for (std::size_t c = 0; c < 2; ++c) all[c].add(moments[c]);
  }
  DataOptions options = options_in(folder, 2);
  options.nodata = about.at("nodata").get<double>();
  for (const int workers : {0, 1, 3}) {
    DataOptions settled = options;
    settled.workers = workers;
    CHECK(contains(settle_normalization(settled, 0), "3 images of uint16"));
    CHECK(settled.normalize == Normalization::kDataset);
    CHECK(settled.pixels == PixelType::kUint16);
    for (std::size_t c = 0; c < 2; ++c) {
      CHECK(settled.mean[c] == doctest::Approx(about.at("mean")[c].get<float>()));
      CHECK(settled.std[c] == doctest::Approx(about.at("std")[c].get<float>()));
    }
  }
  for (std::size_t c = 0; c < 2; ++c) {
    CHECK(all[c].count == about.at("pixels").get<double>());
    CHECK(std::abs(all[c].mean - about.at("mean")[c].get<double>()) < 1e-9);
    CHECK(std::abs(all[c].deviation() - about.at("std")[c].get<double>()) < 1e-9);
    CHECK(all[c].least == about.at("min")[c].get<double>());
    CHECK(all[c].most == about.at("max")[c].get<double>());
  }
}

TEST_CASE("an image is normalised by its own numbers, and a window of it is one of the whole") {
  if (without_images()) return;
  const nlohmann::json about = numbers_of("normalize");
  for (const auto& [kind, array] : {std::pair{Normalization::kImage, "image"},
                                    {Normalization::kPercentile, "percentile_1_99"}}) {
    Image image, expected;
    read_image(kOtherImages / about.at("file").get<std::string>(), image, {.channels = 2});
    read_image(kOtherImages / about.at(array).get<std::string>(), expected, {.channels = 2});
    DataOptions options;
    options.channels = 2;
    options.normalize = kind;
    prepare_image(options, "image", image);
    REQUIRE(image.floats.size() == expected.floats.size());
    double most = 0;
    for (std::size_t i = 0; i < image.floats.size(); ++i)
      most = std::max(most, static_cast<double>(std::abs(image.floats[i] - expected.floats[i])));
    CHECK(most < about.at("tolerance").get<double>());
  }
}

TEST_CASE("percentiles are values that occur") {
  const Image image{1, 5, {}, 1, PixelType::kUint16, {30, 10, 50, 20, 40}};
  const std::vector<float> percents{0, 20, 21, 50, 100};
  CHECK(percentiles_of(bands_of(image), std::vector{0}, percents).front() ==
        std::vector<float>{10, 10, 20, 30, 50});
}

TEST_CASE("an image in bands has the numbers of the whole, to the bit") {
  Image image{60, 7, {}, 2, PixelType::kFloat32};
  for (int i = 0; i < 60 * 7 * 2; ++i) {
    const auto value = static_cast<float>((i * 7919) % 1013) / 7 - 60;
    image.floats.push_back(i % 11 == 0 ? std::nanf("") : value);
  }
  Image words{60, 7, {}, 2, PixelType::kUint16};
  for (const float value : image.floats)
    words.words.push_back(std::isnan(value) ? 0 : static_cast<std::uint16_t>(value + 100));
  for (const Image* whole : {&image, &words}) {
    const auto source = rows_of(*whole);
    const ImageBands bands = [&](const auto& use) {
      Image band;
      for (int y = 0; y < 60; y += 7) {
        source->read(y, std::min(7, 60 - y), band);
        use(band);
      }
    };
    const std::vector<PixelMoments> one = moments_of(*whole), other = moments_of(bands);
    for (std::size_t c = 0; c < 2; ++c) {
      CHECK(one[c].count == other[c].count);
      CHECK(one[c].mean == other[c].mean);
      CHECK(one[c].m2 == other[c].m2);
      CHECK(one[c].least == other[c].least);
      CHECK(one[c].most == other[c].most);
    }
    // And percentiles are what sorting gives.
    const std::vector<float> percents{0, 1, 33, 50, 99, 100};
    const std::vector<int> channels{1};
    const auto found = percentiles_of(bands, channels, percents).front();
    std::vector<float> sorted;
    with_values(*whole, [&](const auto& values) {
      for (std::size_t i = 1; i < values.size(); i += 2)
        if (!std::isnan(static_cast<float>(values[i])))
          sorted.push_back(static_cast<float>(values[i]));
    });
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < percents.size(); ++i) {
      const double share = static_cast<double>(percents[i]) / 100;
      const double place = std::ceil(share * static_cast<double>(sorted.size()));
      CHECK(found[i] == sorted[static_cast<std::size_t>(std::max(place, 1.0)) - 1]);
    }
  }
}

TEST_CASE("what is not there is the mean, and its label does not count") {
  const TempFolder folder;
  const float gap = std::nanf("");
  add_floats(folder, "a", {1, 4}, 2, {1, 10, gap, INFINITY, 3, -INFINITY, 5, 30});
  Image rows;
  open_rows(folder.path() / "images/train/a.npy", {.channels = 2})->read(0, 1, rows);
  CHECK(is_missing(rows, 1));
  CHECK(std::isnan(rows.floats[5]));
  DataOptions options = options_in(folder, 2);
  settle_normalization(options, 0);
  CHECK(options.mean == std::vector<float>{3, 20});
  const Batch batch = ValLoader(options, 0).load(0, 1, 1);
  CHECK(batch.labels == std::vector<Label>{0, 255, 1, 1});
  CHECK(batch.images[2] == 0);
  CHECK(batch.images[5] == 0);
  CHECK(batch.images[4] == 0);  // the mean itself
  CHECK(batch.images[0] < 0);
}

TEST_CASE("an image of which nothing is there is the mean, however images are normalised") {
  const TempFolder folder;
  add_floats(folder, "a", {1, 4}, 2, std::vector<float>(8, std::nanf("")));
  for (const Normalization how :
       {Normalization::kGiven, Normalization::kImage, Normalization::kPercentile}) {
    DataOptions options = options_in(folder, 2);
    options.normalize = how;
    options.mean = options.std = {0.5F};
    settle_normalization(options, 0);
    const Batch batch = ValLoader(options, 0).load(0, 1, 1);
    CHECK(batch.labels == std::vector<Label>(4, 255));
    CHECK(batch.images == std::vector<float>(8, 0.0F));
  }
}

TEST_CASE("images of several types, and a split without pixels, are refused by name") {
  const TempFolder folder;
  add_floats(folder, "a", {2, 2}, 1, {1, 2, 3, 4});
  write_png_file(folder.file("images/train/b.png"), {.color_type = 0, .bit_depth = 16}, {2, 2},
                 {{0, 1, 0, 2}, {0, 3, 0, 4}});
  add_mask(folder, "b", {2, 2});
  DataOptions options = options_in(folder, 1);
  const auto trouble = [&] {
    return message_of<DataError>([&] {
      DataOptions copy = options;
      settle_normalization(copy, 0);
    });
  };
  for (const char* part : {"a.npy (float32)", "b.png (uint16)", "of one type"})
    CHECK(contains(trouble(), part));
  options.normalize = Normalization::kImage;
  CHECK(trouble() == "");
  options.normalize.reset();
  fs::remove(folder.path() / "images/train/b.png");
  fs::remove(folder.path() / "masks/train/b.png");
  add_floats(folder, "a", {2, 2}, 1, std::vector<float>(4, std::nanf("")));
  for (const char* part : {"a.npy", "no pixel of it is there"}) CHECK(contains(trouble(), part));
}

TEST_CASE("8-bit RGB is left as it was") {
  const TempFolder folder;
  for (const char* split : {"train", "val"})
    write_png(folder.file(std::string("images/") + split + "/a.png"), random_image({4, 6}, 1));
  add_mask(folder, "a", {4, 6});
  DataOptions options = options_in(folder, 3);
  CHECK(settle_normalization(options, 0) == "");
  CHECK_FALSE(options.normalize);
  CHECK_FALSE(options.pixels);
  CHECK(options.mean == DataOptions().mean);
  options.normalize = Normalization::kDataset;
  CHECK(contains(settle_normalization(options, 0), "uint8"));
  CHECK(options.pixels == PixelType::kUint8);
  CHECK(options.mean.front() < 1);
}

TEST_CASE("of another type than was measured no image is taken") {
  const TempFolder folder;
  add_floats(folder, "a", {2, 2}, 3, std::vector<float>(12, 7));
  DataOptions options = options_in(folder, 3);
  const SampleStore store(options, Split::kVal, 0);
  SampleScratch scratch;
  const std::string text = message_of<DataError>([&] { store.fetch(0, scratch); });
  for (const char* part : {"a.npy", "float32", "uint8"}) CHECK(contains(text, part));
  options.normalize = Normalization::kGiven;
  CHECK(contains(message_of<ConfigError>([&] { settle_normalization(options, 0); }),
                 "write data.mean"));
  options.mean = {5, 6, 7};
  options.std = {2, 2, 2};
  CHECK(settle_normalization(options, 0) == "");
  const Batch batch = ValLoader(options, 0).load(0, 1, 1);
  CHECK(batch.images[0] == 1);
  CHECK(batch.images[2] == 0);
}

TEST_CASE("an image in several files has the channels of all") {
  const TempFolder folder;
  for (const char* split : {"train", "val"}) {
    const std::string stem = std::string("images/") + split + "/a";
    write_npy(folder.file(stem + "_red.npy"), {1, 2}, std::vector<float>{1, 2});
    write_npy(folder.file(stem + "_nir.npy"), {1, 2}, std::vector<float>{3, 4});
  }
  add_mask(folder, "a", {1, 2});
  DataOptions options = options_in(folder, 2);
  options.channel_files = {"_nir", "_red"};
  const auto dataset = make_dataset(options, Split::kTrain, 0);
  CHECK(dataset->size() == 1);
  CHECK(dataset->files(0).size() == 3);
  CHECK(dataset->load(0).image.floats == std::vector<float>{3, 1, 4, 2});
  options.bands = {1};
  options.channels = 1;
  CHECK(make_dataset(options, Split::kTrain, 0)->load(0).image.floats == std::vector<float>{1, 2});
  fs::remove(folder.path() / "images/train/a_red.npy");
  CHECK(contains(message_of<DataError>([&] { dataset->load(0); }), "a_red.npy"));
}

TEST_CASE("objects become class 1, and so does white of one bit") {
  const TempFolder folder;
  for (const char* split : {"train"}) {
    write_png(folder.file(std::string("images/") + split + "/a.png"), random_image({1, 3}, 1));
    write_npy(folder.file(std::string("masks/") + split + "/a.npy"), {1, 3},
              std::vector<float>{0, 255, 70000});
  }
  DataOptions options = options_in(folder, 3);
  const auto labels = [&] {
    return make_dataset(options, Split::kTrain, 0)->load(0).labels.pixels;
  };
  CHECK(contains(message_of<DataError>([&] { labels(); }), "label 70000 at row 0, column 2"));
  options.mask_values = MaskValues::kInstances;
  CHECK(labels() == std::vector<Label>{0, 1, 1});
  fs::remove(folder.path() / "masks/train/a.npy");
  write_png_file(folder.file("masks/train/a.png"), {.color_type = 0, .bit_depth = 1}, {1, 3},
                 {{0b01000000}});
  options.mask_values = MaskValues::kBinary;
  CHECK(labels() == std::vector<Label>{0, 1, 0});
}

TEST_CASE("options that do not fit are refused") {
  DataOptions options;
  options.channels = 5;
  const auto trouble = [&] {
    return message_of<ConfigError>([&] { check_normalization(options); });
  };
  CHECK(contains(trouble(), "data.mean has 3 numbers, but data.channels = 5"));
  options.mean = options.std = {2};
  CHECK(trouble() == "");
  options.bands = {0, 1};
  CHECK(contains(trouble(), "data.bands picks 2"));
  options.bands.clear();
  options.percentiles = {99, 1};
  CHECK(contains(trouble(),
                 "data.percentiles: expected [lo, hi], lo < hi, such as [1, 99], got [99, 1]"));
  options.percentiles = {1, 99};
  for (const std::vector<int>& display : {std::vector{5}, std::vector{0, 1}}) {
    options.display = display;
    CHECK(contains(trouble(), "data.display: expected one channel or three of those from 0 to 4"));
  }
  options.display = {4};
  CHECK(trouble() == "");
}

}  // namespace
}  // namespace lockstep
