#include "io/image_io.h"

#include <doctest/doctest.h>
#include <png.h>
#include <tiffio.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "data/fixtures.h"
#include "io/codec.h"
#include "io/raw_pixels.h"
#include "io/tiff_tags.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using Rows = std::vector<std::vector<std::uint8_t>>;
using Bytes = std::vector<std::uint8_t>;
using Labels = std::vector<Label>;

Image read(const std::filesystem::path& path) {
  Image image;
  read_image(path, image);
  return image;
}

LabelMap mask_of(const std::filesystem::path& path) {
  LabelMap labels;
  Image colored;
  read_mask(path, labels, colored);
  return labels;
}

/// Of bytes [begin, begin + count) of a PNG, behind them.
void put_crc(Bytes& png, std::size_t begin, unsigned count) {
  const unsigned long crc = crc32(0, png.data() + begin, count);
  for (std::size_t i = 0; i < 4; ++i) {
    png[begin + count + i] = static_cast<std::uint8_t>(crc >> (24 - 8 * i));
  }
}

TEST_CASE("an RGB PNG comes back as it was written") {
  const TempFolder folder;
  const Image image = random_image({5, 7}, 1);
  write_png(folder.file("a.png"), image);
  CHECK(read(folder.file("a.png")).pixels == image.pixels);
  CHECK(read_image_size(folder.file("a.png")) == Size{5, 7});
}

TEST_CASE("a PNG in memory has what would be written, in no more bytes") {
  const TempFolder folder;
  const auto written = folder.file("a.png"), encoded = folder.file("b.png");
  Image image{64, 64, {}};
  for (int i = 0; i < 64 * 64; ++i) {
    for (const int value : {i % 64, i / 64, i % 64 + i / 64})
      image.pixels.push_back(static_cast<std::uint8_t>(value));
  }
  write_png(written, image);
  const Bytes file = encode_png(image);
  write_file(encoded, file);
  CHECK(read(encoded).pixels == image.pixels);
  CHECK(file.size() <= read_file(written).size());

  const LabelMap labels{1, 4, {0, 20, 255, 15}};
  const std::vector<Color> colors(21, Color{1, 2, 3});
  write_png(written, labels, colors);
  write_file(encoded, encode_png(labels, colors));
  CHECK(mask_of(encoded).pixels == labels.pixels);
  CHECK(read(encoded).pixels == read(written).pixels);
}

TEST_CASE("every kind of PNG becomes three channels") {
  const TempFolder folder;
  const auto path = folder.file("a.png");
  SUBCASE("gray") {
    write_png_file(path, {PNG_COLOR_TYPE_GRAY}, {1, 2}, {{0, 200}});
    CHECK(read(path).pixels == Bytes{0, 0, 0, 200, 200, 200});
  }
  SUBCASE("1-bit gray") {
    write_png_file(path, {PNG_COLOR_TYPE_GRAY, 1}, {1, 3}, {{0b10100000}});
    CHECK(read(path).pixels == Bytes{255, 255, 255, 0, 0, 0, 255, 255, 255});
  }
  SUBCASE("RGBA") {
    write_png_file(path, {PNG_COLOR_TYPE_RGB_ALPHA}, {1, 2}, {{1, 2, 3, 0, 4, 5, 6, 255}});
    CHECK(read(path).pixels == Bytes{1, 2, 3, 4, 5, 6});
  }
  SUBCASE("gray with alpha") {
    write_png_file(path, {PNG_COLOR_TYPE_GRAY_ALPHA}, {1, 2}, {{9, 0, 8, 255}});
    CHECK(read(path).pixels == Bytes{9, 9, 9, 8, 8, 8});
  }
  SUBCASE("palette") {
    write_png_file(path, {PNG_COLOR_TYPE_PALETTE}, {1, 2}, {{3, 100}});
    CHECK(read(path).pixels == Bytes{3, 6, 252, 100, 200, 155});
  }
  SUBCASE("4-bit palette") {
    write_png_file(path, {PNG_COLOR_TYPE_PALETTE, 4}, {1, 3}, {{0x1F, 0x20}});
    CHECK(read(path).pixels == Bytes{1, 2, 254, 15, 30, 240, 2, 4, 253});
  }
  SUBCASE("16-bit RGB") {
    write_png_file(path, {PNG_COLOR_TYPE_RGB, 16}, {1, 1}, {{0xFF, 0xFF, 0x80, 0x80, 0, 0}});
    CHECK(read(path).words == std::vector<std::uint16_t>{0xFFFF, 0x8080, 0});
    CHECK(read(path).pixels.empty());
  }
  SUBCASE("interlaced") {
    const Rows rows = {{1, 2, 3, 4, 5, 6, 7, 8, 9}, {11, 12, 13, 14, 15, 16, 17, 18, 19}};
    write_png_file(path, {PNG_COLOR_TYPE_RGB, 8, true}, {2, 3}, rows);
    CHECK(read(path).pixels ==
          Bytes{1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19});
  }
}

