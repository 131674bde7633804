#pragma once
// What a street scene is painted on: colours, labels and a depth buffer behind a pinhole camera.
// Objects may be painted in any order; the nearest one stays. Lengths are metres: X to the right of
// the camera, Y up from the ground, z ahead of the camera.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "data/procedural/texture_noise.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

enum StreetClass : std::uint8_t {
  kSky,
  kBuilding,
  kPole,
  kRoad,
  kPavement,
  kTree,
  kSignSymbol,
  kFence,
  kCar,
  kPedestrian,
  kBicyclist,
};
constexpr int kStreetClasses = 11;

/// Colour of a surface under white light, 0..255 per channel.
struct Rgb {
  float r = 0, g = 0, b = 0;
  friend Rgb operator*(const Rgb& a, float s) { return {a.r * s, a.g * s, a.b * s}; }
  friend Rgb operator+(const Rgb& a, const Rgb& b) { return {a.r + b.r, a.g + b.g, a.b + b.b}; }
};

inline Rgb mix(const Rgb& a, const Rgb& b, float t) { return a * (1 - t) + b * t; }

struct Camera {
  float horizon = 0;      // row of the horizon at the vanishing point
  float roll = 0;         // rows per column
  float vanishing_x = 0;  // column
  float focal = 0;        // pixels
  float height = 0;       // metres above the ground
};

/// What a painter answers for a point of its object.
struct Paint {
  enum Kind : std::uint8_t {
    kNothing,
    kOpaque,
    kSeeThrough
  };  // see-through: the label without a colour
  Kind kind = kNothing;
  std::uint8_t label = 0;
  Rgb color;
};

inline Paint opaque(int label, const Rgb& color) {
  return {Paint::kOpaque, static_cast<std::uint8_t>(label), color};
}
inline Paint see_through(int label) {
  return {Paint::kSeeThrough, static_cast<std::uint8_t>(label), {}};
}

class StreetCanvas {
 public:
  StreetCanvas(Size canvas_size, const Camera& canvas_camera, std::vector<Label>& labels)
      : size(canvas_size),
        camera(canvas_camera),
        colors(static_cast<std::size_t>(canvas_size.height) *
               static_cast<std::size_t>(canvas_size.width)),
        depths(colors.size(), kFar),
        labels_(labels) {}

  static constexpr float kFar = 1e6F;

  float horizon_at(float x) const {
    return camera.horizon + camera.roll * (x - camera.vanishing_x);
  }
  float column_of(float X, float z) const { return camera.vanishing_x + camera.focal * X / z; }
  float row_of(float x, float Y, float z) const {
    return horizon_at(x) + camera.focal * (camera.height - Y) / z;
  }

  void set(int x, int y, float z, int label, const Rgb& color) {
    const std::size_t i = index(x, y);
    colors[i] = color;
    labels_[i] = static_cast<Label>(label);
    depths[i] = z;
  }

  /// A flat object that faces the camera, centred at X, its foot at Y. `paint(u, v)` with u in [-1,
  /// 1] from left to right and v in [0, 1] from foot to top. At least one pixel wide.
  template <typename Painter>
  void billboard(float X, float Y, float width, float height, float z, const Painter& paint);

  /// A wall along the street at X, from z0 to z1, its foot at Y. `paint(z, h)` with h in [0,
  /// height].
  template <typename Painter>
  void wall(float X, float Y, float height, float z0, float z1, const Painter& paint);

  const Size size;
  const Camera camera;
  std::vector<Rgb> colors;    // [height, width]
  std::vector<float> depths;  // [height, width] metres ahead

 private:
  std::size_t index(int x, int y) const {
    return static_cast<std::size_t>(y) * static_cast<std::size_t>(size.width) +
           static_cast<std::size_t>(x);
  }
  void apply(int x, int y, float z, const Paint& paint) {
    const std::size_t i = index(x, y);
    if (paint.kind == Paint::kNothing || z >= depths[i]) return;
    depths[i] = z;
    labels_[i] = paint.label;
    if (paint.kind == Paint::kOpaque) colors[i] = paint.color;
  }

  std::vector<Label>& labels_;  // [height, width]
};

template <typename Painter>
void StreetCanvas::billboard(float X, float Y, float width, float height, float z,
                             const Painter& paint) {
  const float center = column_of(X, z);
  const float half = std::max(camera.focal * width / z / 2, 0.5F);
  const float top = row_of(center, Y + height, z);
  const float bottom = row_of(center, Y, z);
  const int x0 = std::max(static_cast<int>(std::ceil(center - half - 0.5F)), 0);
  const int x1 = std::min(static_cast<int>(std::ceil(center + half - 0.5F)), size.width);
  const int y0 = std::max(static_cast<int>(std::ceil(top - 0.5F)), 0);
  const int y1 = std::min(static_cast<int>(std::ceil(bottom - 0.5F)), size.height);
  for (int y = y0; y < y1; ++y) {
    const float v = (bottom - (static_cast<float>(y) + 0.5F)) / (bottom - top);
    for (int x = x0; x < x1; ++x) {
      apply(x, y, z, paint((static_cast<float>(x) + 0.5F - center) / half, v));
    }
  }
}

template <typename Painter>
void StreetCanvas::wall(float X, float Y, float height, float z0, float z1, const Painter& paint) {
  const float near_column = column_of(X, z0);
  const float far_column = column_of(X, z1);
  const int x0 = std::max(static_cast<int>(std::ceil(std::min(near_column, far_column) - 0.5F)), 0);
  const int x1 =
      std::min(static_cast<int>(std::ceil(std::max(near_column, far_column) - 0.5F)), size.width);
  for (int x = x0; x < x1; ++x) {
    const float column = static_cast<float>(x) + 0.5F;
    const float z = camera.focal * X / (column - camera.vanishing_x);
    const float bottom = row_of(column, Y, z);
    const float rows_per_metre = camera.focal / z;
    const int y0 =
        std::max(static_cast<int>(std::ceil(bottom - height * rows_per_metre - 0.5F)), 0);
    const int y1 = std::min(static_cast<int>(std::ceil(bottom - 0.5F)), size.height);
    for (int y = y0; y < y1; ++y) {
      apply(x, y, z, paint(z, (bottom - (static_cast<float>(y) + 0.5F)) / rows_per_metre));
    }
  }
}

}  // namespace lockstep
