#include "io/exif.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace lockstep {
namespace {

bool begins_with(ImageBytes bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::equal(text.begin(), text.end(), bytes.begin());
}

/// Numbers of a TIFF header, which says itself in which order their bytes lie.
class TiffNumbers {
 public:
  TiffNumbers(ImageBytes bytes, bool little_endian)
      : bytes_(bytes), little_endian_(little_endian) {}

  /// Of `count` bytes from `offset` on; 0 where they are not there.
  std::uint32_t at(std::size_t offset, std::size_t count) const {
    if (offset > bytes_.size() || count > bytes_.size() - offset) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < count; ++i) {
      value = (value << 8) | bytes_[offset + (little_endian_ ? count - 1 - i : i)];
    }
    return value;
  }

 private:
  ImageBytes bytes_;
  bool little_endian_;
};

std::uint32_t big_endian(ImageBytes bytes, std::size_t offset, std::size_t count) {
  return TiffNumbers(bytes, false).at(offset, count);
}

constexpr std::size_t kSignature = 8;    // what a PNG begins with
constexpr std::size_t kChunkFrame = 12;  // of length, type and CRC
constexpr std::string_view kExifChunk = "eXIf", kLastChunk = "IEND", kPixelChunk = "IDAT";

struct Chunk {
  std::string_view type;
  ImageBytes data;
};

/// The chunk at the beginning of `bytes`, which loses it; one without a type where it is not whole.
Chunk take_chunk(ImageBytes& bytes) {
  const std::size_t length = big_endian(bytes, 0, 4);
  if (bytes.size() < kChunkFrame || length > bytes.size() - kChunkFrame) return {};
  const Chunk chunk{{reinterpret_cast<const char*>(bytes.data()) + 4, 4}, bytes.subspan(8, length)};
  bytes = bytes.subspan(kChunkFrame + length);
  return chunk;
}

/// The first chunk eXIf of those that begin here, which lose what has been looked at.
FoundExif exif_among(ImageBytes& chunks) {
  for (Chunk chunk = take_chunk(chunks); !chunk.type.empty(); chunk = take_chunk(chunks)) {
    if (chunk.type == kExifChunk) return {chunk.data};
    if (chunk.type == kLastChunk) return {};
  }
  return {.block = {}, .certain = false};
}

/// Whether these are whole chunks up to the last one of a file.
bool end_a_file(ImageBytes chunks) {
  for (Chunk chunk = take_chunk(chunks); !chunk.type.empty(); chunk = take_chunk(chunks)) {
    if (chunk.type == kLastChunk) return chunks.empty();
  }
  return false;
}

/// Turns `values`, [stored, channels].
template <typename Value>
void turn_values(const Turn& turn, Size stored_size, std::size_t channels,
                 std::vector<Value>& values) {
  const auto height = static_cast<std::ptrdiff_t>(stored_size.height);
  const auto width = static_cast<std::ptrdiff_t>(stored_size.width);
  const std::vector<Value> stored = std::exchange(values, {});
  const Size size = turn.size_of(stored_size);
  values.resize(stored.size());
  // What one row and one column of the result are in the stored pixels.
  std::ptrdiff_t down = turn.rows_reversed ? -width : width;
  std::ptrdiff_t right = turn.columns_reversed ? -1 : 1;
  const std::ptrdiff_t first =
      (turn.rows_reversed ? (height - 1) * width : 0) + (turn.columns_reversed ? width - 1 : 0);
  if (turn.transposed) std::swap(down, right);
  auto out = values.begin();
  for (std::ptrdiff_t y = 0; y < size.height; ++y) {
    for (std::ptrdiff_t x = 0; x < size.width; ++x) {
      const auto pixel = static_cast<std::size_t>(first + y * down + x * right);
      out = std::copy_n(&stored[pixel * channels], channels, out);
    }
  }
}