TEST_CASE("labels keep the raw value, gray or palette, at every depth") {
  const TempFolder folder;
  const auto path = folder.file("a.png");
  for (const int color : {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_PALETTE}) {
    CAPTURE(color);
    write_png_file(path, {color, 8}, {1, 3}, {{0, 11, 255}});
    CHECK(mask_of(path).pixels == Labels{0, 11, 255});
    write_png_file(path, {color, 4}, {1, 3}, {{0x1F, 0x20}});
    CHECK(mask_of(path).pixels == Labels{1, 15, 2});
    write_png_file(path, {color, 2}, {2, 3}, {{0b00011100}, {0b11100100}});
    CHECK(mask_of(path).pixels == Labels{0, 1, 3, 3, 2, 1});
    write_png_file(path, {color, 1}, {1, 9}, {{0b10110001, 0b10000000}});
    CHECK(mask_of(path).pixels == Labels{1, 0, 1, 1, 0, 0, 0, 1, 1});
    write_png_file(path, {color, 8, true}, {2, 2}, {{1, 2}, {3, 4}});
    CHECK(mask_of(path).pixels == Labels{1, 2, 3, 4});
  }
  const LabelMap labels = random_labels({4, 3}, 256, 3);
  write_png(path, labels);
  CHECK(mask_of(path).pixels == labels.pixels);
}

TEST_CASE("labels of more classes than 8 bits hold are written, and come back") {
  const TempFolder folder;
  const auto path = folder.file("a.png");
  const std::vector<Color> few(3, Color{9, 8, 7}), full(256), many(300);
  const LabelMap small{1, 3, {0, 255, 2}}, large{1, 3, {0, 256, 65535}};
  for (const LabelMap& labels : {small, large}) {
    write_png(path, labels);
    CHECK(mask_of(path).pixels == labels.pixels);
    for (const auto& colors : {full, many}) {
      write_png(path, labels, colors);
      CHECK(mask_of(path).pixels == labels.pixels);
    }
  }
  // What is no class of three, whichever label it has, is the palette's last.
  write_png(path, large, few);
  CHECK(mask_of(path).pixels == Labels{0, 255, 255});
  CHECK(read(path).pixels[3] == 224);
  // Of one data set all maps have one depth, whichever classes a picture shows.
  write_png(path, small, many);
  CHECK(read_file(path)[24] == 16);
}

TEST_CASE("pictures of more classes than a palette holds have their colours") {
  const TempFolder folder;
  const auto path = folder.file("a.png");
  std::vector<Color> colors(300, Color{1, 2, 3});
  colors[291] = {4, 5, 6};
  write_file(path, encode_png(LabelMap{1, 3, {0, 291, 65535}}, colors));
  CHECK(read(path).pixels == Bytes{1, 2, 3, 4, 5, 6, 224, 224, 192});
}

