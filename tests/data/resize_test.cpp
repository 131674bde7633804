#include "data/resize.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "data/fixtures.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Labels = std::vector<Label>;

// The definition, in double: a triangle around the centre, as wide as the larger of the two pixels.
double reference(const Image& image, Size full, int y, int x, int c) {
  const double scale_y = static_cast<double>(image.height) / full.height;
  const double scale_x = static_cast<double>(image.width) / full.width;
  const auto weight = [](int k, int i, double scale) {
    return std::max(0.0, 1 - std::abs(k + 0.5 - (i + 0.5) * scale) / std::max(scale, 1.0));
  };
  double sum = 0;
  double total = 0;
  for (int v = 0; v < image.height; ++v) {
    for (int u = 0; u < image.width; ++u) {
      const double w = weight(v, y, scale_y) * weight(u, x, scale_x);
      sum += w * image.pixels[static_cast<std::size_t>((v * image.width + u) * 3 + c)];
      total += w;
    }
  }
  return sum / total;
}

TEST_CASE("resizing equals its definition, growing, shrinking and both") {
  Resizer resizer;
  Image result;
  const Image image = random_image({13, 9}, 1);
  for (const Size full : {Size{26, 18}, {7, 5}, {5, 20}, {1, 1}, {13, 8}, {40, 3}}) {
    resizer.resize(image, full, {0, 0, full}, result);
    for (int y = 0; y < full.height; ++y) {
      for (int x = 0; x < full.width; ++x) {
        for (int c = 0; c < 3; ++c) {
          const double got = result.pixels[static_cast<std::size_t>((y * full.width + x) * 3 + c)];
          CHECK(std::abs(got - reference(image, full, y, x, c)) < 0.5 + 1e-3);
        }
      }
    }
  }
}

TEST_CASE("halving weighs four pixels 1:3:3:1") {
  Image image{1, 8, {}};
  for (const int value : {0, 0, 0, 80, 160, 240, 0, 0})
    image.pixels.insert(image.pixels.end(), 3, static_cast<std::uint8_t>(value));
  Image result;
  Resizer().resize(image, {1, 4}, {0, 0, {1, 4}}, result);
  CHECK(result.pixels[3] == 80 * 3 / 8 + 160 / 8);
  CHECK(result.pixels[6] == (80 + 3 * 160 + 3 * 240) / 8);
}

TEST_CASE("a constant image stays constant and the same size is a copy") {
  Image image{6, 5, Bytes(6 * 5 * 3, 255)};
  Image result;
  Resizer resizer;
  resizer.resize(image, {17, 3}, {0, 0, {17, 3}}, result);
  CHECK(result.pixels == Bytes(17 * 3 * 3, 255));
  const Image noise = random_image({6, 5}, 2);
  resizer.resize(noise, {6, 5}, {0, 0, {6, 5}}, result);
  CHECK(result.pixels == noise.pixels);
}

TEST_CASE("a window is a part of the whole, for images and labels") {
  Resizer resizer;
  const Image image = random_image({9, 14}, 3);
  const LabelMap labels = random_labels({9, 14}, 5, 3);
  for (const Size full : {Size{9, 14}, {21, 17}, {5, 6}}) {
    const ImagePart window{1, 2, {3, 4}};
    Image whole;
    Image part;
    LabelMap whole_labels;
    LabelMap part_labels;
    resizer.resize(image, full, {0, 0, full}, whole);
    resizer.resize(image, full, window, part);
    resizer.resize(labels, full, {0, 0, full}, whole_labels);
    resizer.resize(labels, full, window, part_labels);
    for (int y = 0; y < 3; ++y) {
      for (int x = 0; x < 4; ++x) {
        const auto from = static_cast<std::size_t>((y + 1) * full.width + x + 2);
        const auto to = static_cast<std::size_t>(y * 4 + x);
        CHECK(part_labels.pixels[to] == whole_labels.pixels[from]);
        for (std::size_t c = 0; c < 3; ++c)
          CHECK(part.pixels[to * 3 + c] == whole.pixels[from * 3 + c]);
      }
    }
  }
  CHECK_THROWS_AS(resizer.resize(image, {9, 14}, {7, 0, {3, 4}}, *std::make_unique<Image>()),
                  Error);
}

TEST_CASE("labels take the nearest pixel and invent no class") {
  LabelMap labels{1, 4, {1, 5, 9, 200}};
  LabelMap result;
  Resizer resizer;
  resizer.resize(labels, {1, 8}, {0, 0, {1, 8}}, result);
  CHECK(result.pixels == Labels{1, 1, 5, 5, 9, 9, 200, 200});
  resizer.resize(labels, {1, 2}, {0, 0, {1, 2}}, result);
  CHECK(result.pixels == Labels{5, 200});
  resizer.resize(labels, {3, 3}, {0, 0, {3, 3}}, result);
  CHECK(result.pixels == Labels{1, 9, 200, 1, 9, 200, 1, 9, 200});
}

}  // namespace
}  // namespace lockstep
