// Images by rows: what is read is what the whole has, what is written is what was meant.

#include "io/row_source.h"

#include <doctest/doctest.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/fixtures.h"
#include "data/resize.h"
#include "io/raw_pixels.h"
#include "io/row_writers.h"
#include "io/tiff_fixtures.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

template <typename Value>
bool same(const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i] && !(a[i] != a[i] && b[i] != b[i])) return false;  // NaN is NaN
  }
  return true;
}

bool same_image(const Image& a, const Image& b) {
  return a.height == b.height && a.width == b.width && a.channels == b.channels &&
         a.type == b.type && same(a.pixels, b.pixels) && same(a.words, b.words) &&
         same(a.floats, b.floats);
}

/// Corners, edges, the middle, a pixel, a row, a column and all of an image.
std::vector<ImagePart> some_parts(Size size) {
  const auto [height, width] = size;
  const Size third{std::max(1, height / 3), std::max(1, width / 3)};
  const int bottom = height - third.height, right = width - third.width;
  return {{0, 0, third},
          {bottom, right, third},
          {bottom, 0, third},
          {height / 3, right / 2, third},
          {0, 0, size},
          {height / 2, width / 2, {1, 1}},
          {bottom, 0, {1, width}},
          {0, right, {height, 1}}};
}

void check_parts(const fs::path& path, ImageRule rule) {
  Image whole, part, expected;
  read_image(path, whole, rule);
  for (const ImagePart& some : some_parts({whole.height, whole.width})) {
    CAPTURE(to_string(some.size));
    rule.part = some;
    read_image(path, part, rule);
    if (!whole.floats.empty()) make_floats(part);
    Resizer().resize(whole, {whole.height, whole.width}, some, expected);
    CHECK(same_image(part, expected));
  }
  rule.part = ImagePart{0, 0, {whole.height + 1, whole.width}};
  CHECK_THROWS_AS(read_image(path, part, rule), DataError);
}

void check_mask_parts(const fs::path& path, LabelRule rule) {
  LabelMap whole, part, expected;
  Image colored, colored_part, expected_colors;
  const MaskKind kind = read_mask(path, whole, colored, rule);
  if (kind == MaskKind::kColors) whole = {colored.height, colored.width, {}};
  for (const ImagePart& some : some_parts({whole.height, whole.width})) {
    CAPTURE(to_string(some.size));
    rule.part = some;
    REQUIRE(read_mask(path, part, colored_part, rule) == kind);
    if (kind == MaskKind::kColors) {
      Resizer().resize(colored, {whole.height, whole.width}, some, expected_colors);
      CHECK(same_image(colored_part, expected_colors));
    } else {
      Resizer().resize(whole, {whole.height, whole.width}, some, expected);
      CHECK(part.pixels == expected.pixels);
    }
  }
}

/// Rows of every length and place, also from below up, and of a band that moves down.
void check_rows(const fs::path& path, const ImageRule& rule) {
  check_parts(path, rule);
  Image whole, part, expected;
  read_image(path, whole, rule);
  const auto source = open_rows(path, rule);
  const auto memory = rows_of(whole);
  REQUIRE(source->size() == Size{whole.height, whole.width});
  const int height = whole.height, some = std::max(1, height / 3);
  for (const auto& [first, count] : std::vector<std::pair<int, int>>{{0, height},
                                                                     {height - 1, 1},
                                                                     {0, 1},
                                                                     {height / 2, 1},
                                                                     {height - some, some},
                                                                     {0, some},
                                                                     {some / 2, some}}) {
    CAPTURE(first);
    source->read(first, count, part);
    memory->read(first, count, expected);
    CHECK(same_image(part, expected));
  }
  RowBand band(*source, some);
  for (int y = 0; y < height; y += std::max(1, some / 2)) {
    const int count = std::min(some, height - y);
    band.hold(y, y + count);
    REQUIRE(band.first() + band.rows().height >= y + count);
    memory->read(band.first(), band.rows().height, expected);
    CHECK(same_image(band.rows(), expected));
  }
}

std::vector<std::uint8_t> simplified_png(Size size, png_uint_32 format, const void* pixels,
                                         const void* colormap, bool fast) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(size.width);
  image.height = static_cast<png_uint_32>(size.height);
  image.format = format;
  image.flags = fast ? PNG_IMAGE_FLAG_FAST : 0;
  image.colormap_entries = colormap == nullptr ? 0 : 256;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::vector<std::uint8_t> file(bytes);
  REQUIRE(png_image_write_to_memory(&image, file.data(), &bytes, 0, pixels, 0, colormap) != 0);
  file.resize(bytes);
  return file;
}

