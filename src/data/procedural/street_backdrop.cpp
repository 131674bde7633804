#include "data/procedural/street_scene.h"

namespace lockstep {
namespace {

constexpr float kFloor = 3.1F;  // metres

float fraction(float x) { return x - std::floor(x); }

// The ray through one pixel: how far it moves right and down per metre ahead.
struct Ray {
  float dx = 0, dy = 0;
  int x = 0, y = 0;
};

class Backdrop {
 public:
  Backdrop(const StreetScene& scene, StreetCanvas& canvas) : scene_(scene), canvas_(canvas) {}

  // What the ray meets first: the ground, a side of the street, what closes the street, or the sky.
  void trace(const Ray& ray) {
    const float ground = ray.dy > 0 ? canvas_.camera.height / ray.dy : StreetCanvas::kFar;
    const bool left = ray.dx < 0;
    const float wall_x = left ? scene_.wall_left : scene_.wall_right;
    const float wall = ray.dx == 0 ? StreetCanvas::kFar : wall_x / ray.dx;
    if (ground < wall && ground < scene_.end) return paint_ground(ray, ground);
    if (wall < scene_.end && paint_side(ray, wall, left)) return;
    if (ground < scene_.end) return paint_side_ground(ray, ground, wall, left);
    paint_end(ray);
  }

 private:
  float noise(float u, float v) const {
    return noise_.smooth(u + scene_.texture_u, v + scene_.texture_v);
  }
  void set(const Ray& ray, float z, int label, const Rgb& color) {
    canvas_.set(ray.x, ray.y, z, label, color);
  }

  void paint_ground(const Ray& ray, float z) {
    const float X = ray.dx * z;
    const float shade = X < scene_.light.shadow_x ? scene_.light.shadow : 1;
    const bool road = X > scene_.road_left && X < scene_.road_right;
    const float grain = 1 + 0.16F * noise(X * 14, z * 14) + 0.1F * noise(X * 3, z * 1.5F);
    if (!road) {
      const bool kerb = X > scene_.road_left - 0.2F && X < scene_.road_right + 0.2F;
      const bool joint = z < 18 && (fraction(X * 1.4F) < 0.07F || fraction(z * 1.1F) < 0.07F);
      const float level = kerb ? 1.2F : joint ? 0.8F : 1.0F;
      return set(ray, z, kPavement, scene_.slabs * (grain * shade * level));
    }
    const float middle = (scene_.road_left + scene_.road_right) / 2;
    const bool dash = std::abs(X - middle) < 0.09F && fraction(z / 6) < 0.5F;
    const bool edge = X < scene_.road_left + 0.45F && X > scene_.road_left + 0.33F;
    const Rgb surface = dash || edge ? Rgb{206, 204, 196} : scene_.asphalt;
    set(ray, z, kRoad, surface * (grain * shade));
  }

  // Past the facades: a side road in an opening, else what a hedge or the street's edge leaves
  // visible.
  void paint_side_ground(const Ray& ray, float z, float wall, bool left) {
    const bool opening = scene_.sides[left ? 0 : 1].at(wall).kind == Facade::kOpening;
    const float grain = 1 + 0.16F * noise(ray.dx * z * 12, z * 12);
    set(ray, z, opening ? kRoad : kPavement, (opening ? scene_.asphalt : scene_.slabs) * grain);
  }

  bool paint_side(const Ray& ray, float z, bool left) {
    const Facade& facade = scene_.sides[left ? 0 : 1].at(z);
    const float h = canvas_.camera.height - ray.dy * z;
    const float light = left ? scene_.light.left : scene_.light.right;
    if (facade.kind == Facade::kOpening) return false;
    if (facade.kind == Facade::kHedge) {
      const float bump = noise(z * 5, h * 5);
      if (h > facade.height * (1 + 0.25F * noise(z * 8, 7))) return false;
      set(ray, z, kTree, facade.wall * (light * (0.85F + 0.45F * bump)));
      return true;
    }
    if (h > facade.height) return false;
    set(ray, z, kBuilding, facade_color(facade, z - facade.begin, h, z) * light);
    return true;
  }

  Rgb facade_color(const Facade& facade, float along, float h, float z) const {
    const float grain = 1 + 0.14F * noise(along * 9, h * 9) + 0.1F * noise(along, h * 2);
    const bool shop = h < kFloor - 0.3F;
    const float across = fraction(along / facade.window_pitch + 0.2F);
    const float up = fraction(h / kFloor);
    const bool inside =
        across < facade.window_share && up > 0.25F && up < 0.8F && h < facade.height - 0.6F;
    // Far windows are smaller than a pixel: their mean instead of a moire.
    const float sharp = std::clamp((70 - z) / 40, 0.0F, 1.0F);
    const float covered = inside ? 1.0F : 0.0F;
    const float share = covered * sharp + 0.55F * facade.window_share * (1 - sharp);
    const Rgb base = shop ? mix(facade.wall, facade.shop, 0.7F) : facade.wall;
    return mix(base * grain, facade.window, share);
  }

  void paint_end(const Ray& ray) {
    const float X = ray.dx * scene_.end;
    const float h = canvas_.camera.height - ray.dy * scene_.end;
    const float cell = std::floor(X / 9);
    const float height = 7 + 7 * noise(cell * 37, 19);
    const bool trees = noise(cell * 53, 91) > 0;
    const float top = trees ? height * (0.8F + 0.3F * noise(X * 4, 3)) : height;
    if (h < top) {
      const Rgb base =
          trees ? scene_.leaves * 0.9F
                : mix({160, 148, 134}, {120, 112, 110}, 0.5F + 0.5F * noise(cell * 11, 5));
      return set(ray, scene_.end, trees ? kTree : kBuilding,
                 base * (1 + 0.2F * noise(X * 3, h * 3)));
    }
    paint_sky(ray);
  }

  void paint_sky(const Ray& ray) {
    const float up = std::clamp(-ray.dy * 2.2F, 0.0F, 1.0F);
    const float cover = std::max(0.0F, noise(ray.dx * 60, ray.dy * 160) + 0.15F) * scene_.clouds;
    const Rgb sky =
        mix(mix(scene_.sky_low, scene_.sky_top, up), {236, 236, 238}, std::min(cover, 1.0F));
    // Haze lightens the sky a little, as it does everything far away, but never hides it.
    set(ray, StreetCanvas::kFar, kSky, sky);
  }

  const StreetScene& scene_;
  const TextureNoise noise_;
  StreetCanvas& canvas_;
};

}  // namespace

void paint_backdrop(const StreetScene& scene, StreetCanvas& canvas) {
  Backdrop backdrop(scene, canvas);
  const Camera& camera = canvas.camera;
  for (int y = 0; y < canvas.size.height; ++y) {
    for (int x = 0; x < canvas.size.width; ++x) {
      const float column = static_cast<float>(x) + 0.5F;
      const float row = static_cast<float>(y) + 0.5F;
      backdrop.trace({(column - camera.vanishing_x) / camera.focal,
                      (row - canvas.horizon_at(column)) / camera.focal, x, y});
    }
  }
}

}  // namespace lockstep
