#pragma once
// Samples in files: pairs of an image and a mask.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/formats/file_names.h"
#include "data/formats/file_pairs.h"
#include "io/image_io.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

/// What the values of masks become.
struct MaskRule {
  static constexpr std::int32_t kNotAllowed = -1;

  std::vector<std::int32_t> labels;  // [value]; what lies behind the end is not allowed
  std::map<Color, Label> colors;     // of masks in RGB; empty: they are not allowed
  std::string expected;              // in words, for messages: "a class in 0..10"
  bool black_and_white = false;      // 0 and 255 are the classes

  void set(int value, int label);
  std::int32_t label_of(Label value) const {
    return value < labels.size() ? labels[value] : kNotAllowed;
  }
};

/// Values are classes and ignore_index, or black and white (mask_values), colours those of
/// `palette` and `ignore_colors`. Throws ConfigError for options that contradict each other.
MaskRule mask_rule(const DataOptions& options);

/// Throws ConfigError for data.mask_values: what the masks of this layout hold is known.
void check_own_masks(const DataOptions& options);

/// What the configuration calls the split.
const std::string& split_name(const DataOptions& options, Split split);

/// Immutable after construction but for what it learns of its files, so safe from several threads.
class FileDataset final : public Dataset {
 public:
  FileDataset(FoundPairs found, MaskRule rule, const DataOptions& options);

  using Dataset::load;
  std::int64_t size() const override { return static_cast<std::int64_t>(names_.size() / 2); }
  void load(std::int64_t index, Sample& sample) const override;
  bool load_part(std::int64_t index, const ImagePart& part, Sample& sample) const override;
  Size image_size(std::int64_t index) const override;
  PixelType pixel_type(std::int64_t index) const override;
  std::string describe(std::int64_t index) const override;
  std::vector<std::string> files(std::int64_t index) const override;
  std::vector<std::string> left_out() const override { return left_out_; }

 private:
  /// What a part of a sample is in the whole one.
  enum class Parts : std::uint8_t {
    kUnknown,
    kAsRead,
    kFloats,  // whatever it holds, for the image has values that are not there
    kNone,    // the image and its mask do not fit
  };

  FilePair pair(std::int64_t index) const;
  void read(const FilePair& files, const std::optional<ImagePart>& part, Sample& sample) const;
  Parts find_parts(const FilePair& files) const;
  Size stored_size(const std::string& image) const;
  void map_values(const FilePair& pair, LabelMap& labels) const;
  void map_colors(const FilePair& pair, const Image& colored, LabelMap& labels) const;
  [[noreturn]] void throw_bad_value(const FilePair& pair, const LabelMap& labels,
                                    std::size_t pixel) const;

  FileNames names_;  // of each image, and of its mask
  std::vector<std::string> left_out_;
  MaskRule rule_;
  ImageRule image_rule_;
  LabelRule label_rule_;
  mutable std::vector<std::atomic<Parts>> parts_;  // [sample]
};

}  // namespace lockstep
