#pragma once
// Large images in windows that overlap: how they are cut, and how far windows contradict each
// other.

#include <array>
#include <cstdint>

#include "lockstep/core/options.h"
#include "lockstep/io/image.h"

namespace lockstep {

/// How what several windows say of a pixel becomes one answer.
enum class Blend : std::uint8_t {
  kCrop,      // that of the window whose middle is nearest
  kGaussian,  // the mean of all, which counts less the farther the window's middle is
  kFlat,      // the mean of all
};
constexpr auto names_of(Blend) {
  return std::to_array<Named<Blend>>(
      {{"crop", Blend::kCrop}, {"gaussian", Blend::kGaussian}, {"flat", Blend::kFlat}});
}

struct WindowOptions {
  Size window = {};      // zeros: every image in one piece
  double overlap = 0.5;  // least share of a window that the next one has, too
  Blend blend = Blend::kCrop;
  int divisor = 1;  // windows begin and end at multiples of it, as the network needs

  /// Whether images are cut.
  bool any() const { return window != Size{}; }
};

/// How far windows side by side contradict each other, over the pixels that both have.
struct TileMismatch {
  std::int64_t pixels = 0;       // once for each pair of windows
  double difference = 0;         // sum of half the sum over the classes of |p - q|
  std::int64_t other_class = 0;  // pixels to which the two give different classes

  TileMismatch& operator+=(const TileMismatch& other) {
    pixels += other.pixels;
    difference += other.difference;
    other_class += other.other_class;
    return *this;
  }
  /// Means over the pixels; 0 without any.
  double mean_difference() const { return pixels > 0 ? difference / as_double(pixels) : 0; }
  double share_of_other_class() const {
    return pixels > 0 ? as_double(other_class) / as_double(pixels) : 0;
  }

 private:
  static double as_double(std::int64_t value) { return static_cast<double>(value); }
};

}  // namespace lockstep
