#include "data/procedural/streets.h"

#include <array>
#include <cstdio>

#include "data/procedural/generated.h"
#include "data/procedural/street_scene.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw DataError(concat(path.string(), ": cannot be created: ", error.message()));
}

void write_split(const std::filesystem::path& root, const std::string& name,
                 const Dataset& dataset) {
  const std::filesystem::path images = root / "images" / name;
  const std::filesystem::path masks = root / "masks" / name;
  make_folder(images);
  make_folder(masks);
  Sample sample;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    std::array<char, 32> file{};
    std::snprintf(file.data(), file.size(), "%05lld.png", static_cast<long long>(i));
    dataset.load(i, sample);
    write_png(images / file.data(), sample.image);
    write_png(masks / file.data(), sample.labels);
  }
}

}  // namespace

void draw_street(Size size, int ignore_index, Split split, std::uint64_t seed, std::int64_t index,
                 Sample& sample) {
  LOCKSTEP_CHECK(size.height >= kMinGeneratedExtent && size.width >= kMinGeneratedExtent,
                 "a street of ", to_string(size));
  const std::size_t pixels =
      static_cast<std::size_t>(size.height) * static_cast<std::size_t>(size.width);
  sample.image.height = sample.labels.height = size.height;
  sample.image.width = sample.labels.width = size.width;
  sample.image.pixels.resize(pixels * 3);
  sample.labels.pixels.resize(pixels);
  Rng rng(seed, RngPurpose::kSynthetic, static_cast<std::uint64_t>(index),
          static_cast<std::uint32_t>(split));
  const StreetScene scene(rng);
  StreetCanvas canvas(size, camera_of(scene, size), sample.labels.pixels);
  paint_backdrop(scene, canvas);
  paint_objects(scene, rng, ignore_index, canvas);
  develop(scene, canvas, sample.image.pixels);
}

std::unique_ptr<Dataset> make_streets(const DataOptions& options, Split split, std::uint64_t seed) {
  const auto draw = [size = options.size, ignore_index = options.ignore_index, split, seed](
                        std::int64_t index, Sample& sample) {
    draw_street(size, ignore_index, split, seed, index, sample);
  };
  return make_generated(options, split, "street", kStreetClasses, draw);
}

void write_streets(const std::filesystem::path& root, const DataOptions& options,
                   std::uint64_t seed) {
  write_split(root, options.train, *make_streets(options, Split::kTrain, seed));
  write_split(root, options.val, *make_streets(options, Split::kVal, seed));
}

}  // namespace lockstep
