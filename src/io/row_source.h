#pragma once
// Images that need not be in memory at once: read by bands of rows, and written by rows.

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "io/image_io.h"
#include "lockstep/io/image.h"

namespace lockstep {

/// An image whose rows are read when they are asked for, quickest from the top. Used by one thread.
class RowSource {
 public:
  virtual ~RowSource() = default;
  RowSource(const RowSource&) = delete;
  RowSource& operator=(const RowSource&) = delete;

  Size size() const { return size_; }
  /// How many rows, from a multiple of it on, are decoded together.
  virtual int step() const { return 1; }
  /// Rows [first, first + count), as read_image gives them in the whole. Throws DataError.
  void read(int first, int count, Image& rows);

 protected:
  /// `channels`: those that are taken of the file's; `nodata`: what `decode` has not marked yet.
  RowSource(Size size, std::vector<int> channels, std::optional<double> nodata)
      : size_(size), channels_(std::move(channels)), nodata_(nodata) {}

 private:
  /// All channels of the file.
  virtual void decode(int first, int count, Image& rows) = 0;
  bool misses_some();

  Size size_;
  std::vector<int> channels_;
  std::optional<double> nodata_;
  std::optional<bool> misses_some_;  // anywhere in the image, which is floats then
};

/// The image of a file, or of several (ImageRule::channel_files). TIFF and .npy are read as they
/// are asked for; others, those that are turned, and TIFF in a few large pieces at once. Throws
/// DataError.
std::unique_ptr<RowSource> open_rows(const std::filesystem::path& path, const ImageRule& rule);

/// Of an image in memory, which outlives it.
std::unique_ptr<RowSource> rows_of(const Image& image);

/// Calls `use` for parts of an image from the top. Each call is a pass over it.
using ImageBands = std::function<void(const std::function<void(const Image& band)>& use)>;
ImageBands bands_of(const Image& image);
ImageBands bands_of(RowSource& source);

/// The rows of an image that are held while windows of them are taken. It moves down.
class RowBand {
 public:
  /// Holds at most `rows` and a step of the source, which outlives it.
  RowBand(RowSource& source, int rows) : source_(source), most_(rows) {}

  /// Holds rows [first, end) and maybe more. REQUIRES: `first` does not move up.
  void hold(int first, int end);
  /// The row of the image that the band begins with.
  int first() const { return first_; }
  const Image& rows() const { return rows_; }

 private:
  void drop(int count);
  void append(int count);

  RowSource& source_;
  int most_;
  int first_ = 0;
  Image rows_, more_;
};

}  // namespace lockstep
