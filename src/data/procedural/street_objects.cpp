#include "data/procedural/street_scene.h"

namespace lockstep {
namespace {

constexpr Rgb kSkin{206, 160, 132};
constexpr Rgb kTyre{34, 34, 36};

Rgb cloth(Rng& rng) { return {rng.uniform(30, 220), rng.uniform(30, 200), rng.uniform(30, 210)}; }

// Far positions are as likely as near ones on the image, not on the ground.
float distance(Rng& rng, float near, float far) { return 1 / rng.uniform(1 / far, 1 / near); }

class Objects {
 public:
  Objects(const StreetScene& scene, Rng& rng, StreetCanvas& canvas)
      : scene_(scene), rng_(rng), canvas_(canvas) {}

  void tree() {
    const float z = distance(rng_, 8, 70);
    const float X = on_pavement();
    const float trunk = rng_.uniform(1.8F, 3.2F);
    const float width = rng_.uniform(2.2F, 5);
    const float height = rng_.uniform(3, 6.5F);
    const float light = side_light(X);
    const Rgb leaves = scene_.leaves * rng_.uniform(0.8F, 1.2F);
    const float seed = rng_.uniform(0, 256);
    const float bare = scene_.season == Season::kWinter   ? 0.25F
                       : scene_.season == Season::kAutumn ? -0.15F
                                                          : -0.4F;
    canvas_.billboard(X, 0, 0.32F, trunk + 1, z, [&](float u, float) {
      return opaque(kTree, Rgb{84, 68, 56} * (light * (1 - 0.25F * u)));
    });
    canvas_.billboard(X, trunk, width, height, z, [&](float u, float v) -> Paint {
      const float w = 2 * v - 1;
      const float bumps = noise_.smooth(seed + 34 * u, seed + 34 * w);
      if (u * u + w * w > 0.72F + 0.5F * bumps) return {};
      const float detail = noise_.smooth(seed + 90 * u, 90 * w);
      if (detail < bare) return see_through(kTree);
      return opaque(kTree, leaves * (light * (0.85F + 0.35F * detail + 0.25F * w)));
    });
  }

  void pole() {
    const float z = distance(rng_, 5, 30);
    const float X = near_kerb();
    const float height = rng_.uniform(3.5F, 8);
    const Rgb color = Rgb{96, 98, 98} * (rng_.uniform(0.4F, 1.5F) * side_light(X));
    canvas_.billboard(X, 0, rng_.uniform(0.16F, 0.36F), height, z,
                      [&](float u, float) { return opaque(kPole, color * (1 - 0.2F * u)); });
    if (rng_.uniform() < 0.5F) {
      const float arm = X < 0 ? 0.7F : -0.7F;
      canvas_.billboard(X + arm, height - 0.15F, 1.4F, 0.15F, z,
                        [&](float, float) { return opaque(kPole, color); });
    }
  }

  void sign() {
    const float z = distance(rng_, 4, 18);
    const float X = near_kerb();
    const float foot = rng_.uniform(1.9F, 2.6F);
    const float extent = rng_.uniform(0.8F, 1.5F);
    const float light = side_light(X);
    canvas_.billboard(X, 0, 0.09F, foot, z, [&](float, float) {
      return opaque(kPole, Rgb{130, 132, 134} * light);
    });
    constexpr std::array<Rgb, 3> kRims{{{196, 36, 40}, {36, 80, 168}, {224, 188, 48}}};
    const Rgb rim = kRims[rng_.below(3)] * light;
    const Rgb field = (rng_.uniform() < 0.6F ? Rgb{232, 232, 230} : rim) * light;
    const std::uint32_t shape = rng_.below(3);
    canvas_.billboard(X, foot, extent, extent, z - 0.05F, [&](float u, float v) -> Paint {
      const float w = 2 * v - 1;
      const float radius = shape == 0   ? std::sqrt(u * u + w * w)
                           : shape == 1 ? std::max(std::abs(u), std::abs(w))
                                        : std::max(-w, w / 2 + std::abs(u) * 0.9F + 0.35F);
      if (radius > 1) return {};
      return opaque(kSignSymbol, radius > 0.7F ? rim : field);
    });
  }

  void fence() {
    const bool left = rng_.uniform() < 0.5F;
    const float kerb = left ? scene_.road_left - 0.35F : scene_.road_right + 0.35F;
    const float wall = left ? scene_.wall_left + 0.3F : scene_.wall_right - 0.3F;
    const float X = rng_.uniform() < 0.5F ? kerb : wall;
    const float begin = distance(rng_, 4, 25);
    const float height = rng_.uniform(1.1F, 2);
    const float pitch = rng_.uniform(0.3F, 0.9F);
    const Rgb color = mix({70, 74, 72}, {196, 192, 180}, rng_.uniform()) * side_light(X);
    canvas_.wall(X, 0, height, begin, begin + rng_.uniform(6, 25), [&](float z, float h) {
      const float slat = z / pitch - std::floor(z / pitch);
      const bool rail = h > height * 0.85F || (h > height * 0.2F && h < height * 0.32F);
      return slat < 0.6F || rail ? opaque(kFence, color) : see_through(kFence);
    });
  }