TEST_CASE("labels of 16 bits and in colour are read") {
  const TempFolder folder;
  const auto path = folder.file("mask.png");
  write_png_file(path, {PNG_COLOR_TYPE_GRAY, 16}, {1, 3}, {{0, 3, 2, 1, 255, 254}});
  CHECK(mask_of(path).pixels == Labels{3, 513, 65534});
  write_png_file(path, {PNG_COLOR_TYPE_RGB}, {1, 2}, {{1, 2, 3, 4, 5, 6}});
  LabelMap labels;
  Image colored;
  CHECK(read_mask(path, labels, colored) == MaskKind::kColors);
  CHECK(colored.pixels == Bytes{1, 2, 3, 4, 5, 6});
}

TEST_CASE("labels of another kind are refused and named") {
  const TempFolder folder;
  const auto path = folder.file("mask.png");
  const auto refusal = [&] { return message_of<DataError>([&] { mask_of(path); }); };
  write_png_file(path, {PNG_COLOR_TYPE_GRAY_ALPHA}, {1, 1}, {{3, 255}});
  CHECK(contains(refusal(), "mask.png"));
  CHECK(contains(refusal(), "gray with alpha"));
  write_jpeg_file(path, random_image({8, 8}, 1));
  CHECK(contains(refusal(), "got a JPEG"));
}

TEST_CASE("a JPEG is close to what was compressed") {
  const TempFolder folder;
  Image image{16, 24, std::vector<std::uint8_t>(16 * 24 * 3)};
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] = static_cast<std::uint8_t>(i % 3 * 60 + i / 24);
  write_jpeg_file(folder.file("a.jpg"), image);
  const Image decoded = read(folder.file("a.jpg"));
  REQUIRE(decoded.height == 16);
  REQUIRE(decoded.width == 24);
  CHECK(read_image_size(folder.file("a.jpg")) == Size{16, 24});
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    CHECK(std::abs(int{decoded.pixels[i]} - int{image.pixels[i]}) < 12);
  }
}

TEST_CASE("an image cut anywhere is an error that names it") {
  const TempFolder folder;
  const Image image = random_image({12, 17}, 4);
  write_png(folder.file("a.png"), image);
  write_jpeg_file(folder.file("a.jpg"), image);
  const Bytes png = read_file(folder.file("a.png"));
  const Bytes jpeg = read_file(folder.file("a.jpg"));
  Image decoded;
  LabelMap labels;
  CHECK_NOTHROW(decode_png(png, "name", {}, decoded));
  CHECK_NOTHROW(decode_jpeg(jpeg, "name", {}, decoded));
  for (std::size_t count = 0; count < png.size(); ++count) {
    const ImageBytes cut(png.data(), count);
    CAPTURE(count);
    CHECK(contains(message_of<DataError>([&] { decode_png(cut, "name", {}, decoded); }),
                   "name: expected"));
    CHECK_THROWS_AS(decode_png_mask(cut, "name", {}, labels, decoded), DataError);
  }
  for (std::size_t count = 0; count < jpeg.size(); ++count) {
    const ImageBytes cut(jpeg.data(), count);
    CAPTURE(count);
    CHECK(contains(message_of<DataError>([&] { decode_jpeg(cut, "name", {}, decoded); }),
                   "name: expected"));
  }
}

TEST_CASE("labels cut anywhere are an error, and a cut file is named") {
  const TempFolder folder;
  const auto path = folder.file("a.png");
  write_png(path, random_labels({12, 17}, 11, 4));
  const Bytes png = read_file(path);
  LabelMap labels;
  Image colored;
  for (std::size_t count = 0; count < png.size(); ++count) {
    CAPTURE(count);
    CHECK_THROWS_AS(decode_png_mask(ImageBytes(png.data(), count), "name", {}, labels, colored),
                    DataError);
  }
  for (const std::size_t count : {png.size() - 1, png.size() / 2, std::size_t{20}}) {
    std::filesystem::resize_file(path, count);
    CHECK(contains(message_of<DataError>([&] { mask_of(path); }), path.string()));
  }
}

