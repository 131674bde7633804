#include "io/exif.h"

#include <doctest/doctest.h>
#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "data/fixtures.h"
#include "io/image_io.h"

namespace lockstep {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// Numbers of an EXIF block in one order of bytes.
class ExifWriter {
 public:
  explicit ExifWriter(bool little_endian) : little_endian_(little_endian) {
    for (const char c : std::string(little_endian ? "II" : "MM"))
      bytes_.push_back(static_cast<std::uint8_t>(c));
    add(42, 2);
  }
  void add(std::uint32_t value, int count) {
    for (int i = 0; i < count; ++i) {
      const int shift = 8 * (little_endian_ ? i : count - 1 - i);
      bytes_.push_back(static_cast<std::uint8_t>(value >> shift));
    }
  }
  void add_entry(std::uint32_t tag, std::uint32_t type, std::uint32_t value) {
    add(tag, 2), add(type, 2), add(1, 4);
    add(value, type == 3 ? 2 : 4);
    if (type == 3) add(0, 2);
  }
  const Bytes& bytes() const { return bytes_; }

 private:
  bool little_endian_;
  Bytes bytes_;
};

Bytes exif_of(std::uint32_t orientation, bool little_endian = true, std::uint32_t type = 3) {
  ExifWriter exif(little_endian);
  exif.add(12, 4);  // of the directory: four bytes behind the header
  exif.add(0, 4);
  exif.add(3, 2);
  exif.add_entry(0x0100, 4, 7);
  exif.add_entry(0x0112, type, orientation);
  exif.add_entry(0x011A, 3, 6);
  exif.add(0, 4);
  return exif.bytes();
}

void insert(Bytes& file, std::size_t at, const Bytes& part) {
  file.insert(file.begin() + static_cast<std::ptrdiff_t>(at), part.begin(), part.end());
}

Bytes jpeg_segment(int marker, const std::string& name, const Bytes& data) {
  const std::size_t length = 2 + name.size() + data.size();
  Bytes segment{0xFF, static_cast<std::uint8_t>(marker), static_cast<std::uint8_t>(length >> 8),
                static_cast<std::uint8_t>(length)};
  segment.insert(segment.end(), name.begin(), name.end());
  segment.insert(segment.end(), data.begin(), data.end());
  return segment;
}

Bytes exif_segment(const Bytes& exif) {
  return jpeg_segment(0xE1, std::string("Exif\0\0", 6), exif);
}

Bytes png_chunk(const std::string& type, const Bytes& data) {
  Bytes chunk;
  const auto add = [&](std::size_t value) {
    for (const int shift : {24, 16, 8, 0})
      chunk.push_back(static_cast<std::uint8_t>(value >> shift));
  };
  add(data.size());
  chunk.insert(chunk.end(), type.begin(), type.end());
  chunk.insert(chunk.end(), data.begin(), data.end());
  add(crc32(0, chunk.data() + 4, static_cast<unsigned>(chunk.size() - 4)));
  return chunk;
}

constexpr std::size_t kBehindHeader = 33;  // of a PNG: its signature and IHDR
constexpr std::size_t kLastChunk = 12;

void put_into_png(const std::filesystem::path& path, const Bytes& exif) {
  Bytes file = read_file(path);
  insert(file, kBehindHeader, png_chunk("eXIf", exif));
  write_file(path, file);
}

/// The pixel of the file that EXIF 2.3 has shown at row y and column x.
std::array<int, 2> stored_pixel(int orientation, int y, int x, Size stored) {
  const int last_row = stored.height - 1, last_column = stored.width - 1;
  switch (orientation) {
    case 2:
      return {y, last_column - x};
    case 3:
      return {last_row - y, last_column - x};
    case 4:
      return {last_row - y, x};
    case 5:
      return {x, y};
    case 6:
      return {last_row - x, y};
    case 7:
      return {last_row - x, last_column - y};
    case 8:
      return {x, last_column - y};
    default:
      return {y, x};
  }
}

template <std::size_t channels, typename Map>
Map shown(const Map& stored, int orientation) {
  Map result = stored;
  if (orientation >= 5 && orientation <= 8) std::swap(result.height, result.width);
  for (int y = 0; y < result.height; ++y) {
    for (int x = 0; x < result.width; ++x) {
      const auto [row, column] = stored_pixel(orientation, y, x, {stored.height, stored.width});
      for (std::size_t c = 0; c < channels; ++c) {
        const auto index = [&](int r, int k, int width) {
          return static_cast<std::size_t>(r * width + k) * channels + c;
        };
        result.pixels[index(y, x, result.width)] = stored.pixels[index(row, column, stored.width)];
      }
    }
  }
  return result;
}

template <typename Map>
void check_same(const Map& a, const Map& b) {
  CHECK(a.height == b.height);
  CHECK(a.width == b.width);
  CHECK(a.pixels == b.pixels);
}

const ImageRule kStored{.orientation = ImageOrientation::kStored};

TEST_CASE("images are read as EXIF has viewers show them, or as they are stored") {
  const TempFolder folder;
  const auto png = folder.file("a.png"), jpeg = folder.file("a.jpg");
  for (int orientation = 0; orientation <= 9; ++orientation) {
    for (const bool little_endian : {true, false}) {
      CAPTURE(orientation);
      CAPTURE(little_endian);
      const Bytes exif = exif_of(static_cast<std::uint32_t>(orientation), little_endian);
      const Image image = random_image({3, 5}, 7);
      write_png(png, image);
      put_into_png(png, exif);
      write_jpeg_file(jpeg, image);
      Image stored, read;
      read_image(jpeg, stored, kStored);
      Bytes file = read_file(jpeg);
      insert(file, 2, exif_segment(exif));
      write_file(jpeg, file);
      read_image(jpeg, read);
      check_same(read, shown<3>(stored, orientation));
      CHECK(read_image_size(jpeg) == Size{read.height, read.width});
      read_image(jpeg, read, kStored);
      check_same(read, stored);
      CHECK(read_image_size(jpeg, kStored) == Size{3, 5});
      read_image(png, read);
      check_same(read, shown<3>(image, orientation));
      CHECK(read_image_size(png) == Size{read.height, read.width});
      read_image(png, read, kStored);
      check_same(read, image);
      CHECK(read_image_size(png, kStored) == Size{3, 5});
    }
  }
}

TEST_CASE("parts of PNGs that are turned are those that a viewer sees") {
  const TempFolder folder;
  const auto path = folder.file("a.png"), mask = folder.file("mask.png");
  const ImagePart part{1, 2, {2, 3}};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    CAPTURE(orientation);
    write_png(path, random_image({6, 9}, 7));
    write_png(mask, random_labels({6, 9}, 200, 7));
    for (const auto& file : {path, mask})
      put_into_png(file, exif_of(static_cast<std::uint32_t>(orientation)));
    Image whole, some, colored;
    LabelMap labels, some_labels;
    read_image(path, whole);
    read_image(path, some, {.part = part});
    read_mask(mask, labels, colored);
    read_mask(mask, some_labels, colored, {.part = part});
    REQUIRE(some.pixels.size() == 2 * 3 * 3);
    REQUIRE(some_labels.pixels.size() == 2 * 3);
    for (std::size_t i = 0; i < 6; ++i) {
      const std::size_t pixel = (1 + i / 3) * static_cast<std::size_t>(whole.width) + 2 + i % 3;
      for (std::size_t c = 0; c < 3; ++c)
        CHECK(some.pixels[3 * i + c] == whole.pixels[3 * pixel + c]);
      CHECK(some_labels.pixels[i] == labels.pixels[pixel]);
    }
  }
}

