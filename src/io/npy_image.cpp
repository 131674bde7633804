// Arrays of numpy as images and labels: format 1.0 to 3.0 of .npy. Objects are never loaded.

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "io/codec.h"
#include "io/file_bytes.h"
#include "io/raw_pixels.h"
#include "io/row_source.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);

static_assert(std::endian::native == std::endian::little, "the order of bytes below says so");

/// What the header says, and where the values begin.
struct NpyHeader {
  PixelType type = PixelType::kUint8;
  bool big_endian = false, fortran = false;
  std::vector<std::int64_t> shape;
  std::size_t offset = 0;
};

DataError damaged(const std::string& name, const std::string& text) {
  return DataError(concat(name, ": expected an array that numpy.save wrote, but ", text));
}

/// What follows `key` in the dictionary that the header is; the text is no more than searched.
std::string_view value_of(std::string_view text, std::string_view key, const std::string& name) {
  const std::size_t at = text.find(key);
  if (at == text.npos) throw damaged(name, concat("its header has no ", key));
  text.remove_prefix(at + key.size());
  const std::size_t begin = text.find_first_not_of(": ");
  if (begin == text.npos) throw damaged(name, concat("its header has no ", key));
  return text.substr(begin);
}

PixelType type_of(std::string_view code, const std::string& name) {
  using enum PixelType;
  constexpr std::array<std::pair<std::string_view, PixelType>, 12> kTypes{{{"u1", kUint8},
                                                                           {"b1", kUint8},
                                                                           {"i1", kInt8},
                                                                           {"u2", kUint16},
                                                                           {"i2", kInt16},
                                                                           {"u4", kUint32},
                                                                           {"i4", kInt32},
                                                                           {"u8", kUint64},
                                                                           {"i8", kInt64},
                                                                           {"f2", kFloat16},
                                                                           {"f4", kFloat32},
                                                                           {"f8", kFloat64}}};
  if (code.starts_with('O')) {
    throw DataError(concat(name, ": holds Python objects, which are never loaded; save numbers"));
  }
  const auto known = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const auto& type) { return type.first == code; });
  if (known != kTypes.end()) return known->second;
  throw DataError(concat(name, ": holds values of numpy's type \"", code,
                         "\": expected integers or floats of 8 to 64 bits",
                         code.starts_with('c') ? ", got complex numbers" : ""));
}

void read_type(std::string_view value, const std::string& name, NpyHeader& header) {
  const std::size_t end = value.empty() ? value.npos : value.find('\'', 1);
  if (!value.starts_with('\'') || end == value.npos || end < 3) {
    throw DataError(concat(name, ": holds records of several fields; save an array of numbers"));
  }
  header.big_endian = value[1] == '>';
  header.type = type_of(value.substr(2, end - 2), name);
}

void read_shape(std::string_view value, const std::string& name, NpyHeader& header) {
  const std::size_t end = value.find(')');
  if (!value.starts_with('(') || end == value.npos) throw damaged(name, "its shape is none");
  value = value.substr(1, end - 1);
  while (!value.empty()) {
    std::int64_t extent = 0;
    const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), extent);
    if (error != std::errc() || extent < 0) throw damaged(name, "its shape is none");
    header.shape.push_back(extent);
    value.remove_prefix(static_cast<std::size_t>(stop - value.data()));
    value.remove_prefix(std::min(value.find_first_not_of(", L"), value.size()));
  }
}

NpyHeader header_of(ImageBytes head, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  const std::size_t prefix = text.size() > 6 && text[6] == '\1' ? 10 : 12;
  if (text.size() < prefix) throw damaged(name, "it ends in its header");
  std::size_t length = 0;
  for (std::size_t i = prefix; i-- > 8;) length = length << 8 | head[i];
  if (length > text.size() - prefix) throw damaged(name, "it ends in its header");
  const std::string_view dictionary = text.substr(prefix, length);
  NpyHeader header;
  header.offset = prefix + length;
  read_type(value_of(dictionary, "'descr'", name), name, header);
  header.fortran = value_of(dictionary, "'fortran_order'", name).starts_with("True");
  read_shape(value_of(dictionary, "'shape'", name), name, header);
  return header;
}

/// What the axes are: extents, and how many values lie between neighbours.
struct Axes {
  Size size;
  std::int64_t channels = 1;
  std::array<std::size_t, 3> steps{};  // of rows, columns, channels
};

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (const std::int64_t extent : shape) text += concat(text.size() == 1 ? "" : ", ", extent);
  return text + ")";
}

