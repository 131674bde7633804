#include <turbojpeg.h>

#include <memory>
#include <utility>

#include "io/codec.h"
#include "io/raw_pixels.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

struct Destroy {
  void operator()(void* handle) const { tjDestroy(handle); }
};
using Decompressor = std::unique_ptr<void, Destroy>;

Decompressor make_decompressor() {
  Decompressor decompressor(tjInitDecompress());
  LOCKSTEP_CHECK(decompressor != nullptr, "libjpeg-turbo: ", tjGetErrorStr2(nullptr));
  return decompressor;
}

struct Header {
  Size size;
  int colorspace = 0;
};

Header read_header(const Decompressor& decompressor, ImageBytes file, const std::string& name) {
  Header header;
  int subsampling = 0;
  if (tjDecompressHeader3(decompressor.get(), file.data(), file.size(), &header.size.width,
                          &header.size.height, &subsampling, &header.colorspace) != 0) {
    throw DataError(concat(name, ": expected a complete JPEG, but its header cannot be read (",
                           tjGetErrorStr2(decompressor.get()), ")"));
  }
  check_image_size(header.size, name);
  return header;
}

/// Throws for a size that the file cannot hold, before memory is asked for.
void check_size(Size size, ImageBytes file, const std::string& name) {
  // A block of 8x8 takes a bit at least, but for arithmetic coding, which next to nobody uses.
  constexpr std::int64_t kFreeBlocks = std::int64_t{1} << 18;  // 16 million pixels
  const std::int64_t blocks = ((size.height + 7) / 8) * std::int64_t{(size.width + 7) / 8};
  if (blocks <= kFreeBlocks || static_cast<std::uint64_t>(blocks) / 8 <= file.size()) return;
  throw DataError(concat(name, ": expected a complete JPEG of ", to_string(size), ", but its ",
                         file.size(), " bytes are truncated or damaged"));
}

}  // namespace

bool is_jpeg(ImageBytes file) {
  return file.size() >= 3 && file[0] == 0xFF && file[1] == 0xD8 && file[2] == 0xFF;
}

ImageInfo jpeg_info(ImageBytes file, const std::string& name) {
  const Header header = read_header(make_decompressor(), file, name);
  return {header.size, PixelType::kUint8, header.colorspace == TJCS_GRAY ? 1 : 3, false};
}

void decode_jpeg(ImageBytes file, const std::string& name, const ImageRule& rule, Image& image) {
  const Decompressor decompressor = make_decompressor();
  const Header header = read_header(decompressor, file, name);
  if (header.colorspace == TJCS_CMYK || header.colorspace == TJCS_YCCK) {
    throw DataError(concat(name, ": expected a gray or RGB JPEG, got CMYK; convert it to RGB"));
  }
  check_size(header.size, file, name);
  // Gray where three channels are expected is three equal ones.
  const int own = header.colorspace == TJCS_GRAY ? 1 : 3;
  const int channels = rule.bands.empty() && rule.channels == 3 ? 3 : own;
  const std::vector<int> chosen = chosen_channels({.count = channels}, rule, name);
  image = Image{header.size.height, header.size.width, std::move(image.pixels), channels};
  image.pixels.resize(static_cast<std::size_t>(image.height) *
                      static_cast<std::size_t>(image.width) * static_cast<std::size_t>(channels));
  // libjpeg fills what is missing from a truncated file with gray and only warns.
  constexpr int kFlags = TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING;
  if (tjDecompress2(decompressor.get(), file.data(), file.size(), image.pixels.data(), image.width,
                    0, image.height, channels == 1 ? TJPF_GRAY : TJPF_RGB, kFlags) != 0) {
    throw DataError(concat(name, ": expected a complete JPEG of ",
                           to_string(Size{image.height, image.width}), ", but its ", file.size(),
                           " bytes are truncated or damaged (", tjGetErrorStr2(decompressor.get()),
                           ")"));
  }
  take_channels(chosen, image);
}

}  // namespace lockstep
