#include "data/procedural/streets.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "data/fixtures.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

Sample street(std::uint64_t seed, Split split, std::int64_t index, Size size = {60, 80}) {
  Sample sample;
  draw_street(size, 255, split, seed, index, sample);
  return sample;
}

double mean_of(const Image& image) {
  double sum = 0;
  for (const std::uint8_t value : image.pixels) sum += value;
  return sum / static_cast<double>(image.pixels.size()) / 255;
}

TEST_CASE("a street is a function of seed, split and index") {
  const Sample first = street(1, Split::kTrain, 2);
  CHECK(first.image.pixels == street(1, Split::kTrain, 2).image.pixels);
  CHECK(first.labels.pixels == street(1, Split::kTrain, 2).labels.pixels);
  CHECK(first.image.pixels != street(2, Split::kTrain, 2).image.pixels);
  CHECK(first.image.pixels != street(1, Split::kVal, 2).image.pixels);
  CHECK(first.image.pixels != street(1, Split::kTrain, 3).image.pixels);
}

TEST_CASE("streets have all classes, in about a real street's shares, and some void") {
  std::array<double, 256> share{};
  constexpr int kImages = 150;
  for (int i = 0; i < kImages; ++i) {
    const Sample sample = street(3, Split::kTrain, i);
    for (const Label label : sample.labels.pixels) share[label] += 1.0 / (kImages * 60 * 80);
  }
  const std::array<double, 11> least{0.08,  0.1,   0.005, 0.2,   0.02, 0.05,
                                     0.002, 0.005, 0.03,  0.002, 0.002};
  double total = share[255];
  for (std::size_t c = 0; c < least.size(); ++c) {
    CAPTURE(c);
    CHECK(share[c] > least[c]);
    CHECK(share[c] < 0.45);
    total += share[c];
  }
  CHECK(std::abs(total - 1) < 1e-6);
  CHECK(share[255] > 0.005);
  CHECK(share[255] < 0.06);
}

TEST_CASE("the light differs from image to image") {
  double sum = 0;
  double squares = 0;
  constexpr int kImages = 100;
  for (int i = 0; i < kImages; ++i) {
    const double mean = mean_of(street(4, Split::kTrain, i).image);
    sum += mean / kImages;
    squares += mean * mean / kImages;
  }
  CHECK(sum > 0.3);
  CHECK(sum < 0.55);
  CHECK(std::sqrt(squares - sum * sum) > 0.1);
}

TEST_CASE("a scene looks alike at every size, and any size works") {
  for (const Size size : {Size{16, 16}, {17, 301}, {180, 240}, {200, 30}}) {
    for (int i = 0; i < 5; ++i) {
      const Sample sample = street(5, Split::kVal, i, size);
      CHECK(sample.image.pixels.size() == static_cast<std::size_t>(size.height * size.width * 3));
      CHECK(sample.labels.pixels.size() == static_cast<std::size_t>(size.height * size.width));
    }
  }
  CHECK(std::abs(mean_of(street(5, Split::kVal, 1, {180, 240}).image) -
                 mean_of(street(5, Split::kVal, 1).image)) < 0.02);
  CHECK_THROWS_AS(street(5, Split::kVal, 1, {8, 80}), Error);
}

TEST_CASE("streets written to disk read back as they were drawn") {
  const TempFolder folder;
  DataOptions options;
  options.layout = "streets";
  options.size = {32, 48};
  options.train_images = 3;
  options.val_images = 2;
  write_streets(folder.path(), options, 9);
  DataOptions read = options;
  read.layout = "folder";
  read.root = folder.path();
  read.num_classes = 11;
  for (const Split split : {Split::kTrain, Split::kVal}) {
    const auto generated = make_dataset(options, split, 9);
    const auto stored = make_dataset(read, split, 0);
    REQUIRE(stored->size() == generated->size());
    for (std::int64_t i = 0; i < stored->size(); ++i) {
      CHECK(stored->load(i).image.pixels == generated->load(i).image.pixels);
      CHECK(stored->load(i).labels.pixels == generated->load(i).labels.pixels);
    }
  }
  write_file(folder.file("blocked"), std::string("a file"));
  CHECK_THROWS_AS(write_streets(folder.path() / "blocked", options, 9), DataError);
}

TEST_CASE("options that do not fit are refused") {
  DataOptions options;
  options.layout = "streets";
  CHECK(make_streets(options, Split::kVal, 0)->size() == 100);
  options.num_classes = 5;
  CHECK_THROWS_AS(make_streets(options, Split::kTrain, 0), ConfigError);
  options.num_classes = 11;
  options.size = {8, 8};
  CHECK_THROWS_AS(make_streets(options, Split::kTrain, 0), ConfigError);
  options.size = {32, 32};
  options.train_images = 0;
  CHECK_THROWS_AS(make_streets(options, Split::kTrain, 0), ConfigError);
}

}  // namespace
}  // namespace lockstep
