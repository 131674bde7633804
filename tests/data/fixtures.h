#pragma once
// Files for the tests of data: a folder that removes itself, and images of every kind of PNG and
// JPEG.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep {

/// A fresh folder below the system's, removed with its contents at the end of the test.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  /// `name` below the folder; its parent folders are created.
  std::filesystem::path file(const std::string& name) const;

 private:
  std::filesystem::path path_;
};

struct PngKind {
  int color_type = 0;  // PNG_COLOR_TYPE_*
  int bit_depth = 8;
  bool interlaced = false;
};

/// Writes rows of packed samples as PNG. A palette gets the colours (i, 2i, 255-i).
void write_png_file(const std::filesystem::path& path, const PngKind& kind, Size size,
                    const std::vector<std::vector<std::uint8_t>>& rows);
void write_jpeg_file(const std::filesystem::path& path, const Image& image, int quality = 95);

std::vector<std::uint8_t> read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, const std::vector<std::uint8_t>& bytes);
void write_file(const std::filesystem::path& path, const std::string& text);

/// Random colours, and random classes below `num_classes`.
Image random_image(Size size, std::uint64_t seed);
LabelMap random_labels(Size size, int num_classes, std::uint64_t seed);

/// What the exception of `Type` thrown by `call` says; "" when none is.
template <typename Type, typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Type& error) {
    return error.what();
  }
  return "";
}

/// Why the training set cannot be made, or its first sample not be loaded; "" when it can.
std::string loading_failure(const DataOptions& options);

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace lockstep
