#pragma once
// Reading JPEG and PNG, writing PNG. A file is complete and valid, or it is an error: a truncated
// image must never train silently. The format is told from the file's first bytes, not from its
// name. Every function is safe from any thread, and throws DataError naming the file, what was
// expected and what came.

#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/io/image.h"

namespace lockstep {

/// Reads a JPEG (gray or colour) or a PNG (gray, palette, RGB, with or without alpha) as RGB into
/// `image`, whose buffer is reused. Alpha is dropped; 16-bit PNGs are scaled to 8.
void read_image(const std::filesystem::path& path, Image& image,
                ImageOrientation orientation = ImageOrientation::kViewer);

enum class MaskKind : std::uint8_t { kValues, kColors };

/// Reads a mask. Gray PNG of 16 bits or fewer, or palette PNG: the RAW value or index of every
/// pixel in `labels`; gray is not scaled and a palette not looked up. RGB PNG, with or without
/// alpha: its colours in `colored`, and `labels` is left as it is.
MaskKind read_mask(const std::filesystem::path& path, LabelMap& labels, Image& colored,
                   ImageOrientation orientation = ImageOrientation::kViewer);

/// The colours in which an indexed PNG shows its values; none: it is no such file.
std::vector<Color> read_palette(const std::filesystem::path& path);

/// The largest value in a PNG of 16 bits; nothing where the file is another.
std::optional<int> read_largest_value(const std::filesystem::path& path);

/// Size of a JPEG or PNG as read_image gives it, from its header.
Size read_image_size(const std::filesystem::path& path,
                     ImageOrientation orientation = ImageOrientation::kViewer);

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