  void car(float X, float z) {
    const float height = rng_.uniform(1.4F, 1.75F);
    const float length = rng_.uniform(3.6F, 4.8F);
    const float width = rng_.uniform(1.65F, 1.9F);
    const Rgb color = car_color();
    const float light = side_light(X);
    const Rgb glass{44, 52, 60};
    const bool rear = rng_.uniform() < 0.6F;
    const Rgb lamp = rear ? Rgb{186, 34, 30} : Rgb{236, 234, 214};
    const float side_x = X + (X > 0 ? -width / 2 : width / 2);
    canvas_.wall(side_x, 0, height, z, z + length, [&](float at, float h) {
      return car_side((at - z) / length, h / height, color * (light * 0.85F), glass);
    });
    canvas_.billboard(X, 0, width, height, z, [&](float u, float v) {
      return car_end(std::abs(u), v, color * light, glass, lamp);
    });
  }

  void parked_cars() {
    const bool left = rng_.uniform() < 0.5F;
    const float X = left ? scene_.road_left + 1 : scene_.road_right - 1;
    float z = distance(rng_, 5, 25);
    for (std::uint32_t i = 0, count = 1 + rng_.below(4); i < count; ++i) {
      car(X, z);
      z += rng_.uniform(5.2F, 9);
    }
  }

  void moving_car() {
    const float X = rng_.uniform(scene_.road_left + 1.2F, scene_.road_right - 1.2F);
    car(X, distance(rng_, 7, 60));
  }

  void pedestrian() {
    const float z = distance(rng_, 4.5F, 20);
    const float X =
        rng_.uniform() < 0.85F ? on_pavement() : rng_.uniform(scene_.road_left, scene_.road_right);
    const Rgb top = cloth(rng_);
    const Rgb legs = cloth(rng_) * 0.6F;
    const float stride = rng_.uniform(0.1F, 0.6F);
    canvas_.billboard(X, 0, 0.58F, rng_.uniform(1.5F, 1.9F), z, [&](float u, float v) {
      return person(u, v, stride, kPedestrian, top, legs);
    });
  }

  void cyclist() {
    const float z = distance(rng_, 4.5F, 18);
    const float X = rng_.uniform(scene_.road_left + 0.5F, scene_.road_right - 0.5F);
    const Rgb top = cloth(rng_);
    const Rgb legs = cloth(rng_) * 0.6F;
    if (rng_.uniform() < 0.5F) {  // seen from behind
      canvas_.billboard(X, 0, 0.16F, 0.75F, z,
                        [&](float, float) { return opaque(kBicyclist, kTyre); });
      canvas_.billboard(X, 0.35F, 0.6F, 1.35F, z, [&](float u, float v) {
        return person(u, v, 0.45F, kBicyclist, top, legs);
      });
      return;
    }
    for (const float offset : {-0.52F, 0.52F}) {
      canvas_.billboard(X + offset, 0, 0.68F, 0.68F, z, [&](float u, float v) -> Paint {
        const float radius = u * u + (2 * v - 1) * (2 * v - 1);
        if (radius > 1) return {};
        return radius > 0.55F ? opaque(kBicyclist, kTyre) : see_through(kBicyclist);
      });
    }
    canvas_.billboard(X, 0.4F, 1.1F, 0.28F, z, [&](float u, float v) -> Paint {
      return std::abs(u) < 0.3F + 0.6F * v ? opaque(kBicyclist, Rgb{150, 40, 44}) : Paint{};
    });
    canvas_.billboard(X, 0.45F, 0.7F, 1.3F, z - 0.05F, [&](float u, float v) {
      return person(u - 0.35F * (v - 0.5F), v, 0.3F, kBicyclist, top, legs);
    });
  }

  // A bin, a box, a hoarding: nothing of the eleven classes.
  void unnamed(int void_label) {
    const float z = distance(rng_, 5, 25);
    const Rgb color = cloth(rng_) * 0.8F;
    const float X = on_pavement();
    const float width = rng_.uniform(0.5F, 1.6F);
    canvas_.billboard(X, 0, width, rng_.uniform(0.8F, 1.8F), z, [&](float, float v) {
      return opaque(void_label, color * (0.8F + 0.2F * v));
    });
  }

  // The own car's bonnet, along the lower edge.
  void bonnet(int void_label) {
    const auto width = static_cast<float>(canvas_.size.width);
    const auto height = static_cast<float>(canvas_.size.height);
    const float rise = rng_.uniform(0.04F, 0.11F);
    const float middle = rng_.uniform(0.4F, 0.6F);
    const Rgb color = car_color();
    for (int x = 0; x < canvas_.size.width; ++x) {
      const float off = (static_cast<float>(x) + 0.5F) / width - middle;
      const int top = static_cast<int>(height * (1 - rise * std::max(0.0F, 1 - 2.8F * off * off)));
      for (int y = std::max(top, 0); y < canvas_.size.height; ++y) {
        const float shine = 0.7F + 0.5F * static_cast<float>(y - top) / (height * rise);
        canvas_.set(x, y, 1, void_label, color * shine);
      }
    }
  }

