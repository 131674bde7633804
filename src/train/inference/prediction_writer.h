#pragma once
// The files of a predicted image, written by rows.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "io/raw_pixels.h"
#include "io/row_writers.h"
#include "lockstep/core/check.h"
#include "train/inference/image_files.h"
#include "train/inference/inference.h"

namespace lockstep {

/// A file cannot be written, which is no fault of the image.
class CannotWrite : public Error {
 public:
  using Error::Error;
};

/// What all images of a prediction have in common.
struct PredictionLook {
  std::size_t classes = 0;
  std::vector<Color> colors = {};  // [class]
  std::vector<Label> values = {};  // [class] of a submission; empty: classes
  std::vector<int> display = {};   // data.display
  ImageRule rule = {};
};

/// Writes an image's files; without close() none of them is there. Throws CannotWrite, and
/// DataError for an image that cannot be read.
class PredictionWriter {
 public:
  /// `rows` may be read, here alone. `look` outlives it.
  PredictionWriter(const PredictionLook& look, const PredictionFiles& files,
                   const std::filesystem::path& image, RowSource& rows);
  /// The next rows.
  void write(const PredictedRows& rows);
  void close();
  /// [class] the pixels that were written, without what is not there in a map that says so.
  const std::vector<std::int64_t>& counts() const { return counts_; }

 private:
  std::unique_ptr<MapWriter> map_of(const std::filesystem::path& file,
                                    const std::filesystem::path& image, bool missing) const;
  LabelMap labels_of(const PredictedRows& rows) const;
  void write_map(const LabelMap& labels);
  void write_overlay(const PredictedRows& rows, const LabelMap& labels);

  const PredictionLook& look_;
  Size size_;
  bool says_missing_;
  std::vector<std::int64_t> counts_;
  std::optional<Picture> picture_;  // where there is an overlay
  std::unique_ptr<MapWriter> map_;
  std::optional<PictureWriter> overlay_;
  std::optional<PlanesWriter> probabilities_;
};

}  // namespace lockstep
