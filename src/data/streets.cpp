#include "data/streets.h"

#include <array>
#include <cstdio>

#include "data/image_io.h"
#include "data/street_scene.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr int kMinExtent = 16;

const char* name_of(Split split) { return split == Split::kTrain ? "train" : "val"; }

class StreetDataset final : public Dataset {
 public:
  StreetDataset(Size image_size, int ignore_index, Split split, std::int64_t count,
                std::uint64_t seed)
      : size_(image_size), ignore_index_(ignore_index), split_(split), count_(count), seed_(seed) {}

  std::int64_t size() const override { return count_; }
  void load(std::int64_t index, Sample& sample) const override {
    draw_street(size_, ignore_index_, split_, seed_, index, sample);
  }
  Size image_size(std::int64_t) const override { return size_; }
  std::string describe(std::int64_t index) const override {
    return concat("street ", name_of(split_), "/", index);
  }

 private:
  Size size_;
  int ignore_index_;
  Split split_;
  std::int64_t count_;
  std::uint64_t seed_;
};

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
  LOCKSTEP_CHECK(size.height >= kMinExtent && size.width >= kMinExtent, "a street of ", size.height,
                 "x", size.width);
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
  if (options.num_classes != 0 && options.num_classes != kStreetClasses) {
    throw ConfigError(concat("data.num_classes = ", options.num_classes,
                             ": layout \"streets\" has ", kStreetClasses, " classes"));
  }
  if (options.size.height < kMinExtent || options.size.width < kMinExtent) {
    throw ConfigError(concat("data.size = [", options.size.height, ", ", options.size.width,
                             "]: expected [height, width] of at least ", kMinExtent));
  }
  const int count = split == Split::kTrain ? options.train_images : options.val_images;
  if (count < 1)
    throw ConfigError(
        concat("data.", name_of(split), "_images = ", count, ": expected at least 1"));
  return std::make_unique<StreetDataset>(options.size, options.ignore_index, split, count, seed);
}

void write_streets(const std::filesystem::path& root, const DataOptions& options,
                   std::uint64_t seed) {
  write_split(root, options.train, *make_streets(options, Split::kTrain, seed));
  write_split(root, options.val, *make_streets(options, Split::kVal, seed));
}

}  // namespace lockstep