 private:
  float on_pavement() {
    const bool left = rng_.uniform() < 0.5F;
    return left ? rng_.uniform(scene_.wall_left + 0.4F, scene_.road_left - 0.3F)
                : rng_.uniform(scene_.road_right + 0.3F, scene_.wall_right - 0.4F);
  }
  float near_kerb() {
    const float offset = rng_.uniform(0.2F, 0.8F);
    return rng_.uniform() < 0.5F ? scene_.road_left - offset : scene_.road_right + offset;
  }
  float side_light(float X) const {
    const bool shaded = X < scene_.light.shadow_x;
    return (X < 0 ? scene_.light.left : scene_.light.right) * (shaded ? scene_.light.shadow : 1);
  }
  Rgb car_color() {
    constexpr std::array<Rgb, 7> kPaints{{{196, 198, 202},
                                          {44, 46, 52},
                                          {232, 232, 232},
                                          {150, 34, 36},
                                          {38, 62, 120},
                                          {116, 120, 126},
                                          {60, 92, 74}}};
    return kPaints[rng_.below(kPaints.size())] * rng_.uniform(0.85F, 1.1F);
  }

  // t from the near to the far end, v from the ground to the roof.
  static Paint car_side(float t, float v, const Rgb& color, const Rgb& glass) {
    for (const float axle : {0.2F, 0.8F}) {
      const float dx = (t - axle) / 0.09F;
      const float dy = (v - 0.2F) / 0.2F;
      if (dx * dx + dy * dy < 1)
        return opaque(kCar, dx * dx + dy * dy < 0.3F ? Rgb{140, 142, 146} : kTyre);
    }
    if (v < 0.14F) return {};
    if (v < 0.58F) return opaque(kCar, color * (0.75F + 0.4F * v));
    const float inset = (v - 0.58F) * 0.35F;
    if (t < 0.08F + inset || t > 0.8F - inset) return {};
    const bool pane = v > 0.62F && v < 0.9F && t > 0.13F + inset && t < 0.74F - inset &&
                      std::abs(t - 0.44F) > 0.02F;
    return opaque(kCar, pane ? glass : color);
  }

  // u from the middle outwards.
  static Paint car_end(float u, float v, const Rgb& color, const Rgb& glass, const Rgb& lamp) {
    if (v < 0.16F) return u > 0.66F && u < 0.95F ? opaque(kCar, kTyre) : Paint{};
    const float edge = v < 0.58F ? 1 : 1 - 0.55F * (v - 0.58F);
    if (u > edge) return {};
    if (v > 0.4F && v < 0.55F && u > 0.7F) return opaque(kCar, lamp);
    if (v > 0.6F && v < 0.92F && u < edge - 0.12F) return opaque(kCar, glass);
    if (v > 0.2F && v < 0.3F && u < 0.25F) return opaque(kCar, {220, 214, 180});
    return opaque(kCar, color * (0.7F + 0.4F * v));
  }

  static Paint person(float u, float v, float stride, int label, const Rgb& top, const Rgb& legs) {
    if (v > 0.87F) {
      const float dy = (v - 0.935F) / 0.065F;
      const float dx = u / 0.36F;
      return dx * dx + dy * dy < 1 ? opaque(label, v > 0.95F ? Rgb{70, 54, 44} : kSkin) : Paint{};
    }
    if (v > 0.45F) {
      const float shoulder = 0.95F - 0.4F * std::abs(v - 0.72F);
      return std::abs(u) < shoulder ? opaque(label, top * (1 - 0.2F * u)) : Paint{};
    }
    const float foot = stride * (1 - v / 0.45F);
    return std::abs(std::abs(u) - 0.25F - foot * 0.5F) < 0.24F ? opaque(label, legs) : Paint{};
  }

  const StreetScene& scene_;
  const TextureNoise noise_;
  Rng& rng_;
  StreetCanvas& canvas_;
};

}  // namespace

void paint_objects(const StreetScene& scene, Rng& rng, int void_label, StreetCanvas& canvas) {
  Objects objects(scene, rng, canvas);
  const auto repeat = [&rng](std::uint32_t most, auto&& paint) {
    for (std::uint32_t i = 0, count = rng.below(most + 1); i < count; ++i) paint();
  };
  repeat(7, [&] { objects.tree(); });
  repeat(4, [&] { objects.fence(); });
  repeat(2, [&] { objects.parked_cars(); });
  repeat(3, [&] { objects.moving_car(); });
  repeat(7, [&] { objects.pole(); });
  repeat(5, [&] { objects.sign(); });
  repeat(8, [&] { objects.pedestrian(); });
  repeat(3, [&] { objects.cyclist(); });
  repeat(2, [&] { objects.unnamed(void_label); });
  if (rng.uniform() < 0.3F) objects.bonnet(void_label);
}

}  // namespace lockstep
