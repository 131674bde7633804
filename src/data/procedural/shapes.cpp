#include "data/procedural/shapes.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/rng.h"
#include "data/procedural/generated.h"
#include "data/procedural/texture_noise.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr int kSubPixels = 2;  // per axis: smooth edges

using Shade = std::array<float, 3>;

// hypot() would do, and need a newer C library. In double nothing of floats overflows.
float length(double x, double y) { return static_cast<float>(std::sqrt(x * x + y * y)); }

/// A point in the shape's own frame: its centre is 0, it fits the unit circle.
struct Point {
  float u = 0, v = 0;

  float radius() const { return length(u, v); }
  float farthest() const { return std::max(std::abs(u), std::abs(v)); }
  float nearest() const { return std::min(std::abs(u), std::abs(v)); }
  float distance(float x, float y) const { return length(u - x, v - y); }
};

struct Shape {
  const char* name;
  bool (*covers)(Point p);
};

constexpr std::array<Shape, 10> kShapes{{
    {"disc", [](Point p) { return p.radius() < 0.9F; }},
    {"ring", [](Point p) { return p.radius() < 0.95F && p.radius() > 0.55F; }},
    {"square", [](Point p) { return p.farthest() < 0.7F; }},
    {"frame", [](Point p) { return p.farthest() < 0.75F && p.farthest() > 0.45F; }},
    {"triangle", [](Point p) { return p.v > -0.55F && p.v < 0.95F - 1.7F * std::abs(p.u); }},
    {"cross", [](Point p) { return p.farthest() < 0.9F && p.nearest() < 0.25F; }},
    {"star",
     [](Point p) { return p.radius() < 0.6F + 0.35F * std::cos(5 * std::atan2(p.v, p.u)); }},
    {"crescent", [](Point p) { return p.radius() < 0.95F && p.distance(0.45F, 0) > 0.75F; }},
    {"bar", [](Point p) { return std::abs(p.u) < 0.95F && std::abs(p.v) < 0.25F; }},
    {"pair", [](Point p) { return p.distance(-0.5F, 0) < 0.4F || p.distance(0.5F, 0) < 0.4F; }},
}};

Shade random_color(Rng& rng) {
  return {rng.uniform(20.0F, 235.0F), rng.uniform(20.0F, 235.0F), rng.uniform(20.0F, 235.0F)};
}

/// What chance decides about one image; lengths in shares of its shorter side.
struct Scene {
  explicit Scene(Rng& rng)
      : ground(random_color(rng)),
        color(random_color(rng)),
        radius(rng.uniform(0.24F, 0.40F)),
        center{rng.uniform(-0.1F, 0.1F), rng.uniform(-0.1F, 0.1F)},
        turn(rng.uniform(-0.4F, 0.4F)),
        texture(rng.uniform(10.0F, 50.0F)),
        grain(rng.uniform(1.0F, 14.0F)),
        gain(std::exp(rng.uniform(std::log(0.3F), 0.0F))),
        haze(rng.uniform(0.0F, 110.0F)),
        noise_u(rng.uniform(0.0F, 256.0F)),
        noise_v(rng.uniform(0.0F, 256.0F)) {
    // A shape that nobody could see on its ground is no example of it.
    float contrast = 0;
    for (std::size_t c = 0; c < 3; ++c) contrast += std::abs(color[c] - ground[c]);
    if (contrast >= 120) return;
    for (std::size_t c = 0; c < 3; ++c) color[c] += ground[c] < 128 ? 80.0F : -80.0F;
  }

  Shade ground, color;
  float radius;
  Point center;
  float turn;
  float texture, grain;
  float gain, haze;  // of the light: x becomes x * gain + haze * (1 - gain)
  float noise_u, noise_v;
};

