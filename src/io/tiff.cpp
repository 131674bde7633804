#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "io/codec.h"
#include "io/exif.h"
#include "io/raw_pixels.h"
#include "io/row_source.h"
#include "io/row_writers.h"
#include "io/tiff_file.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

PixelType type_of(const TiffPage& page) {
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

std::vector<std::uint8_t> read_channels(TiffFile& file, const TiffPage& page,
                                        const ImagePart& part) {
  std::vector<std::uint8_t> values = file.read(page, part);
  return page.indexed() ? in_colors(values, file.colors(page)) : values;
}

FileChannels channels_of(const std::vector<TiffPage>& pages) {
  const TiffPage& first = pages.front();
  return {first.channels() * static_cast<int>(pages.size()), first.alpha && pages.size() == 1,
          static_cast<int>(pages.size())};
}

/// The channels of all pages, one page's after another's in each pixel.
RawPixels stack_of(TiffFile& file, const std::vector<TiffPage>& pages, const ImagePart& part) {
  const TiffPage& first = pages.front();
  RawPixels raw{part.size, channels_of(pages).count, type_of(first), {}};
  if (pages.size() == 1) {
    raw.bytes = read_channels(file, first, part);
    return raw;
  }
  const std::size_t pixels =
      static_cast<std::size_t>(part.size.height) * static_cast<std::size_t>(part.size.width);
  const std::size_t each = static_cast<std::size_t>(first.channels()) * bytes_of(raw.type);
  raw.bytes.resize(pixels * each * pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const std::vector<std::uint8_t> values = read_channels(file, pages[i], part);
    for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
      std::memcpy(raw.bytes.data() + (pixel * pages.size() + i) * each,
                  values.data() + pixel * each, each);
    }
  }
  return raw;
}

/// All channels of the part.
void read_part(TiffFile& file, const std::vector<TiffPage>& pages, const ImagePart& part,
               Image& image) {
  const TiffPage& first = pages.front();
  const std::span<std::uint8_t> room =
      pages.size() > 1 || first.indexed()
          ? std::span<std::uint8_t>()
          : room_for(part.size, first.channels(), type_of(first), image);
  if (room.empty()) {
    put_image(stack_of(file, pages, part), std::nullopt, image);
  } else {
    file.read(first, part, room);
  }
}

Turn shown(const TiffPage& page, ImageOrientation orientation) {
  return orientation == ImageOrientation::kViewer ? page.turn : Turn{};
}

/// What is decoded of a page: of one that is turned afterwards, all.
ImagePart decoded_part(const TiffPage& page, ImageOrientation orientation,
                       const std::optional<ImagePart>& part, const std::string& name) {
  const bool turned = shown(page, orientation).turns();
  const ImagePart decoded = part_of(page.size, turned ? std::nullopt : part, name);
  check_image_size(decoded.size, name);
  return decoded;
}

/// A file that stays open.
struct OpenTiff {
  FileBytes bytes;
  TiffFile file;
  std::vector<TiffPage> pages;

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
    read_part(tiff_->file, tiff_->pages, {first, 0, {count, size().width}}, rows);
  }

  std::unique_ptr<OpenTiff> tiff_;
  int step_;
};

}  // namespace

bool is_tiff(ImageBytes file) {
  constexpr std::array<std::array<std::uint8_t, 4>, 4> kMarks{
      {{'I', 'I', 42, 0}, {'M', 'M', 0, 42}, {'I', 'I', 43, 0}, {'M', 'M', 0, 43}}};
  return file.size() >= 4 && std::any_of(kMarks.begin(), kMarks.end(), [&](const auto& mark) {
           return std::equal(mark.begin(), mark.end(), file.begin());
         });
}

ImageInfo tiff_info(FileBytes& bytes, const std::string& name, const ImageRule& rule) {
  TiffFile file(bytes, name);
  const std::vector<TiffPage> pages = file.pages();
  const FileChannels channels = channels_of(pages);
  return {shown(pages.front(), rule.orientation).size_of(pages.front().size),
          type_of(pages.front()),
          channels.count,
          channels.alpha,
          file.nodata(pages.front()),
          pages.front().photometric == PHOTOMETRIC_MINISWHITE};
}

