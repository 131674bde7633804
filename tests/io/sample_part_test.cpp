// Crops of images that the cache does not hold: of the file no more is read than they need, and
// they are to the byte what they are of the whole image.

#include <doctest/doctest.h>
#include <png.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "data/fixtures.h"
#include "io/image_io.h"
#include "io/npy.h"
#include "io/tiff_fixtures.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int kClasses = 4;
constexpr Size kSizes[] = {{97, 83}, {45, 131}, {20, 70}, {33, 32}};  // one is less than a crop

struct Loads {
  std::atomic<int> wholes{0}, parts{0};
};

/// A data set that counts what is loaded of it, and knows no parts where it is told so.
class Counted final : public Dataset {
 public:
  Counted(std::unique_ptr<Dataset> dataset, bool knows_parts, Loads& loads)
      : dataset_(std::move(dataset)), knows_parts_(knows_parts), loads_(loads) {}

  using Dataset::load;
  std::int64_t size() const override { return dataset_->size(); }
  void load(std::int64_t index, Sample& sample) const override {
    ++loads_.wholes;
    dataset_->load(index, sample);
  }
  bool load_part(std::int64_t index, const ImagePart& part, Sample& sample) const override {
    if (!knows_parts_ || !dataset_->load_part(index, part, sample)) return false;
    CHECK(sample.image.height == part.size.height);
    CHECK(sample.image.width == part.size.width);
    ++loads_.parts;
    return true;
  }
  Size image_size(std::int64_t index) const override { return dataset_->image_size(index); }
  PixelType pixel_type(std::int64_t index) const override { return dataset_->pixel_type(index); }
  std::string describe(std::int64_t index) const override { return dataset_->describe(index); }

 private:
  std::unique_ptr<Dataset> dataset_;
  bool knows_parts_;
  Loads& loads_;
};

/// Batches of the folder, to their last byte.
std::string bytes_of_batches(DataOptions options, bool knows_parts, Loads& loads) {
  const LayoutTable layouts{
      {"counted", [&](const DataOptions& own, Split split, std::uint64_t seed) {
         DataOptions folder = own;
         folder.layout = "folder";
         folder.layouts = &builtin_layouts();
         return std::make_unique<Counted>(find_layout(folder).make(folder, split, seed),
                                          knows_parts, loads);
       }}};
  options.layout = "counted";
  options.layouts = &layouts;
  TrainLoader loader(options, {.batch = 3, .seed = 9});
  std::string bytes;
  const auto add = [&](const auto& values) {
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  };
  for (int i = 0; i < 8; ++i) {
    const Batch& batch = loader.next();
    add(batch.images);
    add(batch.labels);
    add(batch.class_pixels);
  }
  return bytes;
}

/// The batches are the same with and without parts; whether any were read.
bool reads_parts(const DataOptions& options) {
  Loads whole, some;
  const std::string expected = bytes_of_batches(options, false, whole);
  CHECK(whole.wholes > 0);
  CHECK(bytes_of_batches(options, true, some) == expected);
  CHECK((some.parts == 0 || some.wholes < whole.wholes));
  return some.parts > 0;
}

std::string name_of(int number, const std::string& end) { return std::to_string(number) + end; }

/// Random masks, and images as `write` writes them.
DataOptions folder_of(const TempFolder& folder, const std::string& end, int channels,
                      PixelType type,
                      const std::function<void(const fs::path&, Size, int)>& write) {
  int number = 0;
  for (const Size size : kSizes) {
    LabelMap labels = random_labels(size, kClasses + 1, static_cast<std::uint64_t>(number));
    for (Label& label : labels.pixels) label = label == kClasses ? 255 : label;
    write_png(folder.file("masks/train/" + name_of(number, ".png")), labels);
    write(folder.file("images/train/" + name_of(number, end)), size, number);
    ++number;
  }
  DataOptions options;
  options.root = folder.path();
  options.num_classes = kClasses;
  options.channels = channels;
  options.normalize = Normalization::kGiven;
  options.pixels = type;
  options.mean = {type == PixelType::kUint8 ? 0.4F : 20000.0F};
  options.std = {type == PixelType::kUint8 ? 0.3F : 15000.0F};
  options.workers = 0;
  options.cache_mb = 0;
  options.crops_per_image = 3;
  options.augment = AugmentOptions{.crop = Size{32, 32},
                                   .scale_lo = 0.5F,
                                   .scale_hi = 2,
                                   .hflip = 0.5F,
                                   .vflip = 0.5F,
                                   .rotate90 = true,
                                   .gain = {0.8F, 1.2F},
                                   .noise = 0.1F};
  return options;
}

