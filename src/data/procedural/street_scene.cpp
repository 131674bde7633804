#include "data/procedural/street_scene.h"

namespace lockstep {
namespace {

Rgb jitter(Rng& rng, const Rgb& base, float amount) {
  const float level = rng.uniform(1 - amount, 1 + amount);
  return {base.r * level * rng.uniform(0.93F, 1.07F), base.g * level * rng.uniform(0.93F, 1.07F),
          base.b * level * rng.uniform(0.93F, 1.07F)};
}

Rgb wall_color(Rng& rng) {
  constexpr std::array<Rgb, 7> kWalls{{{168, 120, 92},     // brick
                                       {196, 176, 140},    // sandstone
                                       {205, 200, 190},    // plaster
                                       {150, 146, 140},    // concrete
                                       {186, 158, 108},    // ochre
                                       {128, 96, 82},      // dark brick
                                       {170, 178, 186}}};  // panels
  return jitter(rng, kWalls[rng.below(kWalls.size())], 0.2F);
}

Rgb leaf_color(Rng& rng, Season season) {
  switch (season) {
    case Season::kSpring:
      return jitter(rng, {110, 150, 62}, 0.15F);
    case Season::kSummer:
      return jitter(rng, {62, 102, 48}, 0.2F);
    case Season::kAutumn:
      return mix(jitter(rng, {176, 122, 44}, 0.2F), {146, 70, 40}, rng.uniform(0, 0.7F));
    case Season::kWinter:
      return jitter(rng, {98, 84, 74}, 0.15F);
  }
  return {};
}

void draw_sky(Rng& rng, StreetScene& scene) {
  const float kind = rng.uniform();
  if (kind < 0.45F) {  // blue
    scene.sky_top = jitter(rng, {96, 148, 214}, 0.12F);
    scene.sky_low = jitter(rng, {188, 214, 236}, 0.06F);
    scene.clouds = rng.uniform(0, 0.7F);
  } else if (kind < 0.85F) {  // overcast
    scene.sky_top = jitter(rng, {186, 192, 200}, 0.15F);
    scene.sky_low = jitter(rng, {222, 224, 226}, 0.08F);
    scene.clouds = rng.uniform(0.1F, 0.4F);
  } else {  // low sun
    scene.sky_top = jitter(rng, {120, 136, 176}, 0.12F);
    scene.sky_low = jitter(rng, {242, 190, 140}, 0.08F);
    scene.clouds = rng.uniform(0, 0.5F);
  }
}

StreetLight draw_light(Rng& rng, const Rgb& sky_low) {
  StreetLight light;
  const float exposure = std::exp(rng.uniform(std::log(0.5F), std::log(1.4F)));
  const float warmth = rng.uniform(-0.16F, 0.16F);
  light.tint = {exposure * (1 + warmth), exposure * rng.uniform(0.97F, 1.03F),
                exposure * (1 - warmth)};
  light.contrast = rng.uniform(0.65F, 1.2F);
  light.haze = rng.uniform() < 0.4F ? rng.uniform(0.005F, 0.02F) : rng.uniform(0.0005F, 0.005F);
  light.haze_color = mix(sky_low, {210, 212, 216}, rng.uniform());
  light.noise = rng.uniform(1, 6);
  const bool sunny = rng.uniform() < 0.5F;
  const float dark = sunny ? rng.uniform(0.5F, 0.75F) : rng.uniform(0.85F, 1);
  (rng.uniform() < 0.5F ? light.left : light.right) = dark;
  light.shadow_x = sunny ? rng.uniform(-6, 6) : -100;
  light.shadow = sunny ? rng.uniform(0.45F, 0.7F) : 1;
  return light;
}

}  // namespace

void StreetSide::build(Rng& rng, const Rgb& leaves) {
  std::size_t facade = 0;
  float end = 0;
  for (std::size_t cell = 0; cell < of_cell_.size(); ++cell) {
    const float z = static_cast<float>(cell) * kCell;
    if (cell == 0 || z >= end) {
      if (cell > 0) ++facade;
      Facade& next = facades_[facade];
      const float kind = rng.uniform();
      next.kind = kind < 0.72F ? Facade::kHouse : kind < 0.88F ? Facade::kHedge : Facade::kOpening;
      next.begin = z;
      next.height = next.kind == Facade::kHouse ? rng.uniform(4.5F, 16) : rng.uniform(1.2F, 6);
      next.wall = next.kind == Facade::kHedge ? jitter(rng, leaves, 0.2F) : wall_color(rng);
      next.window = jitter(rng, rng.uniform() < 0.8F ? Rgb{62, 70, 82} : Rgb{200, 190, 150}, 0.25F);
      next.shop = jitter(rng, {110, 96, 100}, 0.5F);
      next.window_pitch = rng.uniform(1.8F, 3.6F);
      next.window_share = rng.uniform(0.35F, 0.65F);
      end = z + rng.uniform(6, 24);
    }
    of_cell_[cell] = static_cast<std::uint8_t>(facade);
  }
}

StreetScene::StreetScene(Rng& rng) : season(static_cast<Season>(rng.below(4))) {
  leaves = leaf_color(rng, season);
  draw_sky(rng, *this);
  light = draw_light(rng, sky_low);
  asphalt = jitter(rng, {104, 104, 108}, 0.25F);
  slabs = mix(jitter(rng, {142, 138, 132}, 0.2F), {156, 124, 108}, rng.uniform(0, 0.6F));
  road_left = -rng.uniform(2.2F, 5.5F);
  road_right = rng.uniform(2.2F, 5);
  wall_left = road_left - rng.uniform(1.5F, 5);
  wall_right = road_right + rng.uniform(1.5F, 5);
  end = rng.uniform(45, 150);
  texture_u = rng.uniform(0, 256);
  texture_v = rng.uniform(0, 256);
  horizon = rng.uniform(0.36F, 0.5F);
  vanishing_x = rng.uniform(0.32F, 0.68F);
  focal = rng.uniform(0.75F, 1.15F);
  roll = rng.uniform(-0.025F, 0.025F);
  camera_height = rng.uniform(1.25F, 1.8F);
  for (StreetSide& side : sides) side.build(rng, leaves);
}

Camera camera_of(const StreetScene& scene, Size size) {
  const auto height = static_cast<float>(size.height);
  const auto width = static_cast<float>(size.width);
  return {scene.horizon * height, scene.roll, scene.vanishing_x * width, scene.focal * width,
          scene.camera_height};
}

}  // namespace lockstep
