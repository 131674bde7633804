#include "io/image_io.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "io/atomic_file.h"
#include "io/codec.h"
#include "io/exif.h"
#include "io/file_bytes.h"
#include "io/raw_pixels.h"
#include "io/row_source.h"
#include "io/row_writers.h"
#include "lockstep/core/check.h"
#include "lockstep/io/image.h"

namespace lockstep {
namespace {

// Up to the kind of a PNG's values.
constexpr std::size_t kPngHeaderBytes = 26;

enum class End : std::uint8_t { kFront, kBack };

/// The first or the last bytes of a file, at most `limit`.
std::vector<std::uint8_t> read_bytes(const std::filesystem::path& path, std::size_t limit,
                                     End end = End::kFront) {
  const FileBytes file(path);
  std::vector<std::uint8_t> bytes(std::min<std::uint64_t>(file.size(), limit));
  const std::uint64_t first = end == End::kBack ? file.size() - bytes.size() : 0;
  if (file.read(first, bytes.data(), bytes.size()) < bytes.size())
    throw DataError(concat(path.string(), ": reading its ", file.size(), " bytes failed"));
  return bytes;
}

// The first bytes as a person would recognise them: "GIF89a" or "II*.".
std::string beginning(ImageBytes file) {
  if (file.empty()) return "is empty";
  std::string text = "starts with \"";
  for (const std::uint8_t byte : file.first(std::min<std::size_t>(file.size(), 8))) {
    text += byte >= 0x20 && byte < 0x7F ? static_cast<char>(byte) : '.';
  }
  return text + "\"";
}

// Of a .npz, say.
bool is_zip(ImageBytes file) { return file.size() >= 2 && file[0] == 'P' && file[1] == 'K'; }

DataError not_an_image(const std::filesystem::path& path, ImageBytes file) {
  return DataError(concat(
      path.string(), ": expected a JPEG, PNG, TIFF or .npy image, but the file ", beginning(file),
      is_zip(file) ? ", an archive: save one array with "
                     "numpy.save, or convert the image"
                   : ""));
}

Turn shown_turn(ImageBytes file, ImageOrientation orientation) {
  return orientation == ImageOrientation::kViewer ? turn_of_file(file) : Turn{};
}

std::vector<std::uint8_t> encode_png(Size size, PngFormat kind, const void* pixels,
                                     std::span<const Color> colors = {}, bool fast = false) {
  std::vector<std::uint8_t> file;
  PngEncoder encoder(size, kind, colors, fast, [&](std::string_view bytes) {
    file.insert(file.end(), bytes.begin(), bytes.end());
  });
  encoder.write(pixels, size.height);
  encoder.end();
  return file;
}

void write_png(const std::filesystem::path& path, Size size, PngFormat kind, const void* pixels,
               std::span<const Color> colors = {}) {
  const std::vector<std::uint8_t> file = encode_png(size, kind, pixels, colors, true);
  const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
  write_parts(path, {&bytes, 1});
}

bool fits_eight_bits(const LabelMap& labels) {
  return std::all_of(labels.pixels.begin(), labels.pixels.end(),
                     [](Label label) { return label <= 255; });
}

/// Whether a palette has a place for every class, and one for what is none.
bool fits_palette(const LabelMap& labels, std::span<const Color> colors) {
  return colors.size() < 256 || (colors.size() == 256 && fits_eight_bits(labels));
}

}  // namespace

void check_image_size(Size size, const std::string& name) {
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;
  if (size.height < 1 || size.width < 1 || std::int64_t{size.height} * size.width > kMostPixels) {
    throw DataError(concat(name, ": expected an image of 1 to ", kMostPixels,
                           " pixels, but its header says ", to_string(size)));
  }
}

ImagePart part_of(Size image, const std::optional<ImagePart>& part, const std::string& name) {
  if (!part) return {0, 0, image};
  const auto& [top, left, size] = *part;
  const bool inside = top >= 0 && left >= 0 && size.height > 0 && size.width > 0 &&
                      top <= image.height - size.height && left <= image.width - size.width;
  if (inside) return *part;
  throw DataError(concat(name, ": expected a part of ", to_string(size), " at (", top, ", ", left,
                         "), but the image is ", to_string(image)));
}

namespace {

/// Where all has been decoded a part is cut out.
void leave_part(const std::optional<ImagePart>& part, const std::string& name, Image& image) {
  const Size whole{image.height, image.width};
  if (!part || part->size == whole) return;
  const ImagePart kept = part_of(whole, part, name);
  with_values(image, [&](auto& values) {
    std::remove_cvref_t<decltype(values)> own;
    copy_part(values, whole.width, static_cast<std::size_t>(image.channels), kept, own);
    values = std::move(own);
  });
  image.height = kept.size.height;
  image.width = kept.size.width;
}

void leave_part(const std::optional<ImagePart>& part, const std::string& name, LabelMap& labels) {
  const Size whole{labels.height, labels.width};
  if (!part || part->size == whole) return;
  const ImagePart kept = part_of(whole, part, name);
  LabelMap own{kept.size.height, kept.size.width, {}};
  copy_part(labels.pixels, whole.width, 1, kept, own.pixels);
  labels = std::move(own);
}

/// What is asked of a decoder that does not turn: of an image that is turned afterwards, all.
template <typename Rule>
Rule rule_before(const Turn& turn, Rule rule) {
  if (turn.turns()) rule.part.reset();
  return rule;
}

/// What a file is, by its first bytes.
enum class ImageFormat : std::uint8_t { kJpeg, kPng, kTiff, kNpy, kOther };

constexpr std::size_t kEnoughToTell = 16;

ImageFormat format_of(ImageBytes head) {
  if (is_jpeg(head)) return ImageFormat::kJpeg;
  if (is_png(head)) return ImageFormat::kPng;
  if (is_tiff(head)) return ImageFormat::kTiff;
  return is_npy(head) ? ImageFormat::kNpy : ImageFormat::kOther;
}

void decode(const std::filesystem::path& path, const ImageRule& rule, Image& image) {
  const std::vector<std::uint8_t> head = read_bytes(path, kEnoughToTell);
  const ImageFormat format = format_of(head);
  if (format == ImageFormat::kOther) throw not_an_image(path, head);
  const std::string name = path.string();
  if (format == ImageFormat::kTiff || format == ImageFormat::kNpy) {
    FileBytes bytes(path);
    const bool tiff = format == ImageFormat::kTiff;
    return tiff ? decode_tiff(bytes, name, rule, image) : decode_npy(bytes, name, rule, image);
  }
  const std::vector<std::uint8_t> file = read_bytes(path, SIZE_MAX);
  const Turn shown = shown_turn(file, rule.orientation);
  const ImageRule stored = rule_before(shown, rule);
  if (format == ImageFormat::kJpeg) {
    decode_jpeg(file, name, stored, image);
  } else {
    decode_png(file, name, stored, image);
  }
  turn(shown, image);
}

void decode_part(const std::filesystem::path& path, const ImageRule& rule, Image& image) {
  decode(path, rule, image);
  leave_part(rule.part, path.string(), image);
}

ImageInfo png_or_jpeg_info(const std::filesystem::path& path, ImageOrientation orientation,
                           const std::vector<std::uint8_t>& head) {
  const bool viewed = orientation == ImageOrientation::kViewer, png = is_png(head);
  const auto info_of = [&](const std::vector<std::uint8_t>& bytes) {
    return png ? png_info(bytes, path.string()) : jpeg_info(bytes, path.string());
  };
  try {
    ImageInfo info = info_of(head);
    const bool more = viewed && png && head.size() == kExifReach;
    const auto tail = more ? read_bytes(path, kExifReach, End::kBack) : head;
    const FoundExif exif = !viewed ? FoundExif{}
                           : png   ? find_png_exif(head, tail)
                                   : find_jpeg_exif(head);
    if (exif.certain) {
      info.size = turn_of(exif.block).size_of(info.size);
      return info;
    }
  } catch (const DataError&) {  // more of the file tells
  }
  const std::vector<std::uint8_t> file = read_bytes(path, SIZE_MAX);
  ImageInfo info = info_of(file);
  info.size = shown_turn(file, orientation).size_of(info.size);
  return info;
}

ImageInfo info_of_file(const std::filesystem::path& path, const ImageRule& rule) {
  const std::vector<std::uint8_t> head = read_bytes(path, kExifReach);
  switch (format_of(head)) {
    case ImageFormat::kOther:
      throw not_an_image(path, head);
    case ImageFormat::kNpy: {
      std::error_code unknown;
      return npy_info(head, std::filesystem::file_size(path, unknown), path.string(), rule);
    }
    case ImageFormat::kTiff: {
      FileBytes bytes(path);
      return tiff_info(bytes, path.string(), rule);
    }
    default:
      return png_or_jpeg_info(path, rule.orientation, head);
  }
}

}  // namespace

ImageRule rule_of_part(const std::filesystem::path& file, const ImageRule& rule) {
  return {.orientation = rule.orientation,
          .channels = info_of_file(file, rule).channels,
          .nodata = rule.nodata,
          .part = rule.part};
}

std::unique_ptr<RowSource> rows_of_file(const std::filesystem::path& path, const ImageRule& rule) {
  switch (format_of(read_bytes(path, kEnoughToTell))) {
    case ImageFormat::kTiff:
      return tiff_rows(path, rule);
    case ImageFormat::kNpy:
      return npy_rows(path, rule);
    default:
      return nullptr;
  }
}

void read_image(const std::filesystem::path& path, Image& image, const ImageRule& rule) {
  if (rule.channel_files.empty()) return decode_part(path, rule, image);
  Image all, part;
  for (const std::filesystem::path& file : channel_files_of(path, rule)) {
    decode_part(file, rule_of_part(file, rule), part);
    if (all.height == 0) {
      all = std::exchange(part, {});
    } else {
      append_channels(std::exchange(part, {}), file.string(), all);
    }
  }
  take_channels(chosen_channels({.count = all.channels}, rule, path.string()), all);
  image = std::move(all);
}

namespace {

MaskKind decode_mask(const std::filesystem::path& path, LabelMap& labels, Image& colored,
                     const LabelRule& rule) {
  const std::vector<std::uint8_t> head = read_bytes(path, kEnoughToTell);
  switch (format_of(head)) {
    case ImageFormat::kPng: {
      const std::vector<std::uint8_t> file = read_bytes(path, SIZE_MAX);
      const Turn shown = shown_turn(file, rule.orientation);
      const MaskKind kind =
          decode_png_mask(file, path.string(), rule_before(shown, rule), labels, colored);
      if (kind == MaskKind::kColors) {
        turn(shown, colored);
      } else {
        turn(shown, labels);
      }
      return kind;
    }
    case ImageFormat::kTiff: {
      FileBytes bytes(path);
      return decode_tiff_mask(bytes, path.string(), rule, labels, colored);
    }
    case ImageFormat::kNpy:
      decode_npy_mask(FileBytes(path), path.string(), rule, labels);
      return MaskKind::kValues;
    case ImageFormat::kJpeg:
      throw DataError(concat(path.string(),
                             ": expected labels as PNG, got a JPEG, whose lossy compression ",
                             "changes classes; export the labels again as PNG"));
    default:
      throw DataError(concat(path.string(), ": expected labels as PNG, TIFF or .npy, but the file ",
                             beginning(head)));
  }
}

}  // namespace

MaskKind read_mask(const std::filesystem::path& path, LabelMap& labels, Image& colored,
                   const LabelRule& rule) {
  const MaskKind kind = decode_mask(path, labels, colored, rule);
  if (kind == MaskKind::kColors) {
    leave_part(rule.part, path.string(), colored);
  } else {
    leave_part(rule.part, path.string(), labels);
  }
  return kind;
}

std::vector<Color> read_palette(const std::filesystem::path& path) {
  const std::vector<std::uint8_t> head = read_bytes(path, kPngHeaderBytes);
  if (is_tiff(head)) {
    FileBytes bytes(path);
    return tiff_palette(bytes, path.string());
  }
  if (!is_indexed_png(head)) return {};
  return png_palette(read_bytes(path, SIZE_MAX), path.string());
}

ImageInfo read_image_info(const std::filesystem::path& path, const ImageRule& rule) {
  ImageInfo info = info_of_file(path, rule);
  const auto files = static_cast<int>(rule.channel_files.size());
  info.channels *= std::max(files, 1);
  return info;
}

std::vector<std::filesystem::path> channel_files_of(const std::filesystem::path& path,
                                                    const ImageRule& rule) {
  if (rule.channel_files.empty()) return {path};
  const std::string& first = rule.channel_files.front();
  std::string stem = path.stem().string();
  if (!stem.ends_with(first)) {
    throw DataError(concat(path.string(), ": expected a name that ends in \"", first,
                           "\" before its extension (data.channel_files)"));
  }
  stem.resize(stem.size() - first.size());
  std::vector<std::filesystem::path> files;
  for (const std::string& end : rule.channel_files) {
    files.push_back(path.parent_path() / (stem + end + path.extension().string()));
  }
  return files;
}

std::vector<Color> colors_of_bytes(std::span<const Color> colors) {
  LabelMap every{16, 16, {}};
  for (int value = 0; value < 256; ++value) every.pixels.push_back(static_cast<Label>(value));
  const Image painted = paint(every, colors);
  std::vector<Color> all(256);
  for (std::size_t i = 0; i < painted.pixels.size(); ++i) all[i / 3][i % 3] = painted.pixels[i];
  return all;
}

std::vector<std::uint8_t> eight_bits(std::span<const Label> labels) {
  std::vector<std::uint8_t> values;
  values.reserve(labels.size());
  for (const Label label : labels)
    values.push_back(static_cast<std::uint8_t>(std::min<Label>(label, 255)));
  return values;
}

void write_png(const std::filesystem::path& path, const Image& image) {
  write_png(path, {image.height, image.width}, PngFormat::kRgb, image.pixels.data());
}

void write_png(const std::filesystem::path& path, const LabelMap& labels) {
  const Size size{labels.height, labels.width};
  if (!fits_eight_bits(labels)) {
    return write_png(path, size, PngFormat::kDeepGray, labels.pixels.data());
  }
  write_png(path, size, PngFormat::kGray, eight_bits(labels.pixels).data());
}

void write_png(const std::filesystem::path& path, const LabelMap& labels,
               std::span<const Color> colors) {
  const Size size{labels.height, labels.width};
  if (!fits_palette(labels, colors)) {
    return write_png(path, size, PngFormat::kDeepGray, labels.pixels.data());
  }
  write_png(path, size, PngFormat::kIndexed, eight_bits(labels.pixels).data(),
            colors_of_bytes(colors));
}

std::vector<std::uint8_t> encode_png(const Image& image) {
  return encode_png({image.height, image.width}, PngFormat::kRgb, image.pixels.data());
}

std::vector<std::uint8_t> encode_png(const LabelMap& labels, std::span<const Color> colors) {
  if (!fits_palette(labels, colors)) return encode_png(paint(labels, colors));
  return encode_png({labels.height, labels.width}, PngFormat::kIndexed,
                    eight_bits(labels.pixels).data(), colors_of_bytes(colors));
}

}  // namespace lockstep
