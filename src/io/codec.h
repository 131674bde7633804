#pragma once
// The image formats, decoding from memory, TIFF also from a file. `name` is the file's, for
// messages. All throw DataError.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/image_io.h"
#include "lockstep/io/image.h"

namespace lockstep {

/// Throws for a size that only a damaged header claims, before memory is asked for.
void check_image_size(Size size, const std::string& name);

using ImageBytes = std::span<const std::uint8_t>;

bool is_jpeg(ImageBytes file);
bool is_png(ImageBytes file);

ImageInfo jpeg_info(ImageBytes file, const std::string& name);
void decode_jpeg(ImageBytes file, const std::string& name, const ImageRule& rule, Image& image);

/// Works on the first 26 bytes of a file too.
ImageInfo png_info(ImageBytes file, const std::string& name);
void decode_png(ImageBytes file, const std::string& name, const ImageRule& rule, Image& image);
/// Whether values are indices of a palette. Works on the first 26 bytes of a file too.
bool is_indexed_png(ImageBytes file);
std::vector<Color> png_palette(ImageBytes file, const std::string& name);
MaskKind decode_png_mask(ImageBytes file, const std::string& name, const LabelRule& rule,
                         LabelMap& labels, Image& colored);

bool is_npy(ImageBytes file);
/// `head`: the beginning of a file of `file_bytes`.
ImageInfo npy_info(ImageBytes head, std::uint64_t file_bytes, const std::string& name,
                   const ImageRule& rule);
void decode_npy(ImageBytes file, const std::string& name, const ImageRule& rule, Image& image);
void decode_npy_mask(ImageBytes file, const std::string& name, const LabelRule& rule,
                     LabelMap& labels);

/// Where a TIFF lies: its directories may be anywhere in it, so that a size needs no whole file.
class TiffBytes {
 public:
  explicit TiffBytes(ImageBytes memory) : memory_(memory), size_(memory.size()) {}
  /// Throws DataError where it cannot be opened.
  explicit TiffBytes(const std::filesystem::path& path);
  ~TiffBytes();
  TiffBytes(const TiffBytes&) = delete;
  TiffBytes& operator=(const TiffBytes&) = delete;

  std::uint64_t size() const { return size_; }
  /// Fewer where it ends, or reading fails.
  std::size_t read(std::uint64_t offset, void* out, std::size_t count) const;

 private:
  ImageBytes memory_;
  int file_ = -1;  // in place of memory
  std::uint64_t size_ = 0;
};

bool is_tiff(ImageBytes file);
ImageInfo tiff_info(TiffBytes& bytes, const std::string& name, const ImageRule& rule);
void decode_tiff(TiffBytes& bytes, const std::string& name, const ImageRule& rule, Image& image);
MaskKind decode_tiff_mask(TiffBytes& bytes, const std::string& name, const LabelRule& rule,
                          LabelMap& labels, Image& colored);

}  // namespace lockstep
