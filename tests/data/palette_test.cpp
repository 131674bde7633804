#include <doctest/doctest.h>

#include "data/fixtures.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"
#include "lockstep/io/image.h"

namespace lockstep {
namespace {

TEST_CASE("colours of labels are those that Pascal VOC publishes") {
  CHECK(voc_color(0) == Color{0, 0, 0});
  CHECK(voc_color(1) == Color{128, 0, 0});
  CHECK(voc_color(8) == Color{64, 0, 0});
  CHECK(voc_color(15) == Color{192, 128, 128});
  CHECK(voc_color(20) == Color{0, 64, 128});
  CHECK(voc_color(255) == Color{224, 224, 192});
}

TEST_CASE("a colour is read from six hexadecimal digits and written so") {
  CHECK(parse_color("#804C0f") == Color{128, 76, 15});
  CHECK(to_string(Color{128, 76, 15}) == "#804c0f");
  for (const char* text : {"", "804c0f", "#804c0", "#804c0g", "#804c0f0", "# 04c0f"})
    CHECK_THROWS_AS(parse_color(text), ConfigError);
}

TEST_CASE("classes have the configuration's colours, the layout's or VOC's") {
  DataOptions data;
  data.num_classes = 2;
  CHECK(class_colors(data) == std::vector<Color>{{0, 0, 0}, {128, 0, 0}});
  data.palette = {"#010203", "#ffffff"};
  CHECK(class_colors(data) == std::vector<Color>{{1, 2, 3}, {255, 255, 255}});
  data.palette.pop_back();
  CHECK(contains(message_of<ConfigError>([&] { class_colors(data); }), "1 colours"));
  data = {};
  data.layout = "streets";
  CHECK(class_colors(data)[3] == Color{128, 64, 128});
  data.num_classes = 3;  // not the layout's classes, so not its colours
  CHECK(class_colors(data)[1] == Color{128, 0, 0});
}

TEST_CASE("labels are painted, over an image too, and what is no class is left out") {
  const std::vector<Color> colors{{0, 0, 0}, {200, 100, 50}};
  const LabelMap labels{1, 3, {0, 1, 255}};
  CHECK(paint(labels, colors).pixels ==
        std::vector<std::uint8_t>{0, 0, 0, 200, 100, 50, 224, 224, 192});
  const Image image{1, 3, {100, 100, 100, 100, 100, 100, 7, 8, 9}};
  CHECK(overlay(image, labels, colors).pixels ==
        std::vector<std::uint8_t>{50, 50, 50, 150, 100, 75, 7, 8, 9});
  CHECK(overlay(image, labels, colors, 0).pixels == image.pixels);
}

TEST_CASE("a palette PNG holds classes for programs and colours for people") {
  const TempFolder folder;
  const auto path = folder.file("labels.png");
  LabelMap labels = random_labels({5, 7}, 3, 1);
  labels.pixels[4] = 255;
  const std::vector<Color> colors{{1, 2, 3}, {40, 50, 60}, {7, 200, 9}};
  write_png(path, labels, colors);
  LabelMap read;
  Image colored;
  CHECK(read_mask(path, read, colored) == MaskKind::kValues);
  CHECK(read.pixels == labels.pixels);
  Image seen;
  read_image(path, seen);
  CHECK(seen.pixels == paint(labels, colors).pixels);
}

}  // namespace
}  // namespace lockstep