/// Writes the labels in portions of one row, two, three, ...
void write_in_portions(MapWriter& map, const LabelMap& labels) {
  std::span<const Label> rest = labels.pixels;
  const auto width = static_cast<std::size_t>(labels.width);
  for (std::size_t rows = 1; !rest.empty(); ++rows) {
    const auto some = rest.first(std::min(rows * width, rest.size()));
    map.write(some);
    rest = rest.subspan(some.size());
  }
  map.close();
}

std::vector<Color> some_colors(int count) {
  std::vector<Color> colors;
  for (int i = 0; i < count; ++i) colors.push_back(voc_color(i));
  return colors;
}

}  // namespace

TEST_CASE("rows of a TIFF are those of the whole, however it is laid out") {
  const TempFolder folder;
  const TiffLayout layouts[] = {
      {"tiles", 16},
      {"planar tiles", 32, 1, PLANARCONFIG_SEPARATE},
      {"strips of 7 rows", 0, 7},
      {"planar strips", 0, 5, PLANARCONFIG_SEPARATE, COMPRESSION_ADOBE_DEFLATE},
      {"one strip", 0, 61},
      {"rows as they are", 0, 61, PLANARCONFIG_CONTIG, COMPRESSION_NONE}};
  for (const TiffLayout& layout : layouts) {
    CAPTURE(layout.name);
    const fs::path path = folder.file("a.tif");
    write_tiff(path, {61, 45}, 3, layout);
    check_rows(path, {});
    check_rows(path, {.bands = {2, 0, 2}});
    check_rows(path, {.nodata = 1});                     // is there
    check_rows(path, {.nodata = sample_of(60, 44, 2)});  // in the last row alone
    check_rows(path, {.nodata = 65535});                 // is not
  }
}

TEST_CASE("rows of a TIFF of one large strip are decoded line by line") {
  const TempFolder folder;
  const fs::path path = folder.file("a.tif");
  write_tiff(path, {300, 10000}, 3, {"a strip of 18 MB", 0, 300});
  CHECK(open_rows(path, {})->step() == 1);
  check_rows(path, {});
}

TEST_CASE("blocks that a TIFF lacks are nodata, or else 0") {
  const TempFolder folder;
  const fs::path path = folder.file("a.tif");
  constexpr auto kTogether = PLANARCONFIG_CONTIG;
  for (TiffLayout layout : std::initializer_list<TiffLayout>{
           {"tiles", 16},
           {"planar tiles as they are", 32, 1, PLANARCONFIG_SEPARATE, COMPRESSION_NONE},
           {"tiles as they are", 16, 1, kTogether, COMPRESSION_NONE},
           {"strips", 0, 7},
           {"strips as they are", 0, 7, kTogether, COMPRESSION_NONE}}) {
    CAPTURE(layout.name);
    for (const std::uint32_t missing : {3U, 1U}) {
      CAPTURE(missing);
      layout.missing = missing;
      for (const char* nodata : {static_cast<const char*>(nullptr), "65533"}) {
        layout.nodata = nodata;
        write_tiff(path, {61, 45}, 3, layout);
        check_rows(path, {});
        Image image;
        read_image(path, image);
        make_floats(image);
        const std::uint32_t height = layout.tile > 0 ? layout.tile : layout.strip;
        const std::uint32_t width = layout.tile > 0 ? layout.tile : 45;
        const std::uint32_t across = (44 + width) / width, down = (60 + height) / height;
        int wrong = 0;
        for (std::uint32_t i = 0; i < image.floats.size(); ++i) {
          const std::uint32_t y = i / 135, x = i / 3 % 45, plane = layout.planes == 2 ? i % 3 : 0;
          const std::uint32_t number = (plane * down + y / height) * across + x / width;
          const float value = image.floats[i];
          const bool gap = nodata == nullptr ? value == 0 : value != value;
          const bool there = value == sample_of(y, x, static_cast<std::uint16_t>(i % 3));
          wrong += (number % missing == 0 ? gap : there) ? 0 : 1;
        }
        CHECK(wrong == 0);
      }
    }
  }
  Image image;
  write_tiff(path, {600, 10000}, 3, {.strip = 300, .missing = 2});
  const auto by_lines = open_rows(path, {});
  REQUIRE(by_lines->step() == 1);
  by_lines->read(299, 2, image);
  CHECK(image.words[29999] == 0);
  CHECK(image.words[59999] == sample_of(300, 9999, 2));
  write_tiff(path, {20000, 20000}, 1, {.tile = 4096, .missing = 1});
  CHECK(contains(message_of<DataError>([&] { read_image(path, image, {.channels = 1}); }),
                 "cannot hold them"));
}