void check_shape(const NpyHeader& header, std::uint64_t file_bytes, const std::string& name) {
  double values = 1;
  for (const std::int64_t extent : header.shape) values *= static_cast<double>(extent);
  if (header.shape.size() != 2 && header.shape.size() != 3) {
    throw DataError(concat(name, ": an array of shape ", text_of(header.shape),
                           ": expected [height, width], [height, width, channels] or "
                           "[channels, height, width]"));
  }
  const auto held = static_cast<double>(file_bytes - header.offset);
  if (values * static_cast<double>(bytes_of(header.type)) > held) {
    throw DataError(concat(name, ": its header says ", text_of(header.shape), ", its ", file_bytes,
                           " bytes cannot hold them; the file may be cut off"));
  }
}

/// `channels`: an array whose first extent alone is this has its channels first; 0: none has.
Axes axes_of(const NpyHeader& header, int channels, std::uint64_t file_bytes,
             const std::string& name) {
  check_shape(header, file_bytes, name);
  std::array<std::int64_t, 3> extents{header.shape[0], header.shape[1],
                                      header.shape.size() == 3 ? header.shape[2] : 1};
  constexpr std::int64_t kMostChannels = 4096, kMost = INT32_MAX;
  if (*std::max_element(extents.begin(), extents.end()) > kMost) {
    throw DataError(concat(name, ": an array of shape ", text_of(header.shape), " is no image"));
  }
  const auto a = static_cast<std::size_t>(extents[0]), b = static_cast<std::size_t>(extents[1]),
             c = static_cast<std::size_t>(extents[2]);
  std::array<std::size_t, 3> steps =
      header.fortran ? std::array{std::size_t{1}, a, a * b} : std::array{b * c, c, std::size_t{1}};
  if (header.shape.size() == 3 && extents[0] == channels && extents[2] != channels) {
    std::rotate(extents.begin(), extents.begin() + 1, extents.end());
    std::rotate(steps.begin(), steps.begin() + 1, steps.end());
  }
  if (extents[2] < 1 || extents[2] > kMostChannels) {
    throw DataError(concat(name, ": an array of shape ", text_of(header.shape), ": expected 1..",
                           kMostChannels, " channels"));
  }
  const Size size{static_cast<int>(extents[0]), static_cast<int>(extents[1])};
  if (size.height < 1 || size.width < 1) check_image_size(size, name);
  return {size, extents[2], steps};
}

/// The values in the order [height, width, channels], and of bytes in the machine's.
RawPixels gather(const std::uint8_t* values, const NpyHeader& header, const Axes& axes) {
  RawPixels raw{axes.size, static_cast<int>(axes.channels), header.type, {}};
  const std::size_t bytes = bytes_of(header.type);
  const auto height = static_cast<std::size_t>(axes.size.height);
  const auto width = static_cast<std::size_t>(axes.size.width);
  const auto channels = static_cast<std::size_t>(axes.channels);
  raw.bytes.resize(height * width * channels * bytes);
  const std::array<std::size_t, 3> dense{width * channels, channels, 1};
  if (axes.steps == dense) {
    std::memcpy(raw.bytes.data(), values, raw.bytes.size());
  } else {
    std::uint8_t* out = raw.bytes.data();
    for (std::size_t y = 0; y < height; ++y) {
      for (std::size_t x = 0; x < width; ++x) {
        for (std::size_t c = 0; c < channels; ++c, out += bytes) {
          const std::size_t at = y * axes.steps[0] + x * axes.steps[1] + c * axes.steps[2];
          std::memcpy(out, values + at * bytes, bytes);
        }
      }
    }
  }
  if (header.big_endian) {
    for (auto value = raw.bytes.begin(); value != raw.bytes.end();
         value += static_cast<std::ptrdiff_t>(bytes)) {
      std::reverse(value, value + static_cast<std::ptrdiff_t>(bytes));
    }
  }
  return raw;
}

/// Whether a row's pixels lie together: those of all channels, or of each.
bool rows_lie_together(const NpyHeader& header, const Axes& axes) {
  const auto pixel = static_cast<std::size_t>(axes.steps[2] == 1 ? axes.channels : 1);
  return !header.fortran && axes.steps[1] == pixel;
}

/// The values of a part, of which no others are read. REQUIRES: rows_lie_together.
RawPixels read_part(const FileBytes& bytes, const NpyHeader& header, Axes axes,
                    const ImagePart& part, const std::string& name) {
  const auto height = static_cast<std::size_t>(part.size.height);
  const auto width = static_cast<std::size_t>(part.size.width);
  const std::size_t planes = axes.steps[2] == 1 ? 1 : static_cast<std::size_t>(axes.channels);
  const std::size_t pixel = axes.steps[1] * bytes_of(header.type), row = width * pixel;
  std::vector<std::uint8_t> values(planes * height * row);
  std::uint8_t* out = values.data();
  for (std::size_t plane = 0; plane < planes; ++plane) {
    const std::size_t first =
        plane * static_cast<std::size_t>(axes.size.height) + static_cast<std::size_t>(part.top);
    for (std::size_t y = first; y < first + height; ++y, out += row) {
      const std::size_t at =
          y * static_cast<std::size_t>(axes.size.width) + static_cast<std::size_t>(part.left);
      if (bytes.read(header.offset + at * pixel, out, row) != row)
        throw DataError(concat(name, ": reading its ", bytes.size(), " bytes failed"));
    }
  }
  axes.size = part.size;
  axes.steps[0] = width * axes.steps[1];
  if (planes > 1) axes.steps[2] = height * axes.steps[0];
  return gather(values.data(), header, axes);
}