DataOptions tiff_folder(const TempFolder& folder, const TiffLayout& layout, int channels = 3) {
  return folder_of(folder, ".tif", channels, PixelType::kUint16,
                   [&](const fs::path& path, Size size, int) {
                     write_tiff(path, size, static_cast<std::uint16_t>(channels), layout);
                   });
}

std::vector<std::vector<std::uint8_t>> random_rows(Size size, std::size_t pixel_bytes, int seed) {
  const Image image = random_image(size, static_cast<std::uint64_t>(seed));
  std::vector<std::vector<std::uint8_t>> rows;
  const std::size_t row = static_cast<std::size_t>(size.width) * pixel_bytes;
  for (auto at = image.pixels.begin(); rows.size() < static_cast<std::size_t>(size.height);
       at += static_cast<std::ptrdiff_t>(row))
    rows.emplace_back(at, at + static_cast<std::ptrdiff_t>(row));
  return rows;
}

DataOptions png_folder(const TempFolder& folder, const PngKind& kind) {
  const bool gray = kind.color_type == PNG_COLOR_TYPE_GRAY;
  const std::size_t bytes = gray ? 2 : 3;
  return folder_of(folder, ".png", gray ? 1 : 3,
                   kind.bit_depth == 16 ? PixelType::kUint16 : PixelType::kUint8,
                   [&](const fs::path& path, Size size, int number) {
                     write_png_file(path, kind, size, random_rows(size, bytes, number));
                   });
}

}  // namespace

TEST_CASE("crops of parts of TIFFs are those of the whole images") {
  for (const TiffLayout& layout :
       {TiffLayout{"tiles", 16}, TiffLayout{"planar tiles", 32, 1, PLANARCONFIG_SEPARATE},
        TiffLayout{"strips", 0, 7}, TiffLayout{"one strip", 0, 131},
        TiffLayout{"as they are", 0, 5, PLANARCONFIG_SEPARATE, COMPRESSION_NONE}}) {
    CAPTURE(layout.name);
    const TempFolder folder;
    DataOptions options = tiff_folder(folder, layout, 4);
    CHECK(reads_parts(options));
    options.bands = {3, 0, 1, 1};
    options.workers = 3;
    CHECK(reads_parts(options));
  }
}

TEST_CASE("crops of parts of PNGs and JPEGs are those of the whole images") {
  for (const PngKind& kind : {PngKind{PNG_COLOR_TYPE_RGB, 8}, PngKind{PNG_COLOR_TYPE_GRAY, 16},
                              PngKind{PNG_COLOR_TYPE_RGB, 8, true}}) {
    const TempFolder folder;
    DataOptions options = png_folder(folder, kind);
    CHECK(reads_parts(options));
    options.augment->scale_lo = options.augment->scale_hi = 1;
    options.augment->crop_area = {0.1F, 0.6F};
    options.augment->photometric = kind.bit_depth == 8;
    CHECK(reads_parts(options));
  }
  const TempFolder folder;
  CHECK(reads_parts(folder_of(
      folder, ".jpg", 3, PixelType::kUint8, [](const fs::path& path, Size size, int number) {
        write_jpeg_file(path, random_image(size, static_cast<std::uint64_t>(number)));
      })));
}

TEST_CASE("crops of parts of arrays are those of the whole images") {
  for (const bool channels_first : {false, true}) {
    const TempFolder folder;
    DataOptions options = folder_of(
        folder, ".npy", 2, PixelType::kFloat32, [&](const fs::path& path, Size size, int) {
          std::vector<float> values(static_cast<std::size_t>(size.height * size.width * 2));
          for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = i % 97 < 4 ? std::nanf("") : static_cast<float>((i * 7919) % 40000);
          if (channels_first) return write_npy(path, {2, size.height, size.width}, values);
          write_npy(path, {size.height, size.width, 2}, values);
        });
    CHECK(reads_parts(options));
  }
}

TEST_CASE("crops of parts of images in several files are those of the whole images") {
  const TempFolder folder;
  DataOptions options = folder_of(folder, "_red.tif", 2, PixelType::kUint16,
                                  [&](const fs::path& path, Size size, int) {
                                    write_tiff(path, size, 1, {"tiles", 16});
                                    std::string other = path.string();
                                    other.replace(other.rfind("_red"), 4, "_nir");
                                    write_tiff(other, size, 1, {.name = "strips", .nodata = "9"});
                                  });
  options.channel_files = {"_red", "_nir"};
  CHECK(reads_parts(options));
}

