#include <fcntl.h>
#include <sys/stat.h>
#include <tiffio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <tuple>

#include "core/system_text.h"
#include "io/codec.h"
#include "io/exif.h"
#include "io/raw_pixels.h"
#include "io/row_source.h"
#include "io/row_writers.h"
#include "io/tiff_tags.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr int kMostChannels = 4096;
// What a small file may ask for, whatever its header says.
constexpr std::uint64_t kGrantedBytes = std::uint64_t{32} << 20;

/// A compression that is read, and the most bytes that it makes of one.
struct Compression {
  std::uint16_t tag;
  std::uint64_t growth;
};
constexpr Compression kCompressions[] = {
    {COMPRESSION_NONE, 1},       {COMPRESSION_LZW, 4096},
    {COMPRESSION_JPEG, 4096},    {COMPRESSION_ADOBE_DEFLATE, 1032},
    {COMPRESSION_DEFLATE, 1032}, {COMPRESSION_PACKBITS, 64},
    {COMPRESSION_LZMA, 1 << 14}, {COMPRESSION_ZSTD, 1 << 16}};

/// What the header of a page says.
struct Page {
  tdir_t directory = 0;
  Size size;
  std::uint32_t width = 0, height = 0;  // as written, before they are believed
  std::uint16_t samples = 1, bits = 1, format = SAMPLEFORMAT_UINT, planes = PLANARCONFIG_CONTIG;
  std::uint16_t photometric = PHOTOMETRIC_MINISBLACK, compression = COMPRESSION_NONE;
  bool alpha = false;  // the last sample
  Turn turn;

  bool indexed() const { return photometric == PHOTOMETRIC_PALETTE; }
  int channels() const { return indexed() ? 3 : samples; }
  bool same_kind(const Page& other) const {
    return std::tie(size.height, size.width, samples, bits, format, photometric) ==
           std::tie(other.size.height, other.size.width, other.samples, other.bits, other.format,
                    other.photometric);
  }
};

/// How the values of a page lie: in tiles, or in strips, which are as wide as the image; all
/// samples of a pixel together, or each plane by itself.
struct Blocks {
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

/// Rows [first, first + count) of a page.
struct Rows {
  std::size_t first = 0, count = 0;