/// The part that is asked for, or all where it cannot be read by itself.
RawPixels read_values(const FileBytes& bytes, const NpyHeader& header, const Axes& axes,
                      const std::optional<ImagePart>& part, const std::string& name) {
  const bool together = rows_lie_together(header, axes);
  const ImagePart wanted = part_of(axes.size, together ? part : std::nullopt, name);
  check_image_size(wanted.size, name);
  if (together) return read_part(bytes, header, axes, wanted, name);
  std::vector<std::uint8_t> values(bytes.size() - header.offset);
  if (bytes.read(header.offset, values.data(), values.size()) != values.size())
    throw DataError(concat(name, ": reading its ", bytes.size(), " bytes failed"));
  return gather(values.data(), header, axes);
}

NpyHeader read_header(const FileBytes& bytes, const std::string& name) {
  constexpr std::size_t kMostHeader = 65536;
  std::vector<std::uint8_t> head(std::min<std::uint64_t>(bytes.size(), kMostHeader));
  head.resize(bytes.read(0, head.data(), head.size()));
  return header_of(head, name);
}

class NpyRows : public RowSource {
 public:
  NpyRows(const std::filesystem::path& path, const NpyHeader& header, const Axes& axes,
          std::vector<int> channels, std::optional<double> nodata)
      : RowSource(axes.size, std::move(channels), nodata),
        bytes_(path),
        name_(path.string()),
        header_(header),
        axes_(axes) {}

 private:
  void decode(int first, int count, Image& rows) override {
    const ImagePart some{first, 0, {count, axes_.size.width}};
    put_image(read_part(bytes_, header_, axes_, some, name_), std::nullopt, rows);
  }

  FileBytes bytes_;
  std::string name_;
  NpyHeader header_;
  Axes axes_;
};

}  // namespace

std::unique_ptr<RowSource> npy_rows(const std::filesystem::path& path, const ImageRule& rule) {
  const FileBytes bytes(path);
  const NpyHeader header = read_header(bytes, path.string());
  const Axes axes =
      axes_of(header, rule.bands.empty() ? rule.channels : 0, bytes.size(), path.string());
  std::vector<int> chosen =
      chosen_channels({.count = static_cast<int>(axes.channels)}, rule, path.string());
  if (!rows_lie_together(header, axes)) return nullptr;
  return std::make_unique<NpyRows>(path, header, axes, std::move(chosen), rule.nodata);
}

bool is_npy(ImageBytes file) {
  return file.size() >= kMagic.size() &&
         std::memcmp(file.data(), kMagic.data(), kMagic.size()) == 0;
}

ImageInfo npy_info(ImageBytes head, std::uint64_t file_bytes, const std::string& name,
                   const ImageRule& rule) {
  const NpyHeader header = header_of(head, name);
  const int channels = rule.bands.empty() ? rule.channels : 0;
  const Axes axes = axes_of(header, channels, file_bytes, name);
  return {axes.size, header.type, static_cast<int>(axes.channels), false};
}

void decode_npy(const FileBytes& bytes, const std::string& name, const ImageRule& rule,
                Image& image) {
  const NpyHeader header = read_header(bytes, name);
  const int channels = rule.bands.empty() ? rule.channels : 0;
  const Axes axes = axes_of(header, channels, bytes.size(), name);
  const std::vector<int> chosen =
      chosen_channels({.count = static_cast<int>(axes.channels)}, rule, name);
  put_image(read_values(bytes, header, axes, rule.part, name), rule.nodata, image);
  take_channels(chosen, image);
}

void decode_npy_mask(const FileBytes& bytes, const std::string& name, const LabelRule& rule,
                     LabelMap& labels) {
  const NpyHeader header = read_header(bytes, name);
  const Axes axes = axes_of(header, 1, bytes.size(), name);
  if (axes.channels != 1) {
    throw DataError(concat(name, ": expected labels of one channel, value = class, got ",
                           axes.channels, " channels"));
  }
  put_labels(read_values(bytes, header, axes, rule.part, name), name, rule, labels);
}

}  // namespace lockstep
