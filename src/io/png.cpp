#include <png.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "io/codec.h"
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
  int bit_depth() const { return png_get_bit_depth(png_, info_); }
  int color_type() const { return png_get_color_type(png_, info_); }

  /// Asks for 8-bit RGB, whatever the file holds.
  bool convert_to_rgb() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_expand(png_);
    png_set_scale_16(png_);
    png_set_gray_to_rgb(png_);
    png_set_strip_alpha(png_);
    return true;
  }
  /// Asks for the file's own values without alpha, the high byte first.
  bool keep_16_bits() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_strip_alpha(png_);
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
  /// Asks for one byte per pixel that holds the file's own value.
  bool keep_raw_values() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_packing(png_);
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

template <typename Map>
std::size_t set_size(Map& map, Size size, std::size_t channels) {
  map.height = size.height;
  map.width = size.width;
  const std::size_t row_bytes = static_cast<std::size_t>(size.width) * channels;
  map.pixels.resize(static_cast<std::size_t>(size.height) * row_bytes);
  return row_bytes;
}

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return (std::uint32_t{bytes[0]} << 24) | (std::uint32_t{bytes[1]} << 16) |
         (std::uint32_t{bytes[2]} << 8) | std::uint32_t{bytes[3]};
}

}  // namespace

bool is_png(ImageBytes file) {
  return file.size() >= kSignature.size() &&
         std::equal(kSignature.begin(), kSignature.end(), file.begin());
}

Size png_size(ImageBytes file, const std::string& name) {
  if (file.size() < 24)
    throw DataError(concat(name, ": expected a PNG, but the file ends in its header"));
  const Size size{static_cast<int>(big_endian(file.data() + 20)),
                  static_cast<int>(big_endian(file.data() + 16))};
  check_image_size(size, name);
  return size;
}

void decode_png(ImageBytes file, const std::string& name, Image& image) {
  PngDecoder decoder(file);
  if (!decoder.read_header() || !decoder.convert_to_rgb()) throw_damaged(decoder, file, name);
  check_size(decoder, file, name);
  const std::size_t row_bytes = set_size(image, decoder.size(), 3);
  if (!decoder.read_pixels(image.pixels.data(), row_bytes)) throw_damaged(decoder, file, name);
}

PngValues png_values(ImageBytes file) {
  if (!is_png(file) || file.size() < 26) return {};
  return {.bits = file[24], .indexed = file[25] == PNG_COLOR_TYPE_PALETTE};
}

std::vector<Color> png_palette(ImageBytes file, const std::string& name) {
  PngDecoder decoder(file);
  if (!decoder.read_header()) throw_damaged(decoder, file, name);
  return decoder.palette();
}

int largest_png_value(ImageBytes file, const std::string& name) {
  PngDecoder decoder(file);
  if (!decoder.read_header() || !decoder.keep_16_bits()) throw_damaged(decoder, file, name);
  check_size(decoder, file, name);
  const Size size = decoder.size();
  const bool color = (decoder.color_type() & PNG_COLOR_MASK_COLOR) != 0;
  const std::size_t row = static_cast<std::size_t>(size.width) * (color ? 6 : 2);
  std::vector<std::uint8_t> values(row * static_cast<std::size_t>(size.height));
  if (!decoder.read_pixels(values.data(), row)) throw_damaged(decoder, file, name);
  int most = 0;
  for (std::size_t i = 0; i + 1 < values.size(); i += 2)
    most = std::max(most, values[i] << 8 | values[i + 1]);
  return most;
}

MaskKind decode_png_mask(ImageBytes file, const std::string& name, LabelMap& labels,
                         Image& colored) {
  PngDecoder decoder(file);
  if (!decoder.read_header()) throw_damaged(decoder, file, name);
  if ((decoder.color_type() & PNG_COLOR_MASK_COLOR) != 0 &&
      decoder.color_type() != PNG_COLOR_TYPE_PALETTE) {
    decode_png(file, name, colored);
    return MaskKind::kColors;
  }
  if (decoder.color_type() == PNG_COLOR_TYPE_GRAY_ALPHA) {
    throw DataError(concat(name, ": expected labels as a gray, palette or RGB PNG, got gray with ",
                           "alpha; convert it to gray, value = class"));
  }
  if (!decoder.keep_raw_values()) throw_damaged(decoder, file, name);
  check_size(decoder, file, name);
  const std::size_t row = set_size(labels, decoder.size(), 1);
  const std::size_t bytes = decoder.bit_depth() == 16 ? 2 : 1;
  std::vector<std::uint8_t> values(labels.pixels.size() * bytes);
  if (!decoder.read_pixels(values.data(), row * bytes)) throw_damaged(decoder, file, name);
  for (std::size_t i = 0; i < labels.pixels.size(); ++i) {
    labels.pixels[i] = bytes == 1 ? values[i]  // PNG has the high byte first
                                  : static_cast<Label>((values[2 * i] << 8) | values[2 * i + 1]);
  }
  return MaskKind::kValues;
}

}  // namespace lockstep