  static Rows all(const Page& page) { return {0, page.height}; }
};

/// The part of a plane that a block has.
struct Part {
  std::uint16_t plane = 0;
  std::size_t x = 0, y = 0, width = 0, height = 0;
};

struct CloseTiff {
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};

// libtiff's complaints come to the file that they are of: its handlers for all files would be
// shared with a program that this library is part of.
class TiffFile {
 public:
  TiffFile(RandomBytes& bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {
    const std::unique_ptr<TIFFOpenOptions, decltype(&TIFFOpenOptionsFree)> options(
        TIFFOpenOptionsAlloc(), TIFFOpenOptionsFree);
    TIFFOpenOptionsSetErrorHandlerExtR(options.get(), on_error, this);
    TIFFOpenOptionsSetWarningHandlerExtR(options.get(), on_warning, this);
    TIFFOpenOptionsSetMaxSingleMemAlloc(
        options.get(), static_cast<tmsize_t>(std::max(kGrantedBytes, bytes_.size() + 4096)));
    tiff_.reset(TIFFClientOpenExt(name_.c_str(), "rm", this, read, write, seek, close, size,
                                  nullptr, nullptr, options.get()));
    if (tiff_ == nullptr) throw damaged();
  }

  /// Those of full resolution. Throws where they are not of one kind, or none that is read.
  std::vector<Page> pages();
  /// Values of rows of a page, [count, W, samples], a byte at least for each. REQUIRES: room.
  void read(const Page& page, const Rows& rows, std::span<std::uint8_t> values);
  std::vector<std::uint8_t> read(const Page& page, const Rows& rows);
  std::vector<std::uint8_t> read(const Page& page) { return read(page, Rows::all(page)); }
  /// How many rows, from a multiple of it on, are decoded together.
  std::size_t step(const Page& page);
  /// Of a palette's places, in 8 bits.
  std::vector<Color> colors(const Page& page);
  std::optional<double> nodata(const Page& page);
  /// Its GeoTIFF tags.
  std::vector<TiffTag> georeference(const Page& page);

  DataError error(const std::string& text) const { return DataError(concat(name_, ": ", text)); }

 private:
  DataError damaged() const {
    return error(concat("expected a complete TIFF, but its ", bytes_.size(),
                        " bytes are truncated or damaged",
                        complaint_.empty() ? "" : concat(" (", complaint_, ")")));
  }
  Page page() const;
  /// Of a tag that libtiff may not know; none where it has another type.
  std::optional<TiffTag> values_of(std::uint32_t which, TIFFDataType type) const;
  void check(const Page& page) const;
  void check_values(const Page& page) const;
  void check_extent(const Page& page) const;
  Blocks blocks_of(const Page& page) const;
  void read_part(const Blocks& blocks, const Part& part, std::vector<std::uint8_t>& block);
  void read_lines(const Page& page, const Blocks& blocks, const Rows& rows,
                  std::span<std::uint8_t> values);
  void go_to(const Page& page) {
    if (here_ == page.directory) return;
    here_ = page.directory;
    line_ = 0;
    if (TIFFSetDirectory(tiff_.get(), page.directory) == 0) throw damaged();
    if (page.compression == COMPRESSION_JPEG && page.photometric == PHOTOMETRIC_YCBCR)
      TIFFSetField(tiff_.get(), TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
  }
  std::uint32_t tag(std::uint32_t which, std::uint32_t otherwise) const {
    std::uint32_t value = 0;
    return TIFFGetField(tiff_.get(), which, &value) == 1 ? value : otherwise;
  }
  std::uint16_t short_tag(std::uint32_t which) const {
    std::uint16_t value = 0;
    TIFFGetFieldDefaulted(tiff_.get(), which, &value);
    return value;
  }

  static int on_error(TIFF*, void* self, const char*, const char* format, va_list arguments) {
    auto* file = static_cast<TiffFile*>(self);
    std::array<char, 256> text{};
    std::vsnprintf(text.data(), text.size(), format, arguments);
    if (file->complaint_.empty()) file->complaint_ = text.data();
    return 1;
  }
  static int on_warning(TIFF*, void*, const char*, const char*, va_list) { return 1; }
  static tmsize_t read(thandle_t handle, void* out, tmsize_t count) {
    auto* file = static_cast<TiffFile*>(handle);
    const std::size_t got =
        file->bytes_.read(file->position_, out, static_cast<std::size_t>(count));
    file->position_ += got;
    return static_cast<tmsize_t>(got);
  }
  static tmsize_t write(thandle_t, void*, tmsize_t) { return 0; }
  static toff_t seek(thandle_t handle, toff_t offset, int whence) {
    auto* file = static_cast<TiffFile*>(handle);
    const std::uint64_t from = whence == SEEK_SET   ? 0
                               : whence == SEEK_CUR ? file->position_
                                                    : file->bytes_.size();
    return file->position_ = from + offset;
  }
  static int close(thandle_t) { return 0; }
  static toff_t size(thandle_t handle) { return static_cast<TiffFile*>(handle)->bytes_.size(); }

  RandomBytes& bytes_;
  std::string name_;
  std::string complaint_;  // libtiff's first
  std::uint64_t position_ = 0;
  std::optional<tdir_t> here_;  // the page that was gone to
  std::size_t line_ = 0;        // of it, that follows the one that read_lines read last
  std::unique_ptr<TIFF, CloseTiff> tiff_;
};

Page TiffFile::page() const {
  Page page;
  page.directory = TIFFCurrentDirectory(tiff_.get());
  page.width = tag(TIFFTAG_IMAGEWIDTH, 0);
  page.height = tag(TIFFTAG_IMAGELENGTH, 0);
  page.samples = short_tag(TIFFTAG_SAMPLESPERPIXEL);
  page.bits = short_tag(TIFFTAG_BITSPERSAMPLE);
  page.format = short_tag(TIFFTAG_SAMPLEFORMAT);
  page.planes = short_tag(TIFFTAG_PLANARCONFIG);
  page.photometric = short_tag(TIFFTAG_PHOTOMETRIC);
  page.compression = short_tag(TIFFTAG_COMPRESSION);
  page.turn = turn_of_orientation(short_tag(TIFFTAG_ORIENTATION));
  std::uint16_t extras = 0;
  std::uint16_t* kinds = nullptr;
  if (TIFFGetField(tiff_.get(), TIFFTAG_EXTRASAMPLES, &extras, &kinds) == 1 && extras > 0)
    page.alpha = kinds[extras - 1] != EXTRASAMPLE_UNSPECIFIED;
  return page;
}

void TiffFile::check_values(const Page& page) const {
  if (page.format == SAMPLEFORMAT_COMPLEXINT || page.format == SAMPLEFORMAT_COMPLEXIEEEFP)
    throw error("complex numbers: an image has real ones; write their parts as channels");
  const bool real = page.format == SAMPLEFORMAT_IEEEFP;
  const auto is_among = [&](std::initializer_list<int> bits) {
    return std::find(bits.begin(), bits.end(), page.bits) != bits.end();
  };
  const bool known = page.indexed() ? is_among({1, 2, 4, 8})
                     : real         ? is_among({16, 32, 64})
                                    : is_among({1, 8, 16, 32, 64});
  if (!known) {
    throw error(concat(page.bits, " bits per sample", real ? ", floating-point" : "",
                       ": 1, 8, 16, 32 or 64 are read; gdal_translate -ot ",
                       real ? "Float32" : "UInt16", " converts it"));
  }
  const bool of_jpeg =
      page.photometric == PHOTOMETRIC_YCBCR && page.compression == COMPRESSION_JPEG;
  const bool colors = page.photometric == PHOTOMETRIC_MINISBLACK ||
                      page.photometric == PHOTOMETRIC_MINISWHITE ||
                      page.photometric == PHOTOMETRIC_RGB || of_jpeg || page.indexed();
  if (!colors) {
    throw error(concat("its colours are of kind ", page.photometric,
                       " (PhotometricInterpretation), no gray, RGB or palette; convert it to RGB"));
  }
  if (page.indexed() && page.samples != 1) throw error("a palette, but more than one sample");
}

void TiffFile::check_extent(const Page& page) const {
  if (page.width == 0 || page.height == 0 || page.width > INT32_MAX || page.height > INT32_MAX) {
    throw error(concat("expected an image of 1 pixel at least, but its header says ", page.height,
                       "x", page.width));
  }
  const auto known = std::find_if(std::begin(kCompressions), std::end(kCompressions),
                                  [&](const auto& one) { return one.tag == page.compression; });
  if (known == std::end(kCompressions)) {
    throw error(concat("compression ", page.compression,
                       ": none, LZW, deflate, zstd, PackBits, LZMA and JPEG are read; "
                       "tiffcp -c lzw converts it"));
  }
  const double bytes = static_cast<double>(page.width) * page.height * page.samples * page.bits / 8;
  const double most = static_cast<double>(bytes_.size()) * static_cast<double>(known->growth);
  if (bytes > most && (bytes > static_cast<double>(kGrantedBytes) || known->growth == 1)) {
    throw error(concat("its header says ", page.height, "x", page.width, " pixels, its ",
                       bytes_.size(), " bytes cannot hold them"));
  }
}

void TiffFile::check(const Page& page) const {
  if (page.samples == 0 || page.samples > kMostChannels)
    throw error(concat(page.samples, " samples per pixel: expected 1..", kMostChannels));
  if (tag(TIFFTAG_IMAGEDEPTH, 1) > 1) throw error("pages that are volumes: write them as images");
  check_extent(page);
  check_values(page);
}

std::vector<Page> TiffFile::pages() {
  std::vector<Page> pages;
  int channels = 0;
  here_.reset();
  do {
    const std::uint32_t kind = tag(TIFFTAG_SUBFILETYPE, 0);
    if ((kind & (FILETYPE_REDUCEDIMAGE | FILETYPE_MASK)) != 0) continue;
    Page page = this->page();
    check(page);
    page.size = {static_cast<int>(page.height), static_cast<int>(page.width)};
    if (!pages.empty() && !page.same_kind(pages.front())) {
      throw error(concat("page ", pages.size() + 1, " is ", to_string(page.size), " of ", page.bits,
                         " bits, the first one ", to_string(pages.front().size), " of ",
                         pages.front().bits,
                         "; pages are read as channels and must be of one size and type"));
    }
    channels += page.channels();
    if (channels > kMostChannels) throw error(concat("more than ", kMostChannels, " channels"));
    pages.push_back(page);
  } while (TIFFReadDirectory(tiff_.get()) == 1);
  if (!complaint_.empty()) throw damaged();
  if (pages.empty()) throw error("holds no page of full resolution");
  return pages;
}

std::vector<Color> TiffFile::colors(const Page& page) {
  go_to(page);
  std::uint16_t *red = nullptr, *green = nullptr, *blue = nullptr;
  if (TIFFGetField(tiff_.get(), TIFFTAG_COLORMAP, &red, &green, &blue) != 1)
    throw error("a palette image without its palette");
  const std::size_t places = std::size_t{1} << page.bits;
  std::vector<Color> colors;
  for (std::size_t i = 0; i < places; ++i) {
    const auto in_8_bits = [](std::uint16_t value) {
      return static_cast<std::uint8_t>(value / 257);
    };
    colors.push_back({in_8_bits(red[i]), in_8_bits(green[i]), in_8_bits(blue[i])});
  }
  return colors;
}

// Without GDAL libtiff does not know such tags, and gives what is in them with its length.
std::optional<TiffTag> TiffFile::values_of(std::uint32_t which, TIFFDataType type) const {
  const TIFFField* field = TIFFFindField(tiff_.get(), which, TIFF_ANY);
  if (field == nullptr || TIFFFieldDataType(field) != type) return std::nullopt;
  const bool counted = TIFFFieldPassCount(field) != 0;
  if (!counted && type != TIFF_ASCII) return std::nullopt;
  const void* values = nullptr;
  TiffTag tag{which, 0, {}};
  std::uint16_t few = 0;
  bool found = false;
  if (!counted) {
    found = TIFFGetField(tiff_.get(), which, &values) == 1 && values != nullptr;
    if (found)
      tag.count = static_cast<std::uint32_t>(std::strlen(static_cast<const char*>(values)));
  } else if (TIFFFieldReadCount(field) == TIFF_VARIABLE2) {
    found = TIFFGetField(tiff_.get(), which, &tag.count, &values) == 1;
  } else {
    found = TIFFGetField(tiff_.get(), which, &few, &values) == 1;
    tag.count = few;
  }
  if (!found || values == nullptr) return std::nullopt;
  const auto* bytes = static_cast<const std::uint8_t*>(values);
  const auto size = static_cast<std::size_t>(TIFFDataWidth(type));
  tag.values.assign(bytes, bytes + tag.count * size);
  return tag;
}

std::optional<double> TiffFile::nodata(const Page& page) {
  go_to(page);
  const std::optional<TiffTag> tag = values_of(kNodataTag, TIFF_ASCII);
  if (!tag) return std::nullopt;
  const std::string value(tag->values.begin(), tag->values.end());
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (end == value.c_str() || std::isnan(number)) return std::nullopt;
  return number;
}

std::vector<TiffTag> TiffFile::georeference(const Page& page) {
  go_to(page);
  std::vector<TiffTag> tags;
  for (const TIFFFieldInfo& known : kCarriedTags) {
    std::optional<TiffTag> tag = values_of(known.field_tag, known.field_type);
    if (!tag || known.field_tag == kNodataTag) continue;
    if (known.field_type == TIFF_ASCII) tag->values.push_back(0);
    tags.push_back(std::move(*tag));
  }
  return tags;
}

/// The samples of a row of the block, a byte for each of fewer bits.
void unpack(const std::uint8_t* in, std::size_t count, unsigned bits, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bit = i * bits;
    const unsigned shift = 8 - bits - static_cast<unsigned>(bit % 8);
    out[i] = static_cast<std::uint8_t>((in[bit / 8] >> shift) & ((1U << bits) - 1));
  }
}

template <std::size_t bytes>
void scatter(const std::uint8_t* in, std::size_t count, std::size_t stride, std::uint8_t* out) {
  for (std::size_t i = 0; i < count; ++i) std::memcpy(out + i * stride, in + i * bytes, bytes);
}

/// Puts values of one plane where they belong among those of the others.
void put_plane(const std::uint8_t* in, std::size_t count, std::size_t bytes, std::size_t stride,
               std::uint8_t* out) {
  if (bytes == stride) {
    std::memcpy(out, in, count * bytes);
  } else if (bytes == 1) {
    scatter<1>(in, count, stride, out);
  } else if (bytes == 2) {
    scatter<2>(in, count, stride, out);
  } else if (bytes == 4) {
    scatter<4>(in, count, stride, out);
  } else {
    scatter<8>(in, count, stride, out);
  }
}

Blocks TiffFile::blocks_of(const Page& page) const {
  Blocks blocks;
  TIFF* const tiff = tiff_.get();
  blocks.tiled = TIFFIsTiled(tiff) != 0;
  const bool planar = page.planes == PLANARCONFIG_SEPARATE;
  blocks.planes = planar ? page.samples : 1;
  blocks.samples = planar ? 1 : page.samples;
  blocks.width = blocks.tiled ? tag(TIFFTAG_TILEWIDTH, 0) : page.width;
  blocks.height = blocks.tiled ? tag(TIFFTAG_TILELENGTH, 0)
                               : std::min(tag(TIFFTAG_ROWSPERSTRIP, UINT32_MAX), page.height);
  blocks.row_bytes = (blocks.width * blocks.samples * page.bits + 7) / 8;
  blocks.bytes = blocks.tiled ? TIFFTileSize64(tiff) : TIFFStripSize64(tiff);
  const std::uint64_t image =
      std::uint64_t{page.width} * page.height * page.samples * std::max<unsigned>(page.bits / 8, 1);
  // A tile may be larger than the image, but hardly by much.
  const bool fits = blocks.width > 0 && blocks.height > 0 &&
                    blocks.bytes == blocks.row_bytes * blocks.height &&
                    blocks.bytes <= std::max(kGrantedBytes, 4 * image);
  if (fits) return blocks;
  throw error(concat("its ", blocks.tiled ? "tiles" : "strips", " of ", blocks.bytes,
                     " bytes are none of an image of ", to_string(page.size)));
}

void TiffFile::read_part(const Blocks& blocks, const Part& part, std::vector<std::uint8_t>& block) {
  TIFF* const tiff = tiff_.get();
  const auto x = static_cast<std::uint32_t>(part.x), y = static_cast<std::uint32_t>(part.y);
  // The last strip ends with the image; the last tiles do not.
  const std::size_t rows = blocks.tiled ? blocks.height : part.height;
  const auto bytes = static_cast<tmsize_t>(rows * blocks.row_bytes);
  const tmsize_t got =
      blocks.tiled
          ? TIFFReadEncodedTile(tiff, TIFFComputeTile(tiff, x, y, 0, part.plane), block.data(),
                                bytes)
          : TIFFReadEncodedStrip(tiff, TIFFComputeStrip(tiff, y, part.plane), block.data(), bytes);
  if (got != bytes || !complaint_.empty()) throw damaged();
}

/// Puts the rows of the part, which `block` holds, among the values of the page's `rows`.
void place_part(const Page& page, const Blocks& blocks, const Part& part, const Rows& rows,
                const std::vector<std::uint8_t>& block, std::span<std::uint8_t> values) {
  const std::size_t bytes = std::max<std::size_t>(page.bits / 8, 1);
  const std::size_t stride = bytes * page.samples;
  std::vector<std::uint8_t> row(page.bits < 8 ? part.width * blocks.samples : 0);
  const std::size_t begin = std::max(part.y, rows.first);
  const std::size_t end = std::min(part.y + part.height, rows.first + rows.count);
  for (std::size_t y = begin; y < end; ++y) {
    const std::uint8_t* in = block.data() + (y - part.y) * blocks.row_bytes;
    if (page.bits < 8) {
      unpack(in, row.size(), page.bits, row.data());
      in = row.data();
    }
    put_plane(
        in, part.width, bytes * blocks.samples, stride,
        values.data() + ((y - rows.first) * page.width + part.x) * stride + part.plane * bytes);
  }
}

std::vector<std::uint8_t> TiffFile::read(const Page& page, const Rows& rows) {
  const std::uint64_t samples = std::uint64_t{page.width} * rows.count * page.samples;
  std::vector<std::uint8_t> values(samples * std::max<unsigned>(page.bits / 8, 1));
  read(page, rows, values);
  return values;
}

void TiffFile::read(const Page& page, const Rows& rows, std::span<std::uint8_t> values) {
  go_to(page);
  const Blocks blocks = blocks_of(page);
  if (blocks.by_lines()) return read_lines(page, blocks, rows, values);
  const std::size_t width = page.width, height = page.height;
  std::vector<std::uint8_t> block(blocks.bytes);
  Part part;
  for (part.plane = 0; part.plane < blocks.planes; ++part.plane) {
    part.y = rows.first / blocks.height * blocks.height;
    for (; part.y < rows.first + rows.count; part.y += blocks.height) {
      for (part.x = 0; part.x < width; part.x += blocks.width) {
        part.height = std::min(blocks.height, height - part.y);
        part.width = std::min(blocks.width, width - part.x);
        read_part(blocks, part, block);
        place_part(page, blocks, part, rows, block, values);
      }
    }
  }
}

// Compressed lines are decoded on from the one that was read last, or from their strip's first.
void TiffFile::read_lines(const Page& page, const Blocks& blocks, const Rows& rows,
                          std::span<std::uint8_t> values) {
  std::vector<std::uint8_t> line(blocks.row_bytes);
  const std::size_t strip = rows.first / blocks.height * blocks.height;
  Part part{.width = page.width, .height = 1};
  part.y = line_ <= rows.first ? std::max(line_, strip) : strip;
  for (; part.y < rows.first + rows.count; ++part.y) {
    const auto y = static_cast<std::uint32_t>(part.y);
    if (TIFFReadScanline(tiff_.get(), line.data(), y) != 1 || !complaint_.empty()) throw damaged();
    if (part.y >= rows.first) place_part(page, blocks, part, rows, line, values);
  }
  line_ = part.y;
}

std::size_t TiffFile::step(const Page& page) {
  go_to(page);
  const Blocks blocks = blocks_of(page);
  return blocks.by_lines() ? 1 : blocks.height;
}

PixelType type_of(const Page& page) {
  using enum PixelType;
  const int width = page.bits < 16 ? 0 : page.bits == 16 ? 1 : page.bits == 32 ? 2 : 3;
  if (page.indexed()) return kUint8;
  if (page.format == SAMPLEFORMAT_IEEEFP)
    return std::array{kFloat16, kFloat16, kFloat32, kFloat64}[static_cast<std::size_t>(width)];
  if (page.format == SAMPLEFORMAT_INT && page.bits > 1)
    return std::array{kInt8, kInt16, kInt32, kInt64}[static_cast<std::size_t>(width)];
  return std::array{kUint8, kUint16, kUint32, kUint64}[static_cast<std::size_t>(width)];
}

std::vector<std::uint8_t> in_colors(const std::vector<std::uint8_t>& indices,
                                    const std::vector<Color>& colors) {
  std::vector<std::uint8_t> rgb;
  rgb.reserve(indices.size() * 3);
  for (const std::uint8_t index : indices)
    rgb.insert(rgb.end(), colors[index].begin(), colors[index].end());
  return rgb;
}

std::vector<std::uint8_t> read_channels(TiffFile& file, const Page& page, const Rows& rows) {
  std::vector<std::uint8_t> values = file.read(page, rows);
  return page.indexed() ? in_colors(values, file.colors(page)) : values;
}

FileChannels channels_of(const std::vector<Page>& pages) {
  const Page& first = pages.front();
  return {first.channels() * static_cast<int>(pages.size()), first.alpha && pages.size() == 1,
          static_cast<int>(pages.size())};
}

Size size_of(const Page& page, const Rows& rows) {
  return {static_cast<int>(rows.count), page.size.width};
}

/// The channels of all pages, one page's after another's in each pixel.
RawPixels stack_of(TiffFile& file, const std::vector<Page>& pages, const Rows& rows) {
  const Page& first = pages.front();
  RawPixels raw{size_of(first, rows), channels_of(pages).count, type_of(first), {}};
  if (pages.size() == 1) {
    raw.bytes = read_channels(file, first, rows);
    return raw;
  }
  const std::size_t pixels = std::size_t{first.width} * rows.count;
  const std::size_t each = static_cast<std::size_t>(first.channels()) * bytes_of(raw.type);
  raw.bytes.resize(pixels * each * pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::vector<std::uint8_t> values = read_channels(file, pages[i], rows);
    for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
      std::memcpy(raw.bytes.data() + (pixel * pages.size() + i) * each,
                  values.data() + pixel * each, each);
    }
  }
  return raw;
}

/// All channels of the rows.
void read_rows(TiffFile& file, const std::vector<Page>& pages, const Rows& rows, Image& image) {
  const Page& first = pages.front();
  const std::span<std::uint8_t> room =
      pages.size() > 1 || first.indexed()
          ? std::span<std::uint8_t>()
          : room_for(size_of(first, rows), first.channels(), type_of(first), image);
  if (room.empty()) {
    put_image(stack_of(file, pages, rows), std::nullopt, image);
  } else {
    file.read(first, rows, room);
  }
}

Turn shown(const Page& page, ImageOrientation orientation) {
  return orientation == ImageOrientation::kViewer ? page.turn : Turn{};
}

/// A file that stays open.
struct OpenTiff {
  RandomBytes bytes;
  TiffFile file;
  std::vector<Page> pages;

