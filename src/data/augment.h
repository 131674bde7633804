#pragma once
// From a decoded sample to the floats of a batch: scale, crop, turn, flip, photometric, normalise,
// pad, vary, in this order. Labels of pixels follow the image through every geometric step. All
// random numbers of a sample are a function of (seed, sample, epoch), and those of a purpose are a
// stream, drawn in one place and always in the same number, so that switching one augmentation on
// does not change another's numbers.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/rng.h"
#include "data/resize.h"
#include "lockstep/data/batch.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

/// Applies the exposure of sample `index`: x*g + o*(1-g), rounded. REQUIRES: 8 bits.
void expose(const ExposureOptions& options, std::uint64_t seed, Split split, std::int64_t index,
            Image& image);

/// Mirrors it, left to right.
void flip_columns(Image& image);

/// Turns 8-bit values into (x/255 - mean) / std, others into (x - mean) / std; leaves an image as
/// it is that its own numbers have normalised. What is not there becomes 0. Immutable, so safe from
/// several threads.
class Normalizer {
 public:
  explicit Normalizer(const PixelOptions& options);
  /// Fills `result` [padded.height, padded.width, channels]; right and bottom of the image are
  /// zeros, the mean colour. REQUIRES: the image is not larger than `padded` and has the options'
  /// channels.
  void apply(const Image& image, Size padded, float* result) const;

 private:
  /// `fixed`: the number of channels where it is known while compiling, or 0.
  template <std::size_t fixed, typename Value, typename Normalize>
  void fill(const Image& image, const std::vector<Value>& values, Size padded,
            const Normalize& normalize, float* result) const;

  bool by_image_;
  std::size_t channels_;
  std::vector<float> mean_, std_;              // [channel]
  std::vector<std::array<float, 256>> table_;  // [channel][value] of 8 bits
};

/// What an image fills when its sides become multiples of `divisor`.
Size padded_size(Size size, int divisor);

/// Copies labels to `result` [padded.height, padded.width]; right and bottom of them are
/// `ignored`.
void pad_labels(const LabelMap& labels, Size padded, Label ignored, Label* result);

/// What chance decides about one sample in one epoch.
struct AugmentDraw {
  Size scaled;       // size of the whole image after scaling
  ImagePart window;  // the crop, within `scaled`
  // In this order: rows become columns; left and right, above and below change places.
  bool transpose = false, flip = false, vflip = false;
  bool brightness = false, contrast = false, saturation = false, hue = false;  // applied or not
  bool contrast_last = false;  // after saturation and hue instead of before them
  float brightness_shift = 0;  // of 255
  float contrast_factor = 1, saturation_factor = 1;
  float hue_shift = 0;  // degrees
};

/// What a crop of a sample is called where random numbers are drawn; the first is called as the
/// sample is. REQUIRES: sample < 2^32.
constexpr std::int64_t crop_index(std::int64_t sample, std::int64_t crop) {
  return sample + (crop << 32);
}

/// Draws from streams of (seed, sample, epoch), where the sample may be a crop_index; the part of a
/// random-resized crop is that of Szegedy et al. 2014, Going Deeper with Convolutions, section 6
/// (ten tries, then the largest central part of an allowed shape). Without `crop`, the window is
/// the whole scaled image. Turns come before flips.
AugmentDraw draw_augment(const AugmentOptions& options, Size image, std::uint64_t seed,
                         std::int64_t sample, std::int64_t epoch);

/// Brightness, contrast, saturation and hue in place, as SSD's and mmsegmentation's photometric
/// distortion: shift by +-32, factors 0.5..1.5, +-18 degrees, each applied with probability 1/2;
/// values are clamped to 0..255 after each step and rounded at the end. REQUIRES: 8-bit RGB.
void distort_colors(const AugmentDraw& draw, Image& image);

/// Gain, shift and noise of AugmentOptions on `values` [padded.height, padded.width, channels],
/// into which a Normalizer has put the image. What is not there, in the image or beside it, stays
/// 0.
void vary_values(const AugmentOptions& options, Rng rng, const Image& image, Size padded,
                 float* values);

/// Augments sample after sample, keeping its scratch memory. Used by one thread.
class Augmenter {
 public:
  /// Samples leave with `size`, which the loader has chosen.
  Augmenter(const DataOptions& options, std::uint64_t seed, Size size);
  /// Fills `image` [size.height, size.width, channels] and `labels`, [size.height, size.width] or
  /// one of the whole image. `index`: of the sample, or its crop_index.
  void apply(const SamplePart& part, std::int64_t index, std::int64_t epoch, float* image,
             Label* labels);
  /// The part of such an image that apply depends on, where it looks for no class.
  ImagePart part_needed(Size image, std::int64_t index, std::int64_t epoch);

 private:
  void apply_to_labels(const SamplePart& part, const AugmentDraw& draw, Label* result);

  AugmentOptions options_;
  Task task_;
  Label ignored_;
  std::uint64_t seed_;
  Size size_;
  Normalizer normalizer_;
  Resizer resizer_;
  Image image_;
  LabelMap labels_;
};

/// Image `place` of the batch as a picture: of 8-bit RGB the way back from what the loader has made
/// of 0..255, rounded, and cut off where augmentation has led beyond; of others what picture_of
/// shows of data.display.
Image denormalize(const Batch& batch, std::size_t place, const PixelOptions& options);

}  // namespace lockstep