TEST_CASE("damaged pixels of a PNG are an error") {
  const TempFolder folder;
  const auto path = folder.file("a.png");
  write_png(path, random_image({12, 17}, 5));
  Bytes bytes = read_file(path);
  bytes[bytes.size() / 2] ^= 0x10;
  write_file(path, bytes);
  CHECK_THROWS_AS(read(path), DataError);
}

TEST_CASE("a header that claims an absurd size is an error, not an allocation") {
  const TempFolder folder;
  const auto path = folder.file("a.png");
  write_png(path, random_image({2, 2}, 5));
  Bytes bytes = read_file(path);
  bytes[17] = 0x0F;  // width: 0x000F0002
  bytes[21] = 0x0F;  // height
  write_file(path, bytes);
  CHECK_THROWS_AS(read_image_size(path), DataError);
  CHECK_THROWS_AS(read(path), DataError);
}

TEST_CASE("a size that a file cannot hold is an error, not an allocation") {
  const TempFolder folder;
  write_png(folder.file("a.png"), random_image({2, 2}, 5));
  write_jpeg_file(folder.file("a.jpg"), random_image({2, 2}, 5));
  Image image;
  LabelMap labels;
  Bytes png = read_file(folder.file("a.png"));
  png[18] = png[22] = 0x20;  // 8194x8194
  put_crc(png, 12, 17);
  CHECK(contains(message_of<DataError>([&] { decode_png(png, "name", {}, image); }),
                 "name: expected a complete PNG of 8194x8194"));
  CHECK_THROWS_AS(decode_png_mask(png, "name", {}, labels, image), DataError);
  Bytes jpeg = read_file(folder.file("a.jpg"));
  const std::array<std::uint8_t, 2> frame{0xFF, 0xC0};
  const auto at = std::search(jpeg.begin(), jpeg.end(), frame.begin(), frame.end());
  REQUIRE(at != jpeg.end());
  at[5] = at[7] = 0x20;  // 8194x8194
  CHECK(contains(message_of<DataError>([&] { decode_jpeg(jpeg, "name", {}, image); }),
                 "name: expected a complete JPEG of 8194x8194"));
  CHECK(image.pixels.empty());
}

TEST_CASE("an image of one colour is small, and read all the same") {
  const TempFolder folder;
  const Size size{2000, 3000};
  Image image{size.height, size.width, Bytes(std::size_t{3} * 2000 * 3000, 7)};
  write_png(folder.file("a.png"), image);
  write_jpeg_file(folder.file("a.jpg"), image);
  CHECK(read(folder.file("a.png")).pixels == image.pixels);
  CHECK(read(folder.file("a.jpg")).pixels == image.pixels);
}

/// A TIFF of one row of two pixels, 0 and 1, or of which the file holds none.
struct SmallTiff {
  std::uint16_t bits = 8, format = SAMPLEFORMAT_UINT;
  const char* nodata = nullptr;
  std::vector<std::uint16_t> reds = {};  // of its palette, whose other colours are 0
  bool there = true;

  void write(const std::filesystem::path& path) const {
    TIFF* const tiff = TIFFOpen(path.c_str(), "w");
    REQUIRE(tiff != nullptr);
    TIFFSetField(tiff, TIFFTAG_IMAGEWIDTH, 2);
    TIFFSetField(tiff, TIFFTAG_IMAGELENGTH, 1);
    TIFFSetField(tiff, TIFFTAG_BITSPERSAMPLE, bits);
    TIFFSetField(tiff, TIFFTAG_SAMPLEFORMAT, format);
    TIFFSetField(tiff, TIFFTAG_PHOTOMETRIC,
                 reds.empty() ? PHOTOMETRIC_MINISBLACK : PHOTOMETRIC_PALETTE);
    TIFFMergeFieldInfo(tiff, kCarriedTags.data(), kCarriedTags.size());
    if (nodata != nullptr) TIFFSetField(tiff, kNodataTag, nodata);
    if (!reds.empty()) {
      std::vector<std::uint16_t> map = reds, others(std::size_t{1} << bits);
      map.resize(others.size());
      TIFFSetField(tiff, TIFFTAG_COLORMAP, map.data(), others.data(), others.data());
    }
    REQUIRE(TIFFWriteCheck(tiff, 0, "") == 1);
    std::array<std::uint8_t, 4> row{0, 1};
    if (there) REQUIRE(TIFFWriteEncodedStrip(tiff, 0, row.data(), bits / 4) == bits / 4);
    TIFFClose(tiff);
  }
};

