#pragma once
// Images, label maps, and the colours in which people look at classes.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

/// The class of a pixel or of an image, or the ignore_index of a loss.
using Label = std::uint16_t;

/// Height and width in pixels.
struct Size {
  int height = 0, width = 0;
  friend bool operator==(const Size&, const Size&) = default;
};

/// "360x480": height first, as everywhere.
inline std::string to_string(const Size& size) {
  return std::to_string(size.height) + "x" + std::to_string(size.width);
}

/// The part of an image at rows [top, top + height) and columns [left, left + width).
struct ImagePart {
  int top = 0, left = 0;
  Size size;
};

/// In which order the values of images and the like lie in memory.
enum class ImageLayout : std::uint8_t {
  kChannelsLast,   // [N, ..., C], as the library's tensors
  kChannelsFirst,  // [N, C, ...], as PyTorch's, unless it is told otherwise
};

/// Which way up the pixels of a file are taken.
enum class ImageOrientation : std::uint8_t {
  kViewer,  // turned as its EXIF orientation says: as every viewer shows it
  kStored,  // as they lie in the file
};

/// Red, green, blue.
using Color = std::array<std::uint8_t, 3>;

/// What is learnt of an image.
enum class Task : std::uint8_t {
  kSegmentation,    // a class for every pixel: labels [N, H, W], logits [N, H, W, classes]
  kClassification,  // a class for the image: labels [N], logits [N, classes]
};

/// "segmentation" or "classification".
constexpr const char* to_string(Task task) {
  return task == Task::kSegmentation ? "segmentation" : "classification";
}

/// The numbers that a file's pixels are.
enum class PixelType : std::uint8_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat16,
  kFloat32,
  kFloat64,
};

/// [height, width, channels], in the one of three places that its type has: `pixels` where values
/// are 8-bit, as in all pictures that are drawn, `words` where they are unsigned of 16 bits, and
/// else `floats`, where NaN is what is not there. The other two are empty.
struct Image {
  int height = 0, width = 0;
  std::vector<std::uint8_t> pixels = {};
  int channels = 3;
  PixelType type = PixelType::kUint8;  // of the file
  std::vector<std::uint16_t> words = {};
  std::vector<float> floats = {};
};

/// What `use` returns of the image's values, wherever they are.
template <typename AnyImage, typename Use>
decltype(auto) with_values(AnyImage& image, const Use& use) {
  if (!image.floats.empty()) return use(image.floats);
  return image.words.empty() ? use(image.pixels) : use(image.words);
}

/// 8-bit RGB to look at, of three channels or of one, numbered from 0. 8-bit ones are taken as they
/// are; others are stretched from the 2nd to the 98th percentile, each by itself, and what is not
/// there is black. Without `display`: the first three channels, or the first one of fewer. Throws
/// ConfigError for channels that the image does not have.
Image picture_of(const Image& image, std::span<const int> display = {});

/// Class of every pixel: `pixels` are [height, width]; 1 x 1: the class of the whole image.
struct LabelMap {
  int height = 0, width = 0;
  std::vector<Label> pixels;
};

/// The colour of `label` where nothing else is known: Pascal VOC's rule, in which the bits of the
/// label, three at a time from the lowest, go to red, green and blue from the highest bit down.
Color voc_color(int label);

/// "#804080" as a colour. Throws ConfigError that says what was expected.
Color parse_color(const std::string& text);

/// "#804080".
std::string to_string(const Color& color);

/// The labels in colours, `colors` [class]; a label that is no class, such as ignore_index, gets
/// the colour of VOC's border. The result has the size of the labels.
Image paint(const LabelMap& labels, std::span<const Color> colors);

/// The image with the labels' colours over it, mixed in by `opacity`, which is in 0..1. Pixels
/// whose label is no class stay as they are. REQUIRES: image and labels have one size, and the
/// image is 8-bit RGB.
Image overlay(const Image& image, const LabelMap& labels, std::span<const Color> colors,
              float opacity = 0.5F);

}  // namespace lockstep