  OpenTiff(const std::filesystem::path& path)
      : bytes(path), file(bytes, path.string()), pages(file.pages()) {}
};

class TiffRows : public RowSource {
 public:
  TiffRows(std::unique_ptr<OpenTiff> tiff, std::vector<int> channels, std::optional<double> nodata)
      : RowSource(tiff->pages.front().size, std::move(channels), nodata),
        tiff_(std::move(tiff)),
        step_(static_cast<int>(tiff_->file.step(tiff_->pages.front()))) {}
  int step() const override { return step_; }

 private:
  void decode(int first, int count, Image& rows) override {
    const Rows some{static_cast<std::size_t>(first), static_cast<std::size_t>(count)};
    read_rows(tiff_->file, tiff_->pages, some, rows);
  }

  std::unique_ptr<OpenTiff> tiff_;
  int step_;
};

}  // namespace

RandomBytes::RandomBytes(const std::filesystem::path& path)
    : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat about {};
  if (file_ < 0 || ::fstat(file_, &about) != 0)
    throw DataError(concat(path.string(), ": cannot be read: ", system_text(errno)));
  size_ = static_cast<std::uint64_t>(about.st_size);
}

RandomBytes::~RandomBytes() {
  if (file_ >= 0) ::close(file_);
}

std::size_t RandomBytes::read(std::uint64_t offset, void* out, std::size_t count) const {
  if (offset >= size_) return 0;
  count = static_cast<std::size_t>(std::min<std::uint64_t>(count, size_ - offset));
  if (file_ < 0) {
    std::memcpy(out, memory_.data() + offset, count);
    return count;
  }
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = ::pread(file_, static_cast<char*>(out) + done, count - done,
                                static_cast<off_t>(offset + done));
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

bool is_tiff(ImageBytes file) {
  constexpr std::array<std::array<std::uint8_t, 4>, 4> kMarks{
      {{'I', 'I', 42, 0}, {'M', 'M', 0, 42}, {'I', 'I', 43, 0}, {'M', 'M', 0, 43}}};
  return file.size() >= 4 && std::any_of(kMarks.begin(), kMarks.end(), [&](const auto& mark) {
           return std::equal(mark.begin(), mark.end(), file.begin());
         });
}

ImageInfo tiff_info(RandomBytes& bytes, const std::string& name, const ImageRule& rule) {
  TiffFile file(bytes, name);
  const std::vector<Page> pages = file.pages();
  const FileChannels channels = channels_of(pages);
  return {shown(pages.front(), rule.orientation).size_of(pages.front().size),
          type_of(pages.front()), channels.count, channels.alpha};
}

void decode_tiff(RandomBytes& bytes, const std::string& name, const ImageRule& rule, Image& image) {
  TiffFile file(bytes, name);
  const std::vector<Page> pages = file.pages();
  const Page& first = pages.front();
  const FileChannels channels = channels_of(pages);
  const std::vector<int> chosen = chosen_channels(channels, rule, name);
  check_image_size(first.size, name);
  read_rows(file, pages, Rows::all(first), image);
  mark_missing(rule.nodata ? rule.nodata : file.nodata(first), image);
  take_channels(chosen, image);
  turn(shown(first, rule.orientation), image);
}

std::vector<TiffTag> georeference_of(const std::filesystem::path& path, const ImageRule& rule) {
  std::array<std::uint8_t, 4> head{};
  const std::size_t got = RandomBytes(path).read(0, head.data(), head.size());
  if (got < head.size() || !is_tiff(head)) return {};
  OpenTiff tiff(path);
  const Page& first = tiff.pages.front();
  if (shown(first, rule.orientation).turns()) return {};
  return tiff.file.georeference(first);
}

std::unique_ptr<RowSource> tiff_rows(const std::filesystem::path& path, const ImageRule& rule) {
  auto tiff = std::make_unique<OpenTiff>(path);
  const Page& first = tiff->pages.front();
  if (shown(first, rule.orientation).turns()) return nullptr;
  std::vector<int> chosen = chosen_channels(channels_of(tiff->pages), rule, path.string());
  const std::optional<double> nodata = rule.nodata ? rule.nodata : tiff->file.nodata(first);
  return std::make_unique<TiffRows>(std::move(tiff), std::move(chosen), nodata);
}

MaskKind decode_tiff_mask(RandomBytes& bytes, const std::string& name, const LabelRule& rule,
                          LabelMap& labels, Image& colored) {
  TiffFile file(bytes, name);
  const std::vector<Page> pages = file.pages();
  const Page& page = pages.front();
  if (page.compression == COMPRESSION_JPEG) {
    throw file.error(
        "expected labels, got JPEG, whose lossy compression changes classes; export "
        "the labels again");
  }
  check_image_size(page.size, name);
  if (pages.size() > 1 || (page.samples != 1 && (page.samples < 3 || page.samples > 4))) {
    throw file.error(concat("expected labels of one channel, or RGB, got ",
                            channels_of(pages).count, " channels"));
  }
  if (page.samples > 1) {
    if (type_of(page) != PixelType::kUint8)
      throw file.error("expected colours of 8 bits, got others; convert the mask");
    put_image({page.size, page.samples, PixelType::kUint8, file.read(page)}, std::nullopt, colored);
    take_channels({0, 1, 2}, colored);
    turn(shown(page, rule.orientation), colored);
    return MaskKind::kColors;
  }
  RawPixels raw{page.size, 1, type_of(page), file.read(page)};
  if (rule.stretch_one_bit && page.bits == 1 && !page.indexed()) {
    const std::uint8_t white = page.photometric == PHOTOMETRIC_MINISWHITE ? 0 : 1;
    for (std::uint8_t& value : raw.bytes) value = value == white ? 255 : 0;
  }
  put_labels(raw, name, rule, labels);
  turn(shown(page, rule.orientation), labels);
  return MaskKind::kValues;
}

}  // namespace lockstep