TEST_CASE("what a TIFF lacks is nodata in values of every type") {
  const TempFolder folder;
  const auto path = folder.file("a.tif");
  const auto value = [&](std::uint16_t bits, std::uint16_t format, const char* nodata) {
    SmallTiff{.bits = bits, .format = format, .nodata = nodata, .there = false}.write(path);
    Image image;
    read_image(path, image, {.channels = 1});
    make_floats(image);
    return image.floats.at(1);
  };
  CHECK(value(8, SAMPLEFORMAT_UINT, nullptr) == 0);
  CHECK(std::isnan(value(8, SAMPLEFORMAT_UINT, "7")));
  CHECK(value(8, SAMPLEFORMAT_UINT, "-9999") == 0);  // the nearest that there is
  CHECK(std::isnan(value(1, SAMPLEFORMAT_UINT, "1")));
  CHECK(std::isnan(value(16, SAMPLEFORMAT_INT, "-9999")));
  CHECK(std::isnan(value(64, SAMPLEFORMAT_INT, "-9999")));
  for (const auto bits : std::initializer_list<std::uint16_t>{16, 32, 64}) {
    CHECK(value(bits, SAMPLEFORMAT_IEEEFP, nullptr) == 0);
    CHECK(std::isnan(value(bits, SAMPLEFORMAT_IEEEFP, "nan")));
    CHECK(std::isnan(value(bits, SAMPLEFORMAT_IEEEFP, "-1e4")));
  }
  for (const auto bits : std::initializer_list<std::uint16_t>{4, 8}) {
    SmallTiff{.bits = bits, .nodata = "9", .reds = {1}, .there = false}.write(path);
    CHECK(mask_of(path).pixels == Labels{9, 9});
  }
}

TEST_CASE("colours of a TIFF's palette are of 16 bits, however programs fill them, or of 8") {
  const TempFolder folder;
  const auto path = folder.file("a.tif");
  for (const int factor : {257, 256, 1}) {
    CAPTURE(factor);
    const auto red = static_cast<std::uint16_t>(200 * factor);
    SmallTiff{.nodata = "200", .reds = {0, red}}.write(path);  // an index, no colour
    CHECK(read(path).pixels == Bytes{0, 0, 0, 200, 0, 0});
    CHECK(read_palette(path)[1] == Color{200, 0, 0});
  }
  SmallTiff{.bits = 16, .reds = {0, 1}}.write(path);
  CHECK(contains(message_of<DataError>([&] { read(path); }), "a palette of 16 bits"));
}

TEST_CASE("foreign, empty and missing files say what came") {
  const TempFolder folder;
  const auto path = folder.file("a.jpg");
  write_file(path, std::string("GIF89a and so on"));
  CHECK(contains(message_of<DataError>([&] { read(path); }), "GIF89a"));
  CHECK(contains(message_of<DataError>([&] { mask_of(path); }), "GIF89a"));
  CHECK_THROWS_AS(read_image_size(path), DataError);
  write_file(path, std::string());
  CHECK(contains(message_of<DataError>([&] { read(path); }), "is empty"));
  std::filesystem::resize_file(path, std::uintmax_t{300} << 30);  // no more is read than tells
  CHECK(contains(message_of<DataError>([&] { read(path); }), path.string()));
  CHECK(contains(message_of<DataError>([&] { read(folder.path() / "none.png"); }), "No such file"));
  CHECK(contains(message_of<DataError>([&] { read(folder.path()); }), folder.path().string()));
  CHECK_THROWS_AS(write_png(folder.path() / "no" / "a.png", random_image({2, 2}, 1)), Error);
}

}  // namespace
}  // namespace lockstep
