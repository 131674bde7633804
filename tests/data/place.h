#pragma once
// A data set of six small images in files, and a configuration to train on it.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "data/fixtures.h"
#include "io/image_io.h"
#include "lockstep/core/check.h"

namespace lockstep::test {

inline constexpr const char* kSmall = R"(
[run]
max_iters = 4
stall_timeout = 20
[data]
layout = "folder"
root = "."
num_classes = 3
cache_mb = 0
[batch]
global = 2
[model]
width = 4
depth = 2
[optim]
lr = 0.01
)";

/// Four images to train on and two to validate on, and room for a run.
class Place {
 public:
  explicit Place(std::string text = kSmall) : text_(std::move(text)) {
    for (int i = 0; i < 4; ++i) write(file("train", i), i);
    for (int i = 0; i < 2; ++i) write(file("val", i), 10 + i);
  }

  static std::string file(const std::string& split, int number) {
    return split + "/" + std::to_string(number) + ".png";
  }
  std::filesystem::path path(const std::string& name) const { return folder_.file(name); }
  /// Of [size, size], with classes 0, 1 and 2.
  void write(const std::string& name, int seed, int size = 16) const {
    image(name, {size, size}, seed);
    mask(name, {size, size}, {0, 1, 2});
  }
  void image(const std::string& name, Size size, int seed) const {
    write_png(path("images/" + name), random_image(size, static_cast<std::uint64_t>(seed)));
  }
  /// The values in turns.
  LabelMap labels(Size size, const std::vector<Label>& values) const {
    LabelMap map{size.height, size.width, {}};
    for (int i = 0; i < size.height * size.width; ++i)
      map.pixels.push_back(values[static_cast<std::size_t>(i) % values.size()]);
    return map;
  }
  void mask(const std::string& name, Size size, const std::vector<Label>& values) const {
    write_png(path("masks/" + name), labels(size, values));
  }
  void every_mask(const std::vector<Label>& values) const {
    for (int i = 0; i < 4; ++i) mask(file("train", i), {16, 16}, values);
    for (int i = 0; i < 2; ++i) mask(file("val", i), {16, 16}, values);
  }
  void every_size(int size) const {
    for (int i = 0; i < 4; ++i) write(file("train", i), i, size);
    for (int i = 0; i < 2; ++i) write(file("val", i), 10 + i, size);
  }
  void tear(const std::string& name) const {
    write_file(path("images/" + name), std::string("torn"));
  }
  void list(const std::string& split, const std::vector<std::string>& names) const {
    std::string text;
    for (const std::string& name : names) text += "images/" + name + " masks/" + name + "\n";
    write_file(path(split + ".txt"), text);
  }
  /// Of 16 bits, every value `high` times 256 and a little.
  void deep(const std::string& name, std::uint8_t high) const {
    const std::vector<std::uint8_t> row = [&] {
      std::vector<std::uint8_t> bytes;
      for (int x = 0; x < 16; ++x) bytes.insert(bytes.end(), {high, static_cast<std::uint8_t>(x)});
      return bytes;
    }();
    write_png_file(path("images/" + name), {.color_type = 0, .bit_depth = 16}, {16, 16},
                   std::vector<std::vector<std::uint8_t>>(16, row));
  }

  /// The configuration file.
  std::filesystem::path config() const {
    write_file(path("c.toml"), text_);
    return path("c.toml");
  }
  Config load(const std::vector<std::string>& overrides = {},
              std::vector<std::string>* warnings = nullptr) const {
    std::vector<std::string> all{"data.root=" + folder_.path().string()};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return load_config(config(), all, warnings);
  }

 private:
  std::string text_;
  TempFolder folder_;
};

}  // namespace lockstep::test