TEST_CASE("rows of images of every kind are those of the whole") {
  const fs::path cases = "../shared/images";
  if (!fs::is_regular_file(cases / "expected.json")) {
    std::puts("SKIPPED: images of any kind: ../shared/images is not there");
    return;
  }
  const auto all = nlohmann::json::parse(std::ifstream(cases / "expected.json")).at("images");
  for (const auto& [name, about] : all.items()) {
    CAPTURE(name);
    const auto& file = about.at("file");
    const auto& config = about.at("config");
    const ImageRule rule{
        .channels = config.value("channels", 3),
        .bands = config.value("bands", std::vector<int>()),
        .channel_files = config.value("channel_files", std::vector<std::string>())};
    check_rows(cases / (file.is_array() ? file.front() : file).template get<std::string>(), rule);
    check_rows(cases / about.at("array").get<std::string>(),
               {.channels = about.at("shape")[2].get<int>()});
  }
}

TEST_CASE("parts of masks of every kind are those of the whole") {
  const TempFolder folder;
  const fs::path path = folder.file("a.png");
  write_png(path, random_labels({31, 17}, 200, 1));
  check_mask_parts(path, {});
  write_png(path, random_labels({31, 17}, 300, 1));
  check_mask_parts(path, {});
  write_png(path, random_image({31, 17}, 1));
  check_mask_parts(path, {});
  for (const bool interlaced : {false, true}) {
    write_png_file(path, {PNG_COLOR_TYPE_GRAY, 1, interlaced}, {3, 9},
                   {{0x5A, 0x80}, {0xC3, 0}, {0xFF, 0x80}});
    check_mask_parts(path, {.black_and_white = true});
  }
  const fs::path cases = "../shared/images";
  if (!fs::is_regular_file(cases / "expected.json")) {
    std::puts("SKIPPED: masks of any kind: ../shared/images is not there");
    return;
  }
  const auto all = nlohmann::json::parse(std::ifstream(cases / "expected.json")).at("masks");
  for (const auto& [name, about] : all.items()) {
    CAPTURE(name);
    check_mask_parts(cases / about.at("file").get<std::string>(), {});
  }
}

TEST_CASE("parts of an image that is turned are those that a viewer sees") {
  const TempFolder folder;
  const fs::path path = folder.file("a.tif");
  write_tiff(path, {19, 40}, 3, {.name = "on its side", .tile = 16, .orientation = 6});
  check_parts(path, {});
  write_tiff(path, {19, 40}, 1, {.name = "on its side", .strip = 5, .orientation = 8});
  check_mask_parts(path, {});
}

TEST_CASE("a PNG by rows has the bytes of libpng's own interface") {
  const Size size{37, 53};
  const Image image = random_image(size, 1);
  const LabelMap labels = random_labels(size, 11, 2);
  const std::vector<Color> colors = colors_of_bytes(some_colors(11));
  std::vector<std::uint16_t> words(labels.pixels.begin(), labels.pixels.end());
  const auto bytes = eight_bits(labels.pixels);
  const auto encoded = [&](PngFormat kind, const void* pixels, std::size_t row, bool fast) {
    std::vector<std::uint8_t> file;
    PngEncoder encoder(size, kind, colors, fast, [&](std::string_view some) {
      file.insert(file.end(), some.begin(), some.end());
    });
    encoder.write(pixels, 5);
    encoder.write(static_cast<const std::uint8_t*>(pixels) + 5 * row, size.height - 5);
    encoder.end();
    return file;
  };
  for (const bool fast : {false, true}) {
    CHECK(encoded(PngFormat::kRgb, image.pixels.data(), 53 * 3, fast) ==
          simplified_png(size, PNG_FORMAT_RGB, image.pixels.data(), nullptr, fast));
    CHECK(encoded(PngFormat::kGray, bytes.data(), 53, fast) ==
          simplified_png(size, PNG_FORMAT_GRAY, bytes.data(), nullptr, fast));
    CHECK(encoded(PngFormat::kDeepGray, words.data(), 53 * 2, fast) ==
          simplified_png(size, PNG_FORMAT_LINEAR_Y, words.data(), nullptr, fast));
    CHECK(encoded(PngFormat::kIndexed, bytes.data(), 53, fast) ==
          simplified_png(size, PNG_FORMAT_RGB_COLORMAP, bytes.data(), colors.data(), fast));
  }
}

TEST_CASE("a PNG that cannot be written says so, and a map that is not closed is not there") {
  const auto full = [](std::string_view) { throw Error("the disk is full"); };
  CHECK_THROWS_WITH_AS(PngEncoder({1, 1}, PngFormat::kGray, {}, true, full), "the disk is full",
                       Error);
  const TempFolder folder;
  const LabelMap labels = random_labels({300, 20}, 3, 1);
  for (const char* name : {"a.png", "a.tif"}) {
    const fs::path path = folder.file(name);
    const auto colors = some_colors(3);
    {
      const auto map = path.extension() == ".tif" ? tiff_map(path, {300, 20}, colors, false, {})
                                                  : png_map(path, {300, 20}, colors);
      map->write(std::span(labels.pixels).first(20 * 270));
    }
    CHECK(fs::is_empty(folder.path()));
  }
}