TEST_CASE("masks are turned as images are, of values and of colours") {
  const TempFolder folder;
  const auto path = folder.file("mask.png");
  const LabelMap labels = random_labels({4, 3}, 9, 5);
  const Image colors = random_image({4, 3}, 6);
  for (int orientation = 1; orientation <= 8; ++orientation) {
    CAPTURE(orientation);
    const Bytes exif = exif_of(static_cast<std::uint32_t>(orientation));
    LabelMap read;
    Image colored;
    write_png(path, labels);
    put_into_png(path, exif);
    CHECK(read_mask(path, read, colored) == MaskKind::kValues);
    check_same(read, shown<1>(labels, orientation));
    read_mask(path, read, colored, {.orientation = kStored.orientation});
    check_same(read, labels);
    write_png(path, labels, std::vector<Color>(9));
    put_into_png(path, exif);
    read_mask(path, read, colored);
    check_same(read, shown<1>(labels, orientation));
    write_png(path, colors);
    put_into_png(path, exif);
    CHECK(read_mask(path, read, colored) == MaskKind::kColors);
    check_same(colored, shown<3>(colors, orientation));
  }
}

TEST_CASE("an orientation is found far from the beginning of a file") {
  const TempFolder folder;
  const auto path = folder.file("a.png");
  const Image image = random_image({150, 200}, 3);  // 90 kB that do not compress
  write_png(path, image);
  Bytes file = read_file(path);
  REQUIRE(file.size() > kExifReach);
  insert(file, file.size() - kLastChunk, png_chunk("eXIf", exif_of(6)));
  insert(file, file.size() - kLastChunk, png_chunk("tEXt", Bytes(100, 'e')));
  write_file(path, file);
  Image read;
  read_image(path, read);
  check_same(read, shown<3>(image, 6));
  CHECK(read_image_size(path) == Size{200, 150});

  write_png(path, image);
  put_into_png(path, exif_of(6));
  file = read_file(path);
  insert(file, kBehindHeader, png_chunk("teXt", Bytes(kExifReach, 'e')));  // as large as profiles
  write_file(path, file);
  read_image(path, read);
  check_same(read, shown<3>(image, 6));
  CHECK(read_image_size(path) == Size{200, 150});

  write_jpeg_file(path, image);
  Image stored;
  read_image(path, stored, kStored);
  file = read_file(path);
  insert(file, 2, exif_segment(exif_of(8)));
  for (int i = 0; i < 2; ++i) insert(file, 2, jpeg_segment(0xE2, "ICC_PROFILE", Bytes(60000, 1)));
  write_file(path, file);
  read_image(path, read);
  check_same(read, shown<3>(stored, 8));
  CHECK(read_image_size(path) == Size{200, 150});
}

