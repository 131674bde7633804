#pragma once
// Files that are written by rows, from the top. Until close() a name has what it had before;
// without it nothing is left of the file. Each is used by one thread. All throw Error where the
// file cannot be written.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/image_io.h"
#include "io/written_file.h"
#include "lockstep/io/image.h"

namespace lockstep {

enum class PngFormat : std::uint8_t { kRgb, kGray, kDeepGray, kIndexed };

/// A PNG in the order of its bytes.
class PngEncoder {
 public:
  using Sink = std::function<void(std::string_view bytes)>;

  /// `colors`: of kIndexed, 256 as paint shows them. `fast`: a photo in a quarter of the time, a
  /// quarter larger. What `sink` throws is thrown by each of these functions.
  PngEncoder(Size size, PngFormat kind, std::span<const Color> colors, bool fast, Sink sink);
  ~PngEncoder();
  PngEncoder(const PngEncoder&) = delete;
  PngEncoder& operator=(const PngEncoder&) = delete;

  /// The next rows: bytes, or words of kDeepGray.
  void write(const void* rows, int count);
  void end();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// An 8-bit RGB PNG.
class PictureWriter {
 public:
  PictureWriter(const std::filesystem::path& path, Size size);
  void write(const Image& rows) { encoder_.write(rows.pixels.data(), rows.height); }
  void close();

 private:
  WrittenFile file_;
  PngEncoder encoder_;
};

/// What there is no class of in a map that can say so.
inline constexpr Label kMissingLabel = 65535;

/// A class map.
class MapWriter {
 public:
  virtual ~MapWriter() = default;
  /// The next rows: classes, or kMissingLabel, which becomes the largest value of the file's type.
  virtual void write(std::span<const Label> rows) = 0;
  virtual void close() = 0;
};

/// [256] what an indexed file shows: these colours, and what has none in that of Pascal VOC's
/// border.
std::vector<Color> colors_of_bytes(std::span<const Color> colors);

/// What does not fit becomes 255.
std::vector<std::uint8_t> eight_bits(std::span<const Label> labels);

/// As write_png writes a map in these colours; without colours as a gray one of 8 bits.
std::unique_ptr<MapWriter> png_map(const std::filesystem::path& path, Size size,
                                   std::span<const Color> colors);

/// What a TIFF says of where it lies: a tag, as TIFF's types have its values.
struct TiffTag {
  std::uint32_t tag = 0;
  std::uint32_t count = 0;
  std::vector<std::uint8_t> values;
};

/// The GeoTIFF tags of a file; none: it has none, is no TIFF, or viewers turn it.
std::vector<TiffTag> georeference_of(const std::filesystem::path& path, const ImageRule& rule);

/// A TIFF in tiles, deflated: a palette of 8 bits, or gray of 16 where there are more than 256
/// values. `missing`: whether kMissingLabel may come.
std::unique_ptr<MapWriter> tiff_map(const std::filesystem::path& path, Size size,
                                    std::span<const Color> colors, bool missing,
                                    std::span<const TiffTag> georeference);

/// An array [classes, height, width] of float32, as write_npy writes it.
class PlanesWriter {
 public:
  PlanesWriter(const std::filesystem::path& path, std::int64_t classes, Size size);
  /// The next rows, [rows, width, classes].
  void write(std::span<const float> values);
  void close() { file_.close(); }

 private:
  WrittenFile file_;
  std::size_t classes_, pixels_, header_, done_ = 0;
};

}  // namespace lockstep