TEST_CASE("maps by rows hold the labels: PNG and TIFF, of few classes and of many") {
  const TempFolder folder;
  for (const int classes : {3, 256, 300}) {
    CAPTURE(classes);
    const LabelMap labels = random_labels({275, 301}, classes, 4);
    const auto colors = some_colors(classes);
    const Size size{labels.height, labels.width};
    LabelMap read;
    Image colored;
    write_in_portions(*png_map(folder.file("a.png"), size, colors), labels);
    write_png(folder.file("b.png"), labels, colors);
    CHECK(read_file(folder.file("a.png")) == read_file(folder.file("b.png")));
    write_in_portions(*tiff_map(folder.file("a.tif"), size, colors, false, {}), labels);
    CHECK(read_mask(folder.file("a.tif"), read, colored) == MaskKind::kValues);
    CHECK(read.pixels == labels.pixels);
    const bool deep = classes > 256;
    const ImageInfo info = read_image_info(folder.file("a.tif"), {});
    CHECK(info.channels == (deep ? 1 : 3));  // a palette's colours
    CHECK(info.type == (deep ? PixelType::kUint16 : PixelType::kUint8));
    if (deep) continue;
    Image shown;
    read_image(folder.file("a.tif"), shown);
    CHECK(shown.pixels == paint(labels, colors).pixels);
  }
}

TEST_CASE("a map of 2 GiB of classes has offsets of 64 bits") {
  const TempFolder folder;
  for (const auto& [side, version] : std::vector<std::pair<int, int>>{{46340, 42}, {46341, 43}}) {
    tiff_map(folder.file("a.tif"), {side, side}, some_colors(3), false, {})->close();
    CHECK(read_file(folder.file("a.tif")).at(2) == version);
  }
}

TEST_CASE("a map says where it lies and what is not there") {
  const TempFolder folder;
  const fs::path cases = "../shared/images/tiff/geo.tif";
  LabelMap labels = random_labels({40, 50}, 3, 4), read;
  labels.pixels[7] = kMissingLabel;
  // The shared case has three of these, of two types.
  std::vector<TiffTag> tags;
  const auto add = [&](std::uint32_t tag, const auto& values) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(values.data());
    tags.push_back({tag,
                    static_cast<std::uint32_t>(values.size()),
                    {bytes, bytes + values.size() * sizeof(values[0])}});
  };
  add(33550, std::array{10.0, 10.0, 0.0});
  add(33922, std::array{0.0, 0.0, 0.0, 590520.0, 5790630.0, 0.0});
  add(34264, std::array<double, 16>{1, 2, 3, 4});
  add(34735, std::array<std::uint16_t, 8>{1, 1, 0, 1, 3072, 0, 1, 32631});
  add(34736, std::array{6378137.0});
  add(34737, std::string("WGS 84|") + '\0');
  const auto check = [&](const std::vector<TiffTag>& written, int classes) {
    const fs::path path = folder.file("a.tif");
    write_in_portions(*tiff_map(path, {40, 50}, some_colors(classes), true, written), labels);
    const std::vector<TiffTag> found = georeference_of(path, {});
    REQUIRE(found.size() == written.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      CAPTURE(found[i].tag);
      CHECK(found[i].tag == written[i].tag);
      const std::size_t size = written[i].values.size();  // a text may have one zero more
      REQUIRE(found[i].values.size() >= size);
      CHECK(
          std::equal(written[i].values.begin(), written[i].values.end(), found[i].values.begin()));
    }
    Image image, colored;
    read_mask(path, read, colored);
    CHECK(read.pixels[7] == (classes < 256 ? 255 : 65535));
    CHECK(read.pixels[8] == labels.pixels[8]);
    if (classes < 256) return;
    REQUIRE(read_image_info(path, {}).channels == 1);
    read_image(path, image, {.channels = 1});
    CHECK_FALSE(image.floats.empty());  // GDAL_NODATA is its value
  };
  check(tags, 3);
  check(tags, 256);  // a class has 255
  CHECK(georeference_of(folder.file("a.tif"), {}).size() == 6);
  write_png(folder.file("a.png"), labels);
  CHECK(georeference_of(folder.file("a.png"), {}).empty());
  if (!fs::exists(cases)) return;
  const std::vector<TiffTag> shared = georeference_of(cases, {});
  CHECK(shared.size() == 3);
  check(shared, 3);
}

}  // namespace lockstep
