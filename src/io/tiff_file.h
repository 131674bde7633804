#pragma once
// A TIFF as libtiff reads it: its pages, their values as they lie, and tags that say of them. What
// its header says is believed only as far as the file's bytes can hold it.

#include <tiffio.h>

#include <cstdarg>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "io/exif.h"
#include "io/file_bytes.h"
#include "io/row_writers.h"
#include "lockstep/core/check.h"
#include "lockstep/io/image.h"

namespace lockstep {

/// What the header of a page says.
struct TiffPage {
  tdir_t directory = 0;
  Size size;
  std::uint32_t width = 0, height = 0;  // as written, before they are believed
  std::uint16_t samples = 1, bits = 1, format = SAMPLEFORMAT_UINT, planes = PLANARCONFIG_CONTIG;
  std::uint16_t photometric = PHOTOMETRIC_MINISBLACK, compression = COMPRESSION_NONE;
  bool alpha = false;  // the last sample
  Turn turn;

  bool indexed() const { return photometric == PHOTOMETRIC_PALETTE; }
  int channels() const { return indexed() ? 3 : samples; }
  bool same_kind(const TiffPage& other) const {
    return std::tie(size.height, size.width, samples, bits, format, photometric) ==
           std::tie(other.size.height, other.size.width, other.samples, other.bits, other.format,
                    other.photometric);
  }
};

/// How the values of a page lie: in tiles, or in strips, which are as wide as the image; all
/// samples of a pixel together, or each plane by itself.
struct TiffBlocks {
  bool tiled = false;
  std::uint16_t planes = 1;
  std::size_t width = 0, height = 0, samples = 1;
  std::size_t row_bytes = 0, bytes = 0;

  /// Whether a strip is too much to hold where some of its rows are asked for.
  bool by_lines() const {
    constexpr std::size_t kMostBytes = std::size_t{16} << 20;
    return !tiled && planes == 1 && bytes > kMostBytes;
  }
};

/// A part of a plane, such as a block has.
struct TiffPart {
  std::uint16_t plane = 0;
  std::size_t x = 0, y = 0, width = 0, height = 0;

  static TiffPart of(const ImagePart& part) {
    return {0, static_cast<std::size_t>(part.left), static_cast<std::size_t>(part.top),
            static_cast<std::size_t>(part.size.width), static_cast<std::size_t>(part.size.height)};
  }
};

struct CloseTiff {
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};

// libtiff's complaints come to the file that they are of: its handlers for all files would be
// shared with a program that this library is part of.
class TiffFile {
 public:
  /// Opens a TIFF. Throws DataError. `bytes` outlive it; `name` is for messages.
  TiffFile(FileBytes& bytes, std::string name);

  /// Those of full resolution. Throws where they are not of one kind, or none that is read.
  std::vector<TiffPage> pages();
  /// Values of a part of a page, [height, width, samples], a byte at least for each, from the
  /// blocks that have them. REQUIRES: room.
  void read(const TiffPage& page, const ImagePart& part, std::span<std::uint8_t> values);
  std::vector<std::uint8_t> read(const TiffPage& page, const ImagePart& part);
  /// How many rows, from a multiple of it on, are decoded together.
  std::size_t step(const TiffPage& page);
  /// Of a palette's places, in 8 bits.
  std::vector<Color> colors(const TiffPage& page);
  /// What is not there. None of a palette: there it is an index, and an image has the colours.
  std::optional<double> nodata(const TiffPage& page);
  /// Its GeoTIFF tags.
  std::vector<TiffTag> georeference(const TiffPage& page);

  DataError error(const std::string& text) const { return DataError(concat(name_, ": ", text)); }

 private:
  DataError damaged() const {
    return error(concat("expected a complete TIFF, but its ", bytes_.size(),
                        " bytes are truncated or damaged",
                        complaint_.empty() ? "" : concat(" (", complaint_, ")")));
  }
  TiffPage page() const;
  /// Of a tag that libtiff may not know; none where it has another type.
  std::optional<TiffTag> values_of(std::uint32_t which, TIFFDataType type) const;
  std::optional<double> declared_nodata() const;
  void check(const TiffPage& page) const;
  void check_values(const TiffPage& page) const;
  void check_extent(const TiffPage& page) const;
  TiffBlocks blocks_of(const TiffPage& page) const;
  /// Whether the page, the one that is read, has blocks of which the file holds nothing.
  bool lacks_blocks() const;
  std::uint32_t index_of(const TiffBlocks& blocks, const TiffPart& part) const;
  /// Whether the file holds nothing of the block, which is filled then.
  bool fill_missing(const TiffPage& page, std::uint32_t index,
                    std::vector<std::uint8_t>& block) const;
  void read_part(const TiffPage& page, const TiffBlocks& blocks, const TiffPart& part,
                 std::vector<std::uint8_t>& block);
  void read_lines(const TiffPage& page, const TiffBlocks& blocks, const TiffPart& wanted,
                  std::span<std::uint8_t> values);
  void go_to(const TiffPage& page);
  std::uint32_t tag(std::uint32_t which, std::uint32_t otherwise) const {
    std::uint32_t value = 0;
    return TIFFGetField(tiff_.get(), which, &value) == 1 ? value : otherwise;
  }
  std::uint16_t short_tag(std::uint32_t which) const {
    std::uint16_t value = 0;
    TIFFGetFieldDefaulted(tiff_.get(), which, &value);
    return value;
  }

  // libtiff's client.
  static int on_error(TIFF*, void* self, const char*, const char* format, va_list arguments);
  static int on_warning(TIFF*, void*, const char*, const char*, va_list) { return 1; }
  static tmsize_t read(thandle_t handle, void* out, tmsize_t count);
  static tmsize_t write(thandle_t, void*, tmsize_t) { return 0; }
  static toff_t seek(thandle_t handle, toff_t offset, int whence);
  static int close(thandle_t) { return 0; }
  static toff_t size(thandle_t handle) { return static_cast<TiffFile*>(handle)->bytes_.size(); }

  FileBytes& bytes_;
  std::string name_;
  std::string complaint_;  // libtiff's first
  std::uint64_t position_ = 0;
  std::optional<tdir_t> here_;  // the page that was gone to
  std::size_t line_ = 0;        // of it, that follows the one that read_lines read last
  std::unique_ptr<TIFF, CloseTiff> tiff_;
};

}  // namespace lockstep
