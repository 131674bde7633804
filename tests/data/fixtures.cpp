#include "data/fixtures.h"

#include <png.h>
#include <turbojpeg.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "core/rng.h"
#include "lockstep/core/check.h"

namespace lockstep {

namespace fs = std::filesystem;

TempFolder::TempFolder() {
  static std::atomic<int> count{0};
  path_ = fs::temp_directory_path() / concat("lockstep_data_", getpid(), "_", count++);
  fs::create_directories(path_);
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path TempFolder::file(const std::string& name) const {
  const fs::path path = path_ / name;
  fs::create_directories(path.parent_path());
  return path;
}

void write_png_file(const fs::path& path, const PngKind& kind, Size size,
                    const std::vector<std::vector<std::uint8_t>>& rows) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  LOCKSTEP_CHECK(file != nullptr, "cannot write ", path.string());
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_init_io(png, file);
  png_set_IHDR(png, info, static_cast<png_uint_32>(size.width),
               static_cast<png_uint_32>(size.height), kind.bit_depth, kind.color_type,
               kind.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_color> palette;
  for (int i = 0; i < 1 << kind.bit_depth && kind.color_type == PNG_COLOR_TYPE_PALETTE; ++i) {
    palette.push_back(
        {static_cast<png_byte>(i), static_cast<png_byte>(2 * i), static_cast<png_byte>(255 - i)});
  }
  if (!palette.empty()) png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  std::vector<png_bytep> pointers;
  for (const auto& row : rows) pointers.push_back(const_cast<png_bytep>(row.data()));
  png_set_rows(png, info, pointers.data());
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&png, &info);
  std::fclose(file);
}

void write_jpeg_file(const fs::path& path, const Image& image, int quality) {
  tjhandle compressor = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long count = 0;
  tjCompress2(compressor, image.pixels.data(), image.width, 0, image.height, TJPF_RGB, &bytes,
              &count, TJSAMP_444, quality, 0);
  write_file(path, std::vector<std::uint8_t>(bytes, bytes + count));
  tjFree(bytes);
  tjDestroy(compressor);
}

std::vector<std::uint8_t> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, const std::vector<std::uint8_t>& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

void write_file(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

Image random_image(Size size, std::uint64_t seed) {
  Rng rng(seed, RngPurpose::kTest, 1);
  Image image{size.height, size.width, {}};
  image.pixels.resize(static_cast<std::size_t>(size.height * size.width * 3));
  for (std::uint8_t& value : image.pixels) value = static_cast<std::uint8_t>(rng.below(256));
  return image;
}

LabelMap random_labels(Size size, int num_classes, std::uint64_t seed) {
  Rng rng(seed, RngPurpose::kTest, 2);
  LabelMap labels{size.height, size.width, {}};
  labels.pixels.resize(static_cast<std::size_t>(size.height * size.width));
  for (Label& value : labels.pixels) {
    value = static_cast<Label>(rng.below(static_cast<std::uint32_t>(num_classes)));
  }
  return labels;
}

std::string loading_failure(const DataOptions& options) {
  return message_of<DataError>([&] { make_dataset(options, Split::kTrain, 0)->load(0); });
}

}  // namespace lockstep
