#pragma once
// Reading JPEG, PNG, TIFF and .npy, writing PNG. A file is complete and valid, or it is an error: a
// truncated image must never train silently. The format is told from the file's first bytes, not
// from its name. Every function is safe from any thread, and throws DataError naming the file, what
// was expected and what came.

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/io/image.h"

namespace lockstep {

/// How a file becomes an image.
struct ImageRule {
  ImageOrientation orientation = ImageOrientation::kViewer;
  int channels = 3;
  std::vector<int> bands = {};  // of the file's channels those that are taken; empty: all
  std::vector<std::string> channel_files = {};  // ends of the names of one image's files, in order
  std::optional<double> nodata = {};            // a value that is not there
  std::optional<ImagePart> part = {};           // all that is given, as it is in the whole
};

/// What a file's header says.
struct ImageInfo {
  Size size;
  PixelType type = PixelType::kUint8;
  int channels = 3;                   // of the file
  bool alpha = false;                 // the last one
  std::optional<double> nodata = {};  // by what it says itself
  bool white_is_zero = false;         // a TIFF that is shown the other way round; its values stay
};

/// Reads a JPEG, PNG, TIFF or .npy into `image`, whose buffers are reused. Of a part, a TIFF's
/// blocks, an array's pixels and a PNG's rows from the first one on are read and no more, and its
/// integers stay so where what is not there lies beside it. A file has as many
/// channels as the rule says, but: gray JPEGs and PNGs become three equal channels where three are
/// expected, and alpha is dropped where one or three are. Channels of a TIFF are the samples of all
/// its pages of full resolution; an array is [H, W], [H, W, C] or, where only its first extent is
/// the number of channels, [C, H, W]. Values of integers above 2^24 and of doubles are rounded to
/// floats.
void read_image(const std::filesystem::path& path, Image& image, const ImageRule& rule = {});

enum class MaskKind : std::uint8_t { kValues, kColors };

/// How a file becomes labels.
struct LabelRule {
  ImageOrientation orientation = ImageOrientation::kViewer;
  bool objects = false;                // every value but 0 becomes 1
  bool black_and_white = false;        // white is 255: of one bit, and where a TIFF has 0 for white
  std::optional<ImagePart> part = {};  // as that of ImageRule
};

/// Reads a mask: a PNG, TIFF or .npy. Gray or palette: the RAW value or index of every pixel in
/// `labels`; gray is not scaled and a palette not looked up. RGB, with or without alpha: its
/// colours in `colored`, and `labels` is left as it is.
MaskKind read_mask(const std::filesystem::path& path, LabelMap& labels, Image& colored,
                   const LabelRule& rule = {});

/// The colours in which an indexed PNG or TIFF shows its values; none: it is no such file.
std::vector<Color> read_palette(const std::filesystem::path& path);

/// What an image's header says; its size is the one that read_image gives.
ImageInfo read_image_info(const std::filesystem::path& path, const ImageRule& rule);

/// Size of an image as read_image gives it, from its header.
inline Size read_image_size(const std::filesystem::path& path, const ImageRule& rule = {}) {
  return read_image_info(path, rule).size;
}

/// The files that an image consists of, whose first is `path`: itself, or one for each end in
/// ImageRule::channel_files. Throws DataError where the name does not end as the first one says.
std::vector<std::filesystem::path> channel_files_of(const std::filesystem::path& path,
                                                    const ImageRule& rule);

/// Writes an 8-bit RGB PNG.
void write_png(const std::filesystem::path& path, const Image& image);

/// Writes a gray PNG, value = class: of 8 bits, or of 16 where a value needs them.
void write_png(const std::filesystem::path& path, const LabelMap& labels);

/// Writes an 8-bit palette PNG, index = class, which viewers show in these colours, and what has
/// none in that of Pascal VOC's border. Where classes are more than a palette has places, a gray
/// one of 16 bits, value = class.
void write_png(const std::filesystem::path& path, const LabelMap& labels,
               std::span<const Color> colors);

/// What write_png writes, in memory and compressed better, which takes several times as long.
std::vector<std::uint8_t> encode_png(const Image& image);
/// A picture to look at: labels of more classes than a palette has places become RGB.
std::vector<std::uint8_t> encode_png(const LabelMap& labels, std::span<const Color> colors);

}  // namespace lockstep
