#include <png.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "io/codec.h"
#include "io/raw_pixels.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr std::array<std::uint8_t, 8> kSignature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

// libpng reports errors by longjmp, which skips destructors: the methods that call setjmp hold no
// local object that needs one, and turn the jump into `false`.
class PngDecoder {
 public:
  explicit PngDecoder(ImageBytes file)
      : file_(file),
        png_(png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning)),
        info_(png_ == nullptr ? nullptr : png_create_info_struct(png_)) {
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw Error("libpng: out of memory");
    }
  }
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  bool read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    // Of chunks that say nothing of the pixels libpng would ask for as many bytes as they claim.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_read_fn(png_, this, on_read);
    png_read_info(png_, info_);
    return true;
  }
  Size size() const {
    return {static_cast<int>(png_get_image_height(png_, info_)),
            static_cast<int>(png_get_image_width(png_, info_))};
  }
  /// Of the file's own pixels, as it stores them.
  std::uint64_t bytes() const {
    return std::uint64_t{png_get_rowbytes(png_, info_)} * png_get_image_height(png_, info_);
  }
  bool interlaced() const { return png_get_interlace_type(png_, info_) != PNG_INTERLACE_NONE; }
  int bit_depth() const { return png_get_bit_depth(png_, info_); }
  int color_type() const { return png_get_color_type(png_, info_); }

  bool transparent() {
    return (color_type() & PNG_COLOR_MASK_ALPHA) != 0 || png_get_valid(png_, info_, PNG_INFO_tRNS);
  }
  /// Asks for 8 bits, or for 16 where the file has them, the low byte first: colours of a palette,
  /// gray as three equal channels and no alpha where that is said.
  bool convert(bool to_rgb, bool strip_alpha) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_expand(png_);
    png_set_swap(png_);
    if (to_rgb) png_set_gray_to_rgb(png_);
    if (strip_alpha) png_set_strip_alpha(png_);
    return true;
  }
  /// Of an indexed file, after its header; else empty.
  std::vector<Color> palette() const {
    png_colorp colors = nullptr;
    int count = 0;
    std::vector<Color> palette;
    if (png_get_PLTE(png_, info_, &colors, &count) == 0) return palette;
    for (int i = 0; i < count; ++i) {
      palette.push_back({colors[i].red, colors[i].green, colors[i].blue});
    }
    return palette;
  }
  /// Asks for the file's own values: a byte for each pixel, or two, the low one first.
  bool keep_raw_values() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_packing(png_);
    png_set_swap(png_);
    return true;
  }
  /// Decodes all rows and reads on to the end of the file, where a truncation shows.
  bool read_pixels(std::uint8_t* pixels, std::size_t row_bytes) {
    rows_.resize(static_cast<std::size_t>(size().height));
    for (std::size_t y = 0; y < rows_.size(); ++y) rows_[y] = pixels + y * row_bytes;
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != row_bytes) png_error(png_, "unexpected row size");
    png_read_image(png_, rows_.data());
    png_read_end(png_, nullptr);
    return true;
  }
  /// Decodes rows down to the part's last, and keeps what lies in it. REQUIRES: not interlaced.
  bool read_part(std::uint8_t* pixels, std::size_t pixel_bytes, const ImagePart& part) {
    const std::size_t kept = static_cast<std::size_t>(part.size.width) * pixel_bytes;
    const std::size_t left = static_cast<std::size_t>(part.left) * pixel_bytes;
    row_.resize(static_cast<std::size_t>(size().width) * pixel_bytes);
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != row_.size()) png_error(png_, "unexpected row size");
    for (int y = -part.top; y < part.size.height; ++y) {
      png_read_row(png_, row_.data(), nullptr);
      if (y >= 0) std::memcpy(pixels + static_cast<std::size_t>(y) * kept, &row_[left], kept);
    }
    return true;
  }
  const char* error() const { return error_.data(); }

 private:
  static void on_error(png_structp png, png_const_charp message) {
    auto* self = static_cast<PngDecoder*>(png_get_error_ptr(png));
    std::strncpy(self->error_.data(), message, self->error_.size() - 1);
    png_longjmp(png, 1);
  }
  // What remains a warning does not concern the pixels: ancillary chunks, colour profiles.
  static void on_warning(png_structp, png_const_charp) {}
  static void on_read(png_structp png, png_bytep out, png_size_t count) {
    auto* self = static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (count > self->file_.size() - self->position_) png_error(png, "the file ends early");
    std::memcpy(out, self->file_.data() + self->position_, count);
    self->position_ += count;
  }

  ImageBytes file_;
  std::size_t position_ = 0;
  std::array<char, 128> error_{};
  std::vector<png_bytep> rows_;
  std::vector<std::uint8_t> row_;
  png_structp png_;
  png_infop info_;
};

[[noreturn]] void throw_damaged(const PngDecoder& decoder, ImageBytes file,
                                const std::string& name) {
  throw DataError(concat(name, ": expected a complete PNG, but its ", file.size(),
                         " bytes are truncated or damaged (", decoder.error(), ")"));
}

/// Throws for a size that the file cannot hold, before memory is asked for.
void check_size(const PngDecoder& decoder, ImageBytes file, const std::string& name) {
  constexpr std::uint64_t kMostCompressed = 1032;  // bytes that deflate makes of one
  check_image_size(decoder.size(), name);
  if (decoder.bytes() / kMostCompressed <= file.size()) return;
  throw DataError(concat(name, ": expected a complete PNG of ", to_string(decoder.size()),
                         ", but its ", file.size(), " bytes are truncated or damaged"));
}

