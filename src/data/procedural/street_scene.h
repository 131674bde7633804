#pragma once
// A street: what is random about it, and how its parts are painted. One draw of everything comes
// first, so that a scene looks alike at every size.

#include <array>

#include "core/rng.h"
#include "data/procedural/street_canvas.h"

namespace lockstep {

enum class Season : std::uint8_t { kSpring, kSummer, kAutumn, kWinter };

/// The camera's and the weather's part: what makes the statistics of an image its own.
struct StreetLight {
  Rgb tint;            // gain per channel: exposure times colour temperature
  float contrast = 1;  // around mid-gray
  float haze = 0;      // per metre
  Rgb haze_color;
  float noise = 0;            // of 255
  float left = 1, right = 1;  // brightness of the two sides of the street
  float shadow_x = -100;      // the road left of it lies in shadow
  float shadow = 1;           // brightness in the shadow
};

/// A stretch of one side of the street.
struct Facade {
  enum Kind : std::uint8_t { kHouse, kHedge, kOpening };
  Kind kind = kHouse;
  float begin = 0;   // z
  float height = 0;  // metres
  Rgb wall, window, shop;
  float window_pitch = 2.5F;
  float window_share = 0.5F;
};

/// One side, cut into stretches; looked up by distance.
class StreetSide {
 public:
  void build(Rng& rng, const Rgb& leaves);
  const Facade& at(float z) const {
    const auto cell = static_cast<std::size_t>(std::min(z, kLength - 1) / kCell);
    return facades_[of_cell_[cell]];
  }
  static constexpr float kLength = 160;

 private:
  static constexpr float kCell = 2;
  std::array<std::uint8_t, 80> of_cell_{};
  std::array<Facade, 80> facades_;
};

struct StreetScene {
  explicit StreetScene(Rng& rng);

  Season season;
  StreetLight light;
  Rgb leaves, asphalt, slabs, sky_top, sky_low;
  float clouds = 0;
  float road_left = 0, road_right = 0;  // X of the kerbs
  float wall_left = 0, wall_right = 0;  // X of the facades
  float end = 0;                        // z of what closes the street
  float texture_u = 0, texture_v = 0;   // where in the noise this scene lies
  float horizon = 0, vanishing_x = 0, focal = 0, roll = 0,
        camera_height = 0;          // relative to the size
  std::array<StreetSide, 2> sides;  // left, right
};

Camera camera_of(const StreetScene& scene, Size size);

/// Sky, ground and both sides: every pixel.
void paint_backdrop(const StreetScene& scene, StreetCanvas& canvas);
/// Trees, poles, signs, fences, cars, people, cyclists, and what belongs to no class
/// (`void_label`).
void paint_objects(const StreetScene& scene, Rng& rng, int void_label, StreetCanvas& canvas);
/// Light, haze, contrast and sensor noise, to 8 bits.
void develop(const StreetScene& scene, const StreetCanvas& canvas,
             std::vector<std::uint8_t>& pixels);

}  // namespace lockstep
