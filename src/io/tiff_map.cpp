// Class maps as TIFF, which lie where their images lie.

#include <tiffio.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "io/row_writers.h"
#include "io/tiff_tags.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kTile = 256;
// From so many bytes of classes on a file has offsets of 64 bits.
constexpr std::uint64_t kMostClassic = std::uint64_t{2} << 30;

struct CloseWritten {
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};

/// What libtiff writes to. Complaints come to the file that they are of.
class WrittenTiff {
 public:
  WrittenTiff(const std::filesystem::path& path, bool big)
      : file_(path, WrittenFile::Mode::kReplace) {
    const std::unique_ptr<TIFFOpenOptions, decltype(&TIFFOpenOptionsFree)> options(
        TIFFOpenOptionsAlloc(), TIFFOpenOptionsFree);
    TIFFOpenOptionsSetErrorHandlerExtR(options.get(), on_error, this);
    TIFFOpenOptionsSetWarningHandlerExtR(options.get(), on_warning, this);
    tiff_.reset(TIFFClientOpenExt(path.c_str(), big ? "w8" : "w", this, read, write, seek, close,
                                  size, nullptr, nullptr, options.get()));
    check(tiff_ != nullptr);
  }

  TIFF* get() const { return tiff_.get(); }
  void check(bool done) const {
    if (failure_) std::rethrow_exception(failure_);
    if (!done) throw Error(concat("cannot write ", file_.path().string(), ": ", complaint_));
  }
  void finish() {
    tiff_.reset();
    check(complaint_.empty());
    file_.close();
  }

 private:
  static int on_error(TIFF*, void* self, const char*, const char* format, va_list arguments) {
    std::array<char, 256> text{};
    std::vsnprintf(text.data(), text.size(), format, arguments);
    static_cast<WrittenTiff*>(self)->complaint_ = text.data();
    return 1;
  }
  static int on_warning(TIFF*, void*, const char*, const char*, va_list) { return 1; }
  static tmsize_t read(thandle_t, void*, tmsize_t) { return 0; }
  static tmsize_t write(thandle_t handle, void* bytes, tmsize_t count) {
    auto* self = static_cast<WrittenTiff*>(handle);
    const auto size = static_cast<std::size_t>(count);
    if (self->failure_) return 0;
    try {
      self->file_.write_at(self->position_, {static_cast<const char*>(bytes), size});
    } catch (...) {
      self->failure_ = std::current_exception();
      return 0;
    }
    self->position_ += size;
    self->end_ = std::max(self->end_, self->position_);
    return count;
  }
  static toff_t seek(thandle_t handle, toff_t offset, int whence) {
    auto* self = static_cast<WrittenTiff*>(handle);
    const std::uint64_t from = whence == SEEK_SET   ? 0
                               : whence == SEEK_CUR ? self->position_
                                                    : self->end_;
    return self->position_ = from + offset;
  }
  static int close(thandle_t) { return 0; }
  static toff_t size(thandle_t handle) { return static_cast<WrittenTiff*>(handle)->end_; }

  WrittenFile file_;
  std::string complaint_;
  std::exception_ptr failure_;
  std::uint64_t position_ = 0, end_ = 0;
  std::unique_ptr<TIFF, CloseWritten> tiff_;
};

class TiffMap : public MapWriter {
 public:
  TiffMap(const std::filesystem::path& path, Size size, std::span<const Color> colors, bool deep,
          std::span<const TiffTag> georeference)
      : width_(static_cast<std::size_t>(size.width)),
        height_(static_cast<std::size_t>(size.height)),
        bytes_(deep ? 2 : 1),
        file_(path, width_ * height_ * bytes_ >= kMostClassic) {
    describe(size);
    if (!deep) set_palette(colors);
    for (const TiffTag& tag : georeference) set(tag);
  }

  void write(std::span<const Label> rows) override {
    missing_ = missing_ || std::find(rows.begin(), rows.end(), kMissingLabel) != rows.end();
    while (!rows.empty()) {
      const std::size_t room = kTile * width_ - band_.size();
      const auto some = rows.first(std::min(room, rows.size()));
      band_.insert(band_.end(), some.begin(), some.end());
      rows = rows.subspan(some.size());
      if (band_.size() == kTile * width_) flush();
    }
  }
  void close() override {
    if (!band_.empty()) flush();
    const char* const nodata = bytes_ == 1 ? "255" : "65535";
    if (missing_) file_.check(TIFFSetField(file_.get(), kNodataTag, nodata) == 1);
    file_.finish();
  }