TEST_CASE("pixels that look like a chunk of EXIF are none") {
  const TempFolder folder;
  const auto path = folder.file("a.png");
  const Image image = random_image({150, 200}, 1);  // its head ends within the pixels
  write_png(path, image);
  Bytes file = read_file(path);
  Bytes chunk = png_chunk("eXIf", exif_of(6));
  insert(file, file.size() - kLastChunk, png_chunk("teXt", chunk));
  write_file(path, file);
  Image read;
  read_image(path, read);
  check_same(read, image);
  CHECK(read_image_size(path) == Size{150, 200});
}

TEST_CASE("of several orientations of a JPEG the first counts, and none behind the pixels") {
  Bytes file{0xFF, 0xD8};
  insert(file, 2, {0xFF, 0xDA, 0, 2});
  insert(file, 2, exif_segment(exif_of(3)));
  insert(file, 2, {0xFF, 0xFF, 0xFF});  // fill bytes
  insert(file, 2, jpeg_segment(0xE1, "http://ns.adobe.com/xap/1.0/", Bytes(9, 0)));
  const Bytes again = exif_segment(exif_of(6));
  file.insert(file.end(), again.begin(), again.end());
  CHECK(turn_of_file(file) == turn_of(exif_of(3)));
  const Bytes late = exif_segment(exif_of(3));
  file = {0xFF, 0xD8, 0xFF, 0xDA, 0, 2};
  file.insert(file.end(), late.begin(), late.end());
  CHECK_FALSE(turn_of_file(file).turns());
}

TEST_CASE("what is damaged says nothing") {
  CHECK(turn_of(exif_of(6)).transposed);
  CHECK(turn_of(exif_of(6, true, 4)).transposed);  // a long, where EXIF has a short
  CHECK_FALSE(turn_of(exif_of(6, true, 2)).turns());
  CHECK_FALSE(turn_of(exif_of(0x10006, true, 4)).turns());
  const Bytes whole = exif_of(6);
  for (std::size_t size = 0; size < 38; ++size) {  // up to the end of the entry
    CAPTURE(size);
    CHECK_FALSE(turn_of(ImageBytes(whole).first(size)).turns());
  }
  for (const std::uint32_t offset : {1U, 0xFFFFFFFFU, 0xFFFFFFF0U}) {
    Bytes exif = whole;
    std::memcpy(exif.data() + 4, &offset, sizeof offset);
    CHECK_FALSE(turn_of(exif).turns());
  }
  Bytes many = whole;
  many[12] = many[13] = 0xFF;  // entries
  CHECK(turn_of(many).transposed);
}

}  // namespace
}  // namespace lockstep
