#pragma once
// Test-time augmentation: a network is shown an image at several scales and mirrored, and its
// probabilities are averaged.

#include <cstdint>
#include <string>
#include <vector>

#include "data/augment.h"
#include "lockstep/core/shape.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

struct TestTimeAugmentation {
  bool flip = false;  // also the mirrored image
  std::vector<double> scales{1};

  /// Whether there is anything but the image itself.
  bool active() const { return flip || scales != std::vector<double>{1}; }
};

/// Reads the arguments --flip and --scales: "0.5,1,1.5", or "" for none. Throws ConfigError for
/// what is no list of scales in 1/16..16, each once.
TestTimeAugmentation augmentation_of(bool flip, const std::string& scales);

/// "flip, scales 0.5, 1, 1.5".
std::string to_string(const TestTimeAugmentation& augmentation);

/// An image at one scale, as the network wants it.
struct View {
  std::size_t scale = 0;      // which of TestTimeAugmentation::scales
  Size size;                  // of the image in it: the rest, right and below, has the mean colour
  Shape shape = {};           // [1, H, W, channels], or 2 where the second is the mirrored image
  std::vector<float> images;  // [shape]
};

/// Makes views of images. Safe from several threads.
class Views {
 public:
  /// Heights and widths of views are multiples of `divisor`.
  Views(const DataOptions& data, std::int64_t divisor, TestTimeAugmentation augmentation);

  /// One for each scale, in their order.
  std::vector<View> of(const Image& image) const;
  const TestTimeAugmentation& augmentation() const { return augmentation_; }

 private:
  View view(const Image& image, std::size_t scale) const;

  Normalizer normalizer_;
  int divisor_;
  TestTimeAugmentation augmentation_;
};

}  // namespace lockstep