void decode_tiff(FileBytes& bytes, const std::string& name, const ImageRule& rule, Image& image) {
  TiffFile file(bytes, name);
  const std::vector<TiffPage> pages = file.pages();
  const TiffPage& first = pages.front();
  const FileChannels channels = channels_of(pages);
  const std::vector<int> chosen = chosen_channels(channels, rule, name);
  read_part(file, pages, decoded_part(first, rule.orientation, rule.part, name), image);
  mark_missing(rule.nodata ? rule.nodata : file.nodata(first), image);
  take_channels(chosen, image);
  turn(shown(first, rule.orientation), image);
}

std::vector<TiffTag> georeference_of(const std::filesystem::path& path, const ImageRule& rule) {
  std::array<std::uint8_t, 4> head{};
  const std::size_t got = FileBytes(path).read(0, head.data(), head.size());
  if (got < head.size() || !is_tiff(head)) return {};
  OpenTiff tiff(path);
  const TiffPage& first = tiff.pages.front();
  if (shown(first, rule.orientation).turns()) return {};
  return tiff.file.georeference(first);
}

std::unique_ptr<RowSource> tiff_rows(const std::filesystem::path& path, const ImageRule& rule) {
  auto tiff = std::make_unique<OpenTiff>(path);
  const TiffPage& first = tiff->pages.front();
  if (shown(first, rule.orientation).turns()) return nullptr;
  std::vector<int> chosen = chosen_channels(channels_of(tiff->pages), rule, path.string());
  const std::optional<double> nodata = rule.nodata ? rule.nodata : tiff->file.nodata(first);
  return std::make_unique<TiffRows>(std::move(tiff), std::move(chosen), nodata);
}

std::vector<Color> tiff_palette(FileBytes& bytes, const std::string& name) {
  TiffFile file(bytes, name);
  const TiffPage page = file.pages().front();
  return page.indexed() ? file.colors(page) : std::vector<Color>{};
}

MaskKind decode_tiff_mask(FileBytes& bytes, const std::string& name, const LabelRule& rule,
                          LabelMap& labels, Image& colored) {
  TiffFile file(bytes, name);
  const std::vector<TiffPage> pages = file.pages();
  const TiffPage& page = pages.front();
  if (page.compression == COMPRESSION_JPEG) {
    throw file.error(
        "expected labels, got JPEG, whose lossy compression changes classes; export "
        "the labels again");
  }
  if (pages.size() > 1 || (page.samples != 1 && (page.samples < 3 || page.samples > 4))) {
    throw file.error(concat("expected labels of one channel, or RGB, got ",
                            channels_of(pages).count, " channels"));
  }
  const ImagePart part = decoded_part(page, rule.orientation, rule.part, name);
  if (page.samples > 1) {
    if (type_of(page) != PixelType::kUint8)
      throw file.error("expected colours of 8 bits, got others; convert the mask");
    put_image({part.size, page.samples, PixelType::kUint8, file.read(page, part)}, std::nullopt,
              colored);
    take_channels({0, 1, 2}, colored);
    turn(shown(page, rule.orientation), colored);
    return MaskKind::kColors;
  }
  RawPixels raw{part.size, 1, type_of(page), file.read(page, part)};
  if (rule.black_and_white && raw.type == PixelType::kUint8 && !page.indexed()) {
    const int stretch = page.bits == 1 ? 255 : 1;
    const int flip = page.photometric == PHOTOMETRIC_MINISWHITE ? 255 : 0;
    for (std::uint8_t& value : raw.bytes)
      value = static_cast<std::uint8_t>((value * stretch) ^ flip);
  }
  put_labels(raw, name, rule, labels);
  turn(shown(page, rule.orientation), labels);
  return MaskKind::kValues;
}

}  // namespace lockstep
