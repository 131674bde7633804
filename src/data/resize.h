#pragma once
// How a configuration has images resized before they go anywhere else, and how that is done.
// Resampling with half-pixel centres: pixel i covers [i, i+1). Labels follow the image: the same
// geometry, but the nearest pixel instead of a mean.

#include <optional>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// The image that one which is held is a part of, beginning at this row and column of it.
struct Whole {
  Size size;
  int top = 0, left = 0;
};

/// A sample, or a part of one; it is not kept.
struct SamplePart {
  SamplePart(const Sample& all) : sample(all), whole{{all.image.height, all.image.width}} {}
  SamplePart(const Sample& part, const Whole& of) : sample(part), whole(of) {}

  const Sample& sample;
  Whole whole;  // of image and labels
};

/// Resamples and keeps its scratch memory from call to call. Used by one thread.
class Resizer {
 public:
  /// The `window` of an image resized to `full`: bilinear when growing; when shrinking, the
  /// triangle's support grows with the factor, so that every source pixel counts (Pillow's
  /// BILINEAR, PyTorch's `antialias=True`). Halving weighs four pixels 1:3:3:1 per axis. Integers
  /// are rounded once, at the end. A mean with a value that is not there (NaN) is not there.
  /// `source` holds the image, or at least what source_of says.
  void resize(const Image& source, const Whole& whole, Size full, const ImagePart& window,
              Image& result);
  /// Nearest: pixel floor((i + 0.5) * source / full).
  void resize(const LabelMap& source, const Whole& whole, Size full, const ImagePart& window,
              LabelMap& result);
  template <typename Map>
  void resize(const Map& source, Size full, const ImagePart& window, Map& result) {
    resize(source, Whole{{source.height, source.width}}, full, window, result);
  }
  /// What of an image the window depends on.
  ImagePart source_of(Size image, Size full, const ImagePart& window);

 private:
  // Weights of the source pixels [first, first + count) for one result pixel, at
  // weights_[offset...].
  struct Tap {
    int first = 0, count = 0;
    std::size_t offset = 0;
  };
  struct Axis {
    std::vector<Tap> taps;
    std::vector<float> weights;
  };
  static void plan(int source, int full, int begin, int count, Axis& axis);
  template <typename Value>
  void blend(const Image& source, const std::vector<Value>& values, Image& result,
             std::vector<Value>& blended);
  template <typename Value>
  void blend_rows(const Value* values, std::size_t stride, const Tap& tap, std::size_t first,
                  std::size_t end);
  template <typename Value>
  void blend_columns(std::size_t channels, Value* result) const;

  Axis rows_, columns_;
  // [source width, channels] one result row before its columns are blended
  std::vector<float> row_;
  std::vector<int> nearest_;
};

/// How an image is resized, and the part of the result that is kept.
struct ImageGeometry {
  Size full;
  ImagePart window;
};

/// What images of any size become. Without a value nothing is done.
struct ResizeRule {
  std::optional<Size> resize;
  std::optional<int> shorter_side;  // instead of `resize`
  std::optional<Size> center_crop;  // an image that is smaller stays as it is on that axis

  bool changes_images() const { return resize || shorter_side || center_crop; }
  ImageGeometry geometry(Size image) const;
};

/// The rule of data.resize, in validation also of data.val_resize and data.val_crop. Throws
/// ConfigError for values that do not fit.
ResizeRule resize_rule(const DataOptions& options, Split split);

}  // namespace lockstep
