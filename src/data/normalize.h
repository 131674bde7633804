#pragma once
// What numbers make an image the network's input, and of which pixels they are: of a whole image or
// of the whole training split, never of a crop or a window.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/image_io.h"
#include "io/row_source.h"
#include "lockstep/data/dataset.h"
#include "lockstep/io/image.h"

namespace lockstep {

/// Of one channel's values that are there.
struct PixelMoments {
  double count = 0, mean = 0, m2 = 0;  // m2: the sum of squares of distances from the mean
  double least = 0, most = 0;

  /// Population standard deviation; 0 without values.
  double deviation() const;
  void add(const PixelMoments& other);
};

/// [channel] as the file has the values, of an image that comes in bands: the same for any.
std::vector<PixelMoments> moments_of(const ImageBands& bands);
inline std::vector<PixelMoments> moments_of(const Image& image) {
  return moments_of(bands_of(image));
}

/// What is wrong with two images of a set that are of different types.
std::string several_types(const std::string& a, PixelType of_a, const std::string& b,
                          PixelType of_b);

/// Whether each image is normalised by its own numbers.
bool normalizes_by_image(const PixelOptions& options);

/// Whether images of this type are normalised by the mean and std that the options have.
bool normalizes_as_given(const PixelOptions& options, PixelType type);

/// Sets `normalize` as images of this type ask for, and `pixels` where mean and deviation are
/// given. Returns whether they are yet to be measured. Throws ConfigError where those given are the
/// default's, of another type.
bool settle_type(PixelOptions& options, PixelType type);

/// Throws DataError where a channel has no value in any of the training images, so that it cannot
/// be measured. `counts` [channel]: values that are there; `first`: what the first image is called.
void check_pixels(std::span<const double> counts, const std::string& first);

/// The rule by which the files of these options are read.
ImageRule image_rule(const DataOptions& options);

/// What makes parts of an image what the network takes, by numbers of the whole. Safe from several
/// threads.
class ImagePreparation {
 public:
  /// Passes over `bands` where images are normalised by their own numbers. `options` outlives it;
  /// `name` is the image's. Throws as prepare_image, but not for its type and channels.
  ImagePreparation(const PixelOptions& options, std::string name, const ImageBands& bands);
  /// Throws DataError where the image is of a type that is not expected.
  void apply(Image& band) const;

  /// How a channel is scaled: (value - shift) * factor.
  struct Scale {
    float shift = 0, factor = 0;
  };

 private:
  const PixelOptions& options_;
  std::string name_;
  std::vector<Scale> scales_;  // [channel] of the image's own numbers
};

/// Makes the image that `name` calls what the loaders and the network take: checks its type and
/// channels and, where images are normalised by their own numbers, does that: it is floats then.
/// Throws DataError saying what was expected.
void prepare_image(const PixelOptions& options, const std::string& name, Image& image);

/// Throws ConfigError for data.bands, data.percentiles and data.display that do not fit.
void check_channels(const PixelOptions& options);
/// The same, and for a mean and a deviation that are not of each channel, nor one for all.
void check_normalization(const PixelOptions& options);

/// Says how the images are normalised, where that is for the training split to say: its first
/// image's type, and with data.normalize = "dataset" the mean and deviation of all its pixels that
/// are there, the same for any number of workers. Sets normalize, pixels, mean and std, and returns
/// a sentence for people; for 8-bit RGB with given numbers, and where it was settled before, it
/// changes nothing and returns none. Throws as make_dataset, and DataError that names two images of
/// different types or one without pixels.
std::string settle_normalization(DataOptions& options, std::uint64_t seed);

}  // namespace lockstep