/// What is decoded of the image: a part, where its rows follow one another.
ImagePart decoded_part(const PngDecoder& decoder, const std::optional<ImagePart>& part,
                       const std::string& name) {
  return part_of(decoder.size(), decoder.interlaced() ? std::nullopt : part, name);
}

/// REQUIRES: room for the part.
void read_pixels(PngDecoder& decoder, std::size_t pixel_bytes, const ImagePart& part,
                 ImageBytes file, const std::string& name, std::uint8_t* pixels) {
  const Size size = decoder.size();
  const bool done =
      part.size == size
          ? decoder.read_pixels(pixels, static_cast<std::size_t>(size.width) * pixel_bytes)
          : decoder.read_part(pixels, pixel_bytes, part);
  if (!done) throw_damaged(decoder, file, name);
}

}  // namespace

bool is_png(ImageBytes file) {
  return file.size() >= kSignature.size() &&
         std::equal(kSignature.begin(), kSignature.end(), file.begin());
}

ImageInfo png_info(ImageBytes file, const std::string& name) {
  if (file.size() < 26)
    throw DataError(concat(name, ": expected a PNG, but the file ends in its header"));
  const Size size{static_cast<int>(png_get_uint_32(file.data() + 20)),
                  static_cast<int>(png_get_uint_32(file.data() + 16))};
  check_image_size(size, name);
  const std::uint8_t kind = file[25];
  const bool alpha = (kind & PNG_COLOR_MASK_ALPHA) != 0;
  return {size, file[24] == 16 ? PixelType::kUint16 : PixelType::kUint8,
          ((kind & PNG_COLOR_MASK_COLOR) != 0 ? 3 : 1) + (alpha ? 1 : 0), alpha};
}

void decode_png(ImageBytes file, const std::string& name, const ImageRule& rule, Image& image) {
  PngDecoder decoder(file);
  if (!decoder.read_header()) throw_damaged(decoder, file, name);
  const bool color = (decoder.color_type() & PNG_COLOR_MASK_COLOR) != 0;
  const bool to_rgb = rule.bands.empty() && rule.channels == 3;
  const int opaque = color || to_rgb ? 3 : 1;
  // A colour that is said to be transparent is alpha only where alpha is asked for.
  const bool keep_alpha = decoder.transparent() && (!rule.bands.empty() || rule.channels > opaque);
  const FileChannels channels{.count = opaque + (keep_alpha ? 1 : 0), .alpha = keep_alpha};
  const std::vector<int> chosen = chosen_channels(channels, rule, name);
  if (!decoder.convert(to_rgb, !keep_alpha)) throw_damaged(decoder, file, name);
  check_size(decoder, file, name);
  const bool deep = decoder.bit_depth() == 16;
  const ImagePart part = decoded_part(decoder, rule.part, name);
  const auto count = static_cast<std::size_t>(channels.count);
  const std::size_t values = count * static_cast<std::size_t>(part.size.height) *
                             static_cast<std::size_t>(part.size.width);
  image = Image{part.size.height,
                part.size.width,
                std::move(image.pixels),
                channels.count,
                deep ? PixelType::kUint16 : PixelType::kUint8,
                std::move(image.words)};
  image.pixels.resize(deep ? 0 : values);
  image.words.resize(deep ? values : 0);
  std::uint8_t* const out =
      deep ? reinterpret_cast<std::uint8_t*>(image.words.data()) : image.pixels.data();
  read_pixels(decoder, count * (deep ? 2 : 1), part, file, name, out);
  mark_missing(rule.nodata, image);
  take_channels(chosen, image);
}

bool is_indexed_png(ImageBytes file) {
  return is_png(file) && file.size() >= 26 && file[25] == PNG_COLOR_TYPE_PALETTE;
}

std::vector<Color> png_palette(ImageBytes file, const std::string& name) {
  PngDecoder decoder(file);
  if (!decoder.read_header()) throw_damaged(decoder, file, name);
  return decoder.palette();
}

MaskKind decode_png_mask(ImageBytes file, const std::string& name, const LabelRule& rule,
                         LabelMap& labels, Image& colored) {
  PngDecoder decoder(file);
  if (!decoder.read_header()) throw_damaged(decoder, file, name);
  if ((decoder.color_type() & PNG_COLOR_MASK_COLOR) != 0 &&
      decoder.color_type() != PNG_COLOR_TYPE_PALETTE) {
    if (decoder.bit_depth() == 16)
      throw DataError(concat(name, ": expected colours of 8 bits, got 16; convert the mask"));
    decode_png(file, name, {.part = rule.part}, colored);
    return MaskKind::kColors;
  }
  if (decoder.color_type() == PNG_COLOR_TYPE_GRAY_ALPHA) {
    throw DataError(concat(name, ": expected labels as a gray, palette or RGB PNG, got gray with ",
                           "alpha; convert it to gray, value = class"));
  }
  if (!decoder.keep_raw_values()) throw_damaged(decoder, file, name);
  check_size(decoder, file, name);
  const bool deep = decoder.bit_depth() == 16;
  const bool stretch = rule.black_and_white && decoder.bit_depth() == 1 &&
                       decoder.color_type() == PNG_COLOR_TYPE_GRAY;
  const ImagePart part = decoded_part(decoder, rule.part, name);
  RawPixels raw{part.size, 1, deep ? PixelType::kUint16 : PixelType::kUint8, {}};
  const std::size_t each = deep ? 2 : 1;
  raw.bytes.resize(static_cast<std::size_t>(part.size.height) *
                   static_cast<std::size_t>(part.size.width) * each);
  read_pixels(decoder, each, part, file, name, raw.bytes.data());
  for (std::uint8_t& value : raw.bytes) value = stretch && value != 0 ? 255 : value;
  put_labels(raw, name, rule, labels);
  return MaskKind::kValues;
}

}  // namespace lockstep