class Canvas {
 public:
  Canvas(const Scene& scene, const Shape& shape, Size size)
      : scene_(scene),
        shape_(shape),
        size_(size),
        scale_(1.0F / static_cast<float>(std::min(size.height, size.width))),
        cos_(std::cos(scene.turn)),
        sin_(std::sin(scene.turn)) {}

  void paint(std::uint8_t* pixels) const {
    for (int y = 0; y < size_.height; ++y) {
      for (int x = 0; x < size_.width; ++x, pixels += 3) paint(x, y, pixels);
    }
  }

 private:
  void paint(int x, int y, std::uint8_t* pixel) const {
    const float covered = coverage(x, y);
    const float cloud = scene_.texture * noise_.smooth(scene_.noise_u + static_cast<float>(x),
                                                       scene_.noise_v + static_cast<float>(y));
    for (std::size_t c = 0; c < 3; ++c) {
      const float own = scene_.ground[c] + (scene_.color[c] - scene_.ground[c]) * covered;
      const float lit = (own + cloud) * scene_.gain + scene_.haze * (1 - scene_.gain);
      const float grain = scene_.grain * noise_.white(x + static_cast<int>(scene_.noise_u) +
                                                          83 * static_cast<int>(c),
                                                      y + static_cast<int>(scene_.noise_v));
      pixel[c] = static_cast<std::uint8_t>(std::clamp(lit + grain, 0.0F, 255.0F) + 0.5F);
    }
  }

  /// The share of a pixel that the shape covers.
  float coverage(int x, int y) const {
    int inside = 0;
    for (int j = 0; j < kSubPixels; ++j) {
      for (int i = 0; i < kSubPixels; ++i) {
        inside += shape_.covers(to_shape(x, i, size_.width, y, j, size_.height)) ? 1 : 0;
      }
    }
    return static_cast<float>(inside) / (kSubPixels * kSubPixels);
  }

  Point to_shape(int x, int i, int width, int y, int j, int height) const {
    const auto along = [&](int pixel, int part, int extent) {
      const float place =
          static_cast<float>(pixel) + (static_cast<float>(part) + 0.5F) / kSubPixels;
      return (place - static_cast<float>(extent) / 2) * scale_;
    };
    const float u = (along(x, i, width) - scene_.center.u) / scene_.radius;
    const float v = (along(y, j, height) - scene_.center.v) / scene_.radius;
    return {u * cos_ + v * sin_, v * cos_ - u * sin_};
  }

  const Scene& scene_;
  const Shape& shape_;
  const Size size_;
  const float scale_;
  const float cos_, sin_;
  const TextureNoise noise_;
};

}  // namespace

const std::vector<std::string>& shape_class_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Shape& shape : kShapes) list.emplace_back(shape.name);
    return list;
  }();
  return names;
}

void draw_shape(Size size, Split split, std::uint64_t seed, std::int64_t index, Sample& sample) {
  LOCKSTEP_CHECK(size.height >= kMinGeneratedExtent && size.width >= kMinGeneratedExtent,
                 "a shape of ", to_string(size));
  Rng rng(seed, RngPurpose::kSynthetic, static_cast<std::uint64_t>(index),
          static_cast<std::uint32_t>(split));
  const auto label = static_cast<std::size_t>(index) % kShapes.size();
  const Scene scene(rng);
  sample.labels = {1, 1, {static_cast<Label>(label)}};
  sample.image.height = size.height;
  sample.image.width = size.width;
  sample.image.pixels.resize(static_cast<std::size_t>(size.height) *
                             static_cast<std::size_t>(size.width) * 3);
  Canvas(scene, kShapes[label], size).paint(sample.image.pixels.data());
}

std::unique_ptr<Dataset> make_shapes(const DataOptions& options, Split split, std::uint64_t seed) {
  const auto draw = [size = options.size, split, seed](std::int64_t index, Sample& sample) {
    draw_shape(size, split, seed, index, sample);
  };
  return make_generated(options, split, "shape", static_cast<int>(kShapes.size()), draw);
}

}  // namespace lockstep