TEST_CASE("a value that is not there is missed by parts as by the whole image") {
  for (const bool says_so_itself : {true, false}) {
    const TempFolder folder;
    DataOptions options = folder_of(
        folder, ".tif", 2, PixelType::kUint16, [&](const fs::path& path, Size size, int number) {
          const TiffLayout layout{.name = "", .tile = 16, .nodata = says_so_itself ? "7" : nullptr};
          // Of the first image a corner, of the second nothing, of the third an edge is missing.
          const auto border = static_cast<std::uint32_t>(number == 0 ? 9 : number == 2 ? 3 : 0);
          write_tiff(path, size, 2, layout,
                     [&](std::uint32_t y, std::uint32_t x, std::uint16_t c) -> std::uint16_t {
                       if (x < border && (number == 2 || y < border)) return 7;
                       return std::max<std::uint16_t>(sample_of(y, x, c), 8);
                     });
        });
    if (!says_so_itself) options.nodata = 7;
    CHECK(reads_parts(options));
  }
}

TEST_CASE("parts of masks are read with those of images") {
  const TempFolder folder;
  DataOptions options = tiff_folder(folder, {"tiles", 16});
  SUBCASE("in colours") {
    options.palette = {"#000000", "#ff0000", "#00ff00", "#0000ff"};
    options.ignore_colors = {"#ffffff"};
    const std::vector<Color> colors{
        {0, 0, 0}, {255, 0, 0}, {0, 255, 0}, {0, 0, 255}, {255, 255, 255}};
    for (int i = 0; i < 4; ++i) {
      const LabelMap labels = random_labels(kSizes[i], 5, 1);
      write_png(folder.file("masks/train/" + name_of(i, ".png")), paint(labels, colors));
    }
  }
  SUBCASE("as TIFF") {
    for (int i = 0; i < 4; ++i) {
      fs::remove(folder.file("masks/train/" + name_of(i, ".png")));
      write_tiff(folder.file("masks/train/" + name_of(i, ".tif")), kSizes[i], 1, {"tiles", 32},
                 [](std::uint32_t y, std::uint32_t x, std::uint16_t) {
                   return static_cast<std::uint16_t>((y / 3 + x / 5) % kClasses);
                 });
    }
  }
  SUBCASE("as objects") {
    options.num_classes = 2;
    options.mask_values = MaskValues::kInstances;
  }
  CHECK(reads_parts(options));
}

TEST_CASE("data sets that are others with a change know parts") {
  const TempFolder folder;
  DataOptions options = tiff_folder(folder, {"strips", 0, 7});
  options.cache_mb = 512;
  Loads kept, parts;
  for (int i = 0; i < 4; ++i)  // none is 255
    write_png(folder.file("masks/train/" + name_of(i, ".png")), random_labels(kSizes[i], 3, 1));
  options.ignore_index = 1;
  options.skip_broken = true;
  options.val_share = 0.25F;
  const std::string expected = bytes_of_batches(options, true, kept);
  CHECK(kept.parts == 0);
  options.cache_mb = 0;
  CHECK(bytes_of_batches(options, true, parts) == expected);
  CHECK(parts.parts > 0);
}

TEST_CASE("where the whole image is needed it is read") {
  const TempFolder folder;
  const DataOptions plain = tiff_folder(folder, {"tiles", 16});
  CHECK(reads_parts(plain));
  DataOptions options = plain;
  options.augment->class_crops = 0.5F;
  CHECK_FALSE(reads_parts(options));
  options = plain;
  options.resize = Size{50, 60};
  CHECK_FALSE(reads_parts(options));
  for (const Normalization normalize : {Normalization::kImage, Normalization::kPercentile}) {
    options = plain;
    options.normalize = normalize;
    CHECK_FALSE(reads_parts(options));
  }
}

TEST_CASE("images are kept whole while the budget lasts") {
  const TempFolder folder;
  DataOptions options = tiff_folder(folder, {"tiles", 16});
  options.cache_mb = 1;
  Loads kept, some;
  bytes_of_batches(options, true, kept);
  CHECK(kept.parts == 0);
  CHECK(kept.wholes == 4);
  write_tiff(folder.file("images/train/0.tif"), {400, 500}, 3, {"tiles", 16});  // 1.6 MB
  write_png(folder.file("masks/train/0.png"), random_labels({400, 500}, kClasses, 1));
  bytes_of_batches(options, true, some);
  CHECK(some.parts == 6);
  CHECK(some.wholes == 3);
}

TEST_CASE("what is wrong with a sample the whole one says") {
  const TempFolder folder;
  DataOptions options = tiff_folder(folder, {"tiles", 16});
  const auto trouble = [&] {
    Loads loads;
    return message_of<DataError>([&] { bytes_of_batches(options, true, loads); });
  };
  LabelMap labels = random_labels(kSizes[3], kClasses, 1);
  labels.pixels[20 * 32 + 16] = 77;
  write_png(folder.file("masks/train/3.png"), labels);
  CHECK(contains(trouble(), "label 77 at row 20, column 16"));
  write_png(folder.file("masks/train/3.png"), random_labels({60, 60}, kClasses, 1));
  CHECK(contains(trouble(), "expected the image's size 33x32"));
}

}  // namespace lockstep