 private:
  void describe(Size size) {
    TIFF* const tiff = file_.get();
    TIFFMergeFieldInfo(tiff, kCarriedTags.data(), static_cast<std::uint32_t>(kCarriedTags.size()));
    TIFFSetField(tiff, TIFFTAG_IMAGEWIDTH, size.width);
    TIFFSetField(tiff, TIFFTAG_IMAGELENGTH, size.height);
    TIFFSetField(tiff, TIFFTAG_SAMPLESPERPIXEL, 1);
    TIFFSetField(tiff, TIFFTAG_BITSPERSAMPLE, 8 * bytes_);
    TIFFSetField(tiff, TIFFTAG_PLANARCONFIG, PLANARCONFIG_CONTIG);
    TIFFSetField(tiff, TIFFTAG_PHOTOMETRIC,
                 bytes_ == 1 ? PHOTOMETRIC_PALETTE : PHOTOMETRIC_MINISBLACK);
    TIFFSetField(tiff, TIFFTAG_COMPRESSION, COMPRESSION_ADOBE_DEFLATE);
    TIFFSetField(tiff, TIFFTAG_TILEWIDTH, kTile);
    TIFFSetField(tiff, TIFFTAG_TILELENGTH, kTile);
  }
  void set_palette(std::span<const Color> colors) {
    std::array<std::array<std::uint16_t, 256>, 3> palette{};
    for (std::size_t i = 0; i < 256; ++i) {
      for (std::size_t c = 0; c < 3; ++c)
        palette[c][i] = static_cast<std::uint16_t>(colors[i][c] * 257);
    }
    file_.check(TIFFSetField(file_.get(), TIFFTAG_COLORMAP, palette[0].data(), palette[1].data(),
                             palette[2].data()) == 1);
  }
  void set(const TiffTag& tag) {
    const bool text = tag.tag == kGeoTextTag;
    file_.check((text ? TIFFSetField(file_.get(), tag.tag, tag.values.data())
                      : TIFFSetField(file_.get(), tag.tag, static_cast<int>(tag.count),
                                     tag.values.data())) == 1);
  }
  /// The rows of the band as a row of tiles.
  void flush() {
    const std::size_t rows = band_.size() / width_;
    std::vector<std::uint8_t> tile(kTile * kTile * bytes_);
    for (std::size_t x = 0; x < width_; x += kTile) {
      std::fill(tile.begin(), tile.end(), std::uint8_t{0});
      const std::size_t columns = std::min<std::size_t>(kTile, width_ - x);
      for (std::size_t y = 0; y < rows; ++y) {
        const std::span<const Label> row(&band_[y * width_ + x], columns);
        std::uint8_t* const out = &tile[y * kTile * bytes_];
        if (bytes_ == 2) {
          std::memcpy(out, row.data(), row.size_bytes());
        } else {
          const std::vector<std::uint8_t> values = eight_bits(row);
          std::copy(values.begin(), values.end(), out);
        }
      }
      const auto size = static_cast<tmsize_t>(tile.size());
      file_.check(TIFFWriteEncodedTile(file_.get(), tile_++, tile.data(), size) == size);
    }
    band_.clear();
  }

  std::size_t width_, height_, bytes_;
  WrittenTiff file_;
  std::vector<Label> band_;  // rows that are no whole tile yet
  std::uint32_t tile_ = 0;   // the next one
  bool missing_ = false;
};

}  // namespace

std::unique_ptr<MapWriter> tiff_map(const std::filesystem::path& path, Size size,
                                    std::span<const Color> colors, bool missing,
                                    std::span<const TiffTag> georeference) {
  const bool deep = colors.size() + (missing ? 1 : 0) > 256;
  return std::make_unique<TiffMap>(path, size, colors_of_bytes(colors), deep, georeference);
}

}  // namespace lockstep