template <typename Map>
void turn_extents(const Turn& turn, Map& map) {
  const Size size = turn.size_of({map.height, map.width});
  map.height = size.height;
  map.width = size.width;
}

}  // namespace

FoundExif find_jpeg_exif(ImageBytes file) {
  constexpr std::uint32_t kMark = 0xFF, kApp1 = 0xE1, kScan = 0xDA;
  for (std::size_t at = 2; at + 4 <= file.size();) {
    if (file[at] != kMark) return {};
    const std::uint32_t marker = file[at + 1];
    if (marker == kMark) {  // fill bytes
      ++at;
      continue;
    }
    if (marker == kScan) return {};
    const std::size_t length = big_endian(file, at + 2, 2);
    if (length < 2) return {};
    if (length > file.size() - at - 2) break;
    const ImageBytes data = file.subspan(at + 4, length - 2);
    if (marker == kApp1 && data.size() > 6 && begins_with(data, {"Exif\0", 5})) {
      return {data.subspan(6)};
    }
    at += 2 + length;
  }
  return {.block = {}, .certain = false};
}

FoundExif find_png_exif(ImageBytes head, ImageBytes tail) {
  ImageBytes rest = head.subspan(std::min(kSignature, head.size()));
  const FoundExif found = exif_among(rest);
  const bool in_pixels =
      begins_with(rest.subspan(std::min<std::size_t>(4, rest.size())), kPixelChunk);
  if (found.certain || !in_pixels) return found;
  // Behind the pixels. Compressed ones may look like a chunk, but no chain of chunks leads from
  // there to the end.
  const std::string_view text(reinterpret_cast<const char*>(tail.data()), tail.size());
  for (std::size_t at = text.find(kExifChunk, 4); at != text.npos;
       at = text.find(kExifChunk, at + 1)) {
    ImageBytes chunks = tail.subspan(at - 4);
    if (end_a_file(chunks)) return exif_among(chunks);
  }
  return {};
}

// EXIF's eight values: where the stored first row and first column are shown.
Turn turn_of_orientation(std::uint32_t value) {
  const auto among = [value](auto... values) { return ((value == values) || ...); };
  return {.rows_reversed = among(3U, 4U, 6U, 7U),
          .columns_reversed = among(2U, 3U, 7U, 8U),
          .transposed = among(5U, 6U, 7U, 8U)};
}

Turn turn_of(ImageBytes exif) {
  constexpr std::uint32_t kOrientation = 0x0112, kShort = 3, kLong = 4;
  constexpr std::size_t kEntry = 12;
  const bool little_endian = begins_with(exif, {"II*\0", 4});
  if (!little_endian && !begins_with(exif, {"MM\0*", 4})) return {};
  const TiffNumbers numbers(exif, little_endian);
  const std::size_t directory = numbers.at(4, 4), entries = numbers.at(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntry;
    if (entry + kEntry > exif.size()) break;
    if (numbers.at(entry, 2) != kOrientation) continue;
    const std::uint32_t type = numbers.at(entry + 2, 2);
    if (type != kShort && type != kLong) break;
    return turn_of_orientation(numbers.at(entry + 8, type == kShort ? 2 : 4));
  }
  return {};
}

Turn turn_of_file(ImageBytes file) {
  if (is_jpeg(file)) return turn_of(find_jpeg_exif(file).block);
  if (!is_png(file)) return {};
  ImageBytes chunks = file.subspan(kSignature);
  return turn_of(exif_among(chunks).block);
}

void turn(const Turn& turn, Image& image) {
  if (!turn.turns()) return;
  with_values(image, [&](auto& values) {
    turn_values(turn, {image.height, image.width}, static_cast<std::size_t>(image.channels),
                values);
  });
  turn_extents(turn, image);
}

void turn(const Turn& turn, LabelMap& labels) {
  if (!turn.turns()) return;
  turn_values(turn, {labels.height, labels.width}, 1, labels.pixels);
  turn_extents(turn, labels);
}

}  // namespace lockstep
