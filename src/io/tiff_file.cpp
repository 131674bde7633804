#include "io/tiff_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "io/codec.h"
#include "io/raw_pixels.h"
#include "io/tiff_tags.h"

namespace lockstep {
namespace {

constexpr int kMostChannels = 4096;
// What a small file may ask for, whatever its header says.
constexpr std::uint64_t kGrantedBytes = std::uint64_t{32} << 20;
// The most bytes that one of the file makes where blocks are missing, which cost an entry each.
constexpr std::uint64_t kSparseGrowth = 1 << 18;

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

}  // namespace

TiffFile::TiffFile(FileBytes& bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {
  const std::unique_ptr<TIFFOpenOptions, decltype(&TIFFOpenOptionsFree)> options(
      TIFFOpenOptionsAlloc(), TIFFOpenOptionsFree);
  TIFFOpenOptionsSetErrorHandlerExtR(options.get(), on_error, this);
  TIFFOpenOptionsSetWarningHandlerExtR(options.get(), on_warning, this);
  TIFFOpenOptionsSetMaxSingleMemAlloc(
      options.get(), static_cast<tmsize_t>(std::max(kGrantedBytes, bytes_.size() + 4096)));
  tiff_.reset(TIFFClientOpenExt(name_.c_str(), "rm", this, read, write, seek, close, size, nullptr,
                                nullptr, options.get()));
  if (tiff_ == nullptr) throw damaged();
}

int TiffFile::on_error(TIFF*, void* self, const char*, const char* format, va_list arguments) {
  auto* file = static_cast<TiffFile*>(self);
  std::array<char, 256> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  if (file->complaint_.empty()) file->complaint_ = text.data();
  return 1;
}

tmsize_t TiffFile::read(thandle_t handle, void* out, tmsize_t count) {
  auto* file = static_cast<TiffFile*>(handle);
  const std::size_t got = file->bytes_.read(file->position_, out, static_cast<std::size_t>(count));
  file->position_ += got;
  return static_cast<tmsize_t>(got);
}

toff_t TiffFile::seek(thandle_t handle, toff_t offset, int whence) {
  auto* file = static_cast<TiffFile*>(handle);
  const std::uint64_t from = whence == SEEK_SET   ? 0
                             : whence == SEEK_CUR ? file->position_
                                                  : file->bytes_.size();
  return file->position_ = from + offset;
}

void TiffFile::go_to(const TiffPage& page) {
  if (here_ == page.directory) return;
  if (TIFFSetDirectory(tiff_.get(), page.directory) == 0) throw damaged();
  here_ = page.directory;
  line_ = 0;
  if (page.compression == COMPRESSION_JPEG && page.photometric == PHOTOMETRIC_YCBCR)
    TIFFSetField(tiff_.get(), TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
}

TiffPage TiffFile::page() const {
  TiffPage page;
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

void TiffFile::check_values(const TiffPage& page) const {
  if (page.format == SAMPLEFORMAT_COMPLEXINT || page.format == SAMPLEFORMAT_COMPLEXIEEEFP)
    throw error("complex numbers: an image has real ones; write their parts as channels");
  const bool real = page.format == SAMPLEFORMAT_IEEEFP;
  const auto is_among = [&](std::initializer_list<int> bits) {
    return std::find(bits.begin(), bits.end(), page.bits) != bits.end();
  };
  const bool known = page.indexed() ? is_among({1, 2, 4, 8})
                     : real         ? is_among({16, 32, 64})
                                    : is_among({1, 8, 16, 32, 64});
  if (!known && page.indexed()) {
    throw error(concat("a palette of ", page.bits,
                       " bits: those of 1, 2, 4 and 8 are read; gdal_translate -expand rgb makes "
                       "colours of it"));
  }
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

void TiffFile::check_extent(const TiffPage& page) const {
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
  const auto cannot_hold = [&](std::uint64_t growth) {
    return bytes > static_cast<double>(bytes_.size()) * static_cast<double>(growth) &&
           (bytes > static_cast<double>(kGrantedBytes) || growth == 1);
  };
  if (cannot_hold(known->growth) && (!lacks_blocks() || cannot_hold(kSparseGrowth))) {
    throw error(concat("its header says ", page.height, "x", page.width, " pixels, its ",
                       bytes_.size(), " bytes cannot hold them"));
  }
}

bool TiffFile::lacks_blocks() const {
  TIFF* const tiff = tiff_.get();
  const std::uint32_t count =
      TIFFIsTiled(tiff) != 0 ? TIFFNumberOfTiles(tiff) : TIFFNumberOfStrips(tiff);
  std::uint32_t there = 0;
  while (there < count && TIFFGetStrileByteCount(tiff, there) > 0) ++there;
  return there < count;
}

void TiffFile::check(const TiffPage& page) const {
  if (page.samples == 0 || page.samples > kMostChannels)
    throw error(concat(page.samples, " samples per pixel: expected 1..", kMostChannels));
  if (tag(TIFFTAG_IMAGEDEPTH, 1) > 1) throw error("pages that are volumes: write them as images");
  check_extent(page);
  check_values(page);
}

std::vector<TiffPage> TiffFile::pages() {
  std::vector<TiffPage> pages;
  int channels = 0;
  here_.reset();
  do {
    const std::uint32_t kind = tag(TIFFTAG_SUBFILETYPE, 0);
    if ((kind & (FILETYPE_REDUCEDIMAGE | FILETYPE_MASK)) != 0) continue;
    TiffPage page = this->page();
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

std::vector<Color> TiffFile::colors(const TiffPage& page) {
  go_to(page);
  std::uint16_t *red = nullptr, *green = nullptr, *blue = nullptr;
  if (TIFFGetField(tiff_.get(), TIFFTAG_COLORMAP, &red, &green, &blue) != 1)
    throw error("a palette image without its palette");
  const std::size_t places = std::size_t{1} << page.bits;
  const auto is_deep = [](std::uint16_t value) { return value > 255; };
  // They are of 16 bits, but some programs write 8.
  const bool deep = std::any_of(red, red + places, is_deep) ||
                    std::any_of(green, green + places, is_deep) ||
                    std::any_of(blue, blue + places, is_deep);
  const auto in_8_bits = [deep](std::uint16_t value) {
    return static_cast<std::uint8_t>(deep ? value >> 8 : value);
  };
  std::vector<Color> colors;
  for (std::size_t i = 0; i < places; ++i)
    colors.push_back({in_8_bits(red[i]), in_8_bits(green[i]), in_8_bits(blue[i])});
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

std::optional<double> TiffFile::nodata(const TiffPage& page) {
  go_to(page);
  return page.indexed() ? std::nullopt : declared_nodata();
}

std::optional<double> TiffFile::declared_nodata() const {
  const std::optional<TiffTag> tag = values_of(kNodataTag, TIFF_ASCII);
  if (!tag) return std::nullopt;
  const std::string value(tag->values.begin(), tag->values.end());
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  if (end == value.c_str() || std::isnan(number)) return std::nullopt;
  return number;
}

std::vector<TiffTag> TiffFile::georeference(const TiffPage& page) {
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

namespace {

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

}  // namespace

TiffBlocks TiffFile::blocks_of(const TiffPage& page) const {
  TiffBlocks blocks;
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

std::uint32_t TiffFile::index_of(const TiffBlocks& blocks, const TiffPart& part) const {
  const auto x = static_cast<std::uint32_t>(part.x), y = static_cast<std::uint32_t>(part.y);
  return blocks.tiled ? TIFFComputeTile(tiff_.get(), x, y, 0, part.plane)
                      : TIFFComputeStrip(tiff_.get(), y, part.plane);
}

// Such a block is nodata, or 0 where the file has none: so GDAL defines it (SPARSE_OK).
bool TiffFile::fill_missing(const TiffPage& page, std::uint32_t index,
                            std::vector<std::uint8_t>& block) const {
  if (TIFFGetStrileByteCount(tiff_.get(), index) > 0) return false;
  if (page.format == SAMPLEFORMAT_IEEEFP) {
    const bool declared = values_of(kNodataTag, TIFF_ASCII).has_value();
    std::fill(block.begin(), block.end(), std::uint8_t(declared ? 0xFF : 0));  // NaN in any size
    return true;
  }
  const int places = std::min<int>(page.bits, 53) - (page.format == SAMPLEFORMAT_INT ? 1 : 0);
  const double most = std::ldexp(1, places) - 1;
  const double least = page.format == SAMPLEFORMAT_INT ? -most - 1 : 0;
  auto value = static_cast<std::int64_t>(std::clamp(declared_nodata().value_or(0), least, most));
  if (page.bits < 8) value *= 255 / ((1 << page.bits) - 1);  // in every pixel of the byte
  const std::size_t bytes = std::max<std::size_t>(page.bits / 8, 1);
  for (std::size_t at = 0; at + bytes <= block.size(); at += bytes)
    std::memcpy(&block[at], &value, bytes);
  return true;
}

void TiffFile::read_part(const TiffPage& page, const TiffBlocks& blocks, const TiffPart& part,
                         std::vector<std::uint8_t>& block) {
  TIFF* const tiff = tiff_.get();
  const std::uint32_t index = index_of(blocks, part);
  if (fill_missing(page, index, block)) return;
  // The last strip ends with the image; the last tiles do not.
  const std::size_t rows = blocks.tiled ? blocks.height : part.height;
  const auto bytes = static_cast<tmsize_t>(rows * blocks.row_bytes);
  const tmsize_t got = blocks.tiled ? TIFFReadEncodedTile(tiff, index, block.data(), bytes)
                                    : TIFFReadEncodedStrip(tiff, index, block.data(), bytes);
  if (got != bytes || !complaint_.empty()) throw damaged();
}

namespace {

/// Puts what is wanted of the part, which `block` holds, among those values.
void place_part(const TiffPage& page, const TiffBlocks& blocks, const TiffPart& part,
                const TiffPart& wanted, const std::vector<std::uint8_t>& block,
                std::span<std::uint8_t> values) {
  const std::size_t bytes = std::max<std::size_t>(page.bits / 8, 1);
  const std::size_t stride = bytes * page.samples;
  std::vector<std::uint8_t> row(page.bits < 8 ? part.width * blocks.samples : 0);
  const std::size_t left = std::max(part.x, wanted.x);
  const std::size_t count = std::min(part.x + part.width, wanted.x + wanted.width) - left;
  const std::size_t end = std::min(part.y + part.height, wanted.y + wanted.height);
  for (std::size_t y = std::max(part.y, wanted.y); y < end; ++y) {
    const std::uint8_t* in = block.data() + (y - part.y) * blocks.row_bytes;
    if (page.bits < 8) {
      unpack(in, row.size(), page.bits, row.data());
      in = row.data();
    }
    in += (left - part.x) * bytes * blocks.samples;
    put_plane(in, count, bytes * blocks.samples, stride,
              values.data() + ((y - wanted.y) * wanted.width + left - wanted.x) * stride +
                  part.plane * bytes);
  }
}

}  // namespace

std::vector<std::uint8_t> TiffFile::read(const TiffPage& page, const ImagePart& part) {
  const TiffPart wanted = TiffPart::of(part);
  const std::uint64_t samples = std::uint64_t{wanted.width} * wanted.height * page.samples;
  std::vector<std::uint8_t> values(samples * std::max<unsigned>(page.bits / 8, 1));
  read(page, part, values);
  return values;
}

void TiffFile::read(const TiffPage& page, const ImagePart& of_page,
                    std::span<std::uint8_t> values) {
  go_to(page);
  const TiffBlocks blocks = blocks_of(page);
  const TiffPart wanted = TiffPart::of(of_page);
  if (blocks.by_lines()) return read_lines(page, blocks, wanted, values);
  std::vector<std::uint8_t> block(blocks.bytes);
  TiffPart part;
  for (part.plane = 0; part.plane < blocks.planes; ++part.plane) {
    part.y = wanted.y / blocks.height * blocks.height;
    for (; part.y < wanted.y + wanted.height; part.y += blocks.height) {
      part.x = wanted.x / blocks.width * blocks.width;
      for (; part.x < wanted.x + wanted.width; part.x += blocks.width) {
        part.height = std::min(blocks.height, page.height - part.y);
        part.width = std::min(blocks.width, page.width - part.x);
        read_part(page, blocks, part, block);
        place_part(page, blocks, part, wanted, block, values);
      }
    }
  }
}

// Compressed lines are decoded on from the one that was read last, or from their strip's first.
void TiffFile::read_lines(const TiffPage& page, const TiffBlocks& blocks, const TiffPart& wanted,
                          std::span<std::uint8_t> values) {
  std::vector<std::uint8_t> line(blocks.row_bytes);
  const std::size_t strip = wanted.y / blocks.height * blocks.height;
  TiffPart part{.width = page.width, .height = 1};
  part.y = line_ <= wanted.y ? std::max(line_, strip) : strip;
  for (; part.y < wanted.y + wanted.height; ++part.y) {
    const auto y = static_cast<std::uint32_t>(part.y);
    if (!fill_missing(page, index_of(blocks, part), line) &&
        (TIFFReadScanline(tiff_.get(), line.data(), y) != 1 || !complaint_.empty())) {
      throw damaged();
    }
    if (part.y >= wanted.y) place_part(page, blocks, part, wanted, line, values);
  }
  line_ = part.y;
}

std::size_t TiffFile::step(const TiffPage& page) {
  go_to(page);
  const TiffBlocks blocks = blocks_of(page);
  return blocks.by_lines() ? 1 : blocks.height;
}

}  // namespace lockstep
