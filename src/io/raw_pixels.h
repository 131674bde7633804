#pragma once
// From the numbers that lie in a file to images and labels: types, channels, what is not there. One
// place for every format.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/image_io.h"
#include "io/row_source.h"
#include "lockstep/io/image.h"

namespace lockstep {

/// Bytes of a value.
std::size_t bytes_of(PixelType type);

/// Values of one type, in the machine's order: [height, width, channels].
struct RawPixels {
  Size size;
  int channels = 1;
  PixelType type = PixelType::kUint8;
  std::vector<std::uint8_t> bytes;
};

/// Makes them an image. What is `nodata` becomes NaN, in an image of floats, and so does what is
/// infinite: it is not there.
void put_image(RawPixels&& raw, std::optional<double> nodata, Image& image);

/// Makes room in the image for such values, and gives it where an image has them as a file does: of
/// 8 and 16 bits, unsigned, and of floats; else empty.
std::span<std::uint8_t> room_for(Size size, int channels, PixelType type, Image& image);

/// The same of an image that is there: its values become floats where one of them is `nodata`.
void mark_missing(std::optional<double> nodata, Image& image);

/// Whether no channel of the pixel is there. REQUIRES: an image of floats.
bool is_missing(const Image& image, std::size_t pixel);

/// The part of values [height, width, channels], whose rows are of `width` pixels.
template <typename Value>
void copy_part(const std::vector<Value>& values, int width, std::size_t channels,
               const ImagePart& part, std::vector<Value>& result) {
  const std::size_t row = static_cast<std::size_t>(part.size.width) * channels;
  const std::size_t stride = static_cast<std::size_t>(width) * channels;
  result.resize(static_cast<std::size_t>(part.size.height) * row);
  const Value* in = values.data() + static_cast<std::size_t>(part.top) * stride +
                    static_cast<std::size_t>(part.left) * channels;
  Value* out = result.data();
  for (int y = 0; y < part.size.height; ++y, in += stride) out = std::copy(in, in + row, out);
}

/// Of pixels that are not there nothing is learnt, and none is counted or scored: their labels
/// become `ignored`, where these are of pixels.
void ignore_missing(const Image& image, Label ignored, LabelMap& labels);

/// Makes them labels. `name` is the file's, for messages. REQUIRES: one channel. Throws DataError
/// for what is no whole number in 0..65535; as objects, any number but 0 is 1.
void put_labels(const RawPixels& raw, const std::string& name, const LabelRule& rule,
                LabelMap& labels);

/// 0, 1, ... of `count` channels.
std::vector<int> first_channels(int count);

/// What a file has to choose from.
struct FileChannels {
  int count = 0;
  bool alpha = false;  // the last one
  int pages = 1;
};

/// The channels that the rule takes, in its order. Throws DataError that says which options would
/// do where they do not fit.
std::vector<int> chosen_channels(const FileChannels& file, const ImageRule& rule,
                                 const std::string& name);

/// Leaves those in the image.
void take_channels(const std::vector<int>& channels, Image& image);

/// Has its values as floats, of whatever type they are.
void make_floats(Image& image);

/// [channel of `channels`][percent] the values below which, or at which, at least `percents` (in
/// 0..100) of all lie that are there and finite: the smallest such ones. NaN without any. In three
/// passes, whose memory does not depend on the image.
std::vector<std::vector<float>> percentiles_of(const ImageBands& bands,
                                               std::span<const int> channels,
                                               std::span<const float> percents);

/// The channels that pictures of an image of so many show. Throws ConfigError for those that it
/// does not have.
std::vector<int> shown_channels(int of_image, std::span<const int> display);

/// What picture_of makes of an image, band by band.
class Picture {
 public:
  /// `sample`: any band, whose values tell whether `bands` need be looked at.
  Picture(const Image& sample, const ImageBands& bands, std::span<const int> display);
  Image of(const Image& band) const;

  /// Of a channel's values, that become black and full.
  struct Range {
    float low = 0, high = 1;
  };

 private:
  std::vector<int> channels_;
  std::vector<Range> ranges_;
};

/// Adds the channels of `part`, which is of the file `name`, to those of `image`. Throws DataError
/// where they differ in size or type.
void append_channels(Image&& part, const std::string& name, Image& image);

}  // namespace lockstep
