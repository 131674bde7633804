#include <png.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <utility>

#include "io/row_writers.h"
#include "lockstep/core/check.h"

namespace lockstep {

// libpng reports errors by longjmp, which skips destructors: the methods that call setjmp hold no
// local object that needs one.
struct PngEncoder::Impl {
  explicit Impl(Sink to)
      : sink(std::move(to)),
        png(png_create_write_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning)),
        info(png == nullptr ? nullptr : png_create_info_struct(png)) {
    if (info == nullptr) {
      png_destroy_write_struct(&png, nullptr);
      throw Error("libpng: out of memory");
    }
  }
  ~Impl() { png_destroy_write_struct(&png, &info); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool begin(Size size, PngFormat kind, const png_color* palette, bool fast);
  bool row(const std::uint8_t* values) {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_write_row(png, values);
    return true;
  }
  bool end() {
    if (setjmp(png_jmpbuf(png)) != 0) return false;
    png_write_end(png, info);
    return true;
  }
  void check(bool done) const {
    if (failure) std::rethrow_exception(failure);
    if (!done) throw DataError(concat("encoding a PNG failed: ", error.data()));
  }

  static void on_error(png_structp png, png_const_charp message) {
    auto* self = static_cast<Impl*>(png_get_error_ptr(png));
    std::strncpy(self->error.data(), message, self->error.size() - 1);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}
  static void on_write(png_structp png, png_bytep bytes, png_size_t count) {
    auto* self = static_cast<Impl*>(png_get_io_ptr(png));
    try {
      self->sink({reinterpret_cast<const char*>(bytes), count});
    } catch (...) {
      self->failure = std::current_exception();
    }
    if (self->failure) png_error(png, "writing failed");
  }
  static void on_flush(png_structp) {}

  Sink sink;
  std::array<char, 128> error{};
  std::exception_ptr failure;
  png_structp png;
  png_infop info;
  std::size_t row_bytes = 0;
};

// What libpng's own simplified interface writes, to the byte.
bool PngEncoder::Impl::begin(Size size, PngFormat kind, const png_color* palette, bool fast) {
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  const bool deep = kind == PngFormat::kDeepGray;
  const int type = kind == PngFormat::kIndexed ? PNG_COLOR_TYPE_PALETTE
                   : kind == PngFormat::kRgb   ? PNG_COLOR_TYPE_RGB
                                               : PNG_COLOR_TYPE_GRAY;
  png_set_write_fn(png, this, on_write, on_flush);
  png_set_IHDR(png, info, static_cast<png_uint_32>(size.width),
               static_cast<png_uint_32>(size.height), deep ? 16 : 8, type, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (palette != nullptr) png_set_PLTE(png, info, palette, 256);
  if (deep) {
    // "Linear" for that interface; the values are written as they are.
    png_set_gAMA_fixed(png, info, 100000);
    png_set_cHRM_fixed(png, info, 31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000);
  } else {
    png_set_sRGB(png, info, PNG_sRGB_INTENT_PERCEPTUAL);
  }
  png_write_info(png, info);
  if (deep) png_set_swap(png);
  if (fast) {
    png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_NO_FILTERS);
    png_set_compression_level(png, 3);
  }
  return true;
}

PngEncoder::PngEncoder(Size size, PngFormat kind, std::span<const Color> colors, bool fast,
                       Sink sink)
    : impl_(std::make_unique<Impl>(std::move(sink))) {
  std::array<png_color, 256> palette{};
  const bool indexed = kind == PngFormat::kIndexed;
  for (std::size_t i = 0; i < palette.size() && indexed; ++i)
    palette[i] = {colors[i][0], colors[i][1], colors[i][2]};
  const std::size_t bytes = kind == PngFormat::kRgb ? 3 : kind == PngFormat::kDeepGray ? 2 : 1;
  impl_->row_bytes = bytes * static_cast<std::size_t>(size.width);
  impl_->check(impl_->begin(size, kind, indexed ? palette.data() : nullptr, fast));
}

PngEncoder::~PngEncoder() = default;

void PngEncoder::write(const void* rows, int count) {
  const auto* row = static_cast<const std::uint8_t*>(rows);
  for (int y = 0; y < count; ++y, row += impl_->row_bytes) impl_->check(impl_->row(row));
}

void PngEncoder::end() { impl_->check(impl_->end()); }

PictureWriter::PictureWriter(const std::filesystem::path& path, Size size)
    : file_(path, WrittenFile::Mode::kReplace),
      encoder_(size, PngFormat::kRgb, {}, true,
               [this](std::string_view bytes) { file_.write(bytes); }) {}

void PictureWriter::close() {
  encoder_.end();
  file_.close();
}

namespace {

class PngMap : public MapWriter {
 public:
  PngMap(const std::filesystem::path& path, Size size, PngFormat kind,
         std::span<const Color> colors)
      : width_(static_cast<std::size_t>(size.width)),
        deep_(kind == PngFormat::kDeepGray),
        file_(path, WrittenFile::Mode::kReplace),
        encoder_(size, kind, colors, true, [this](std::string_view bytes) { file_.write(bytes); }) {
  }

  void write(std::span<const Label> rows) override {
    const auto count = static_cast<int>(rows.size() / width_);
    if (deep_) return encoder_.write(rows.data(), count);
    encoder_.write(eight_bits(rows).data(), count);
  }
  void close() override {
    encoder_.end();
    file_.close();
  }

 private:
  std::size_t width_;
  bool deep_;
  WrittenFile file_;
  PngEncoder encoder_;
};

}  // namespace

std::unique_ptr<MapWriter> png_map(const std::filesystem::path& path, Size size,
                                   std::span<const Color> colors) {
  const PngFormat kind = colors.empty()         ? PngFormat::kGray
                         : colors.size() <= 256 ? PngFormat::kIndexed
                                                : PngFormat::kDeepGray;
  return std::make_unique<PngMap>(path, size, kind, colors_of_bytes(colors));
}

}  // namespace lockstep
