#pragma once
// Samples in files: pairs of an image and a mask.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "data/file_pairs.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

/// Which label values a data set may hold, and what they become.
struct LabelRule {
  int num_classes = 0;
  int ignore_index = 255;
  int void_value = -1;  // a layout's own "nothing", which becomes ignore_index; -1: none
};

/// Immutable after construction, so safe from several threads.
class FileDataset final : public Dataset {
 public:
  FileDataset(std::vector<FilePair> pairs, const LabelRule& rule);

  using Dataset::load;
  std::int64_t size() const override { return static_cast<std::int64_t>(pairs_.size()); }
  void load(std::int64_t index, Sample& sample) const override;
  Size image_size(std::int64_t index) const override;
  std::string describe(std::int64_t index) const override;

 private:
  const FilePair& pair(std::int64_t index) const;
  void map_labels(const FilePair& pair, LabelMap& labels) const;
  [[noreturn]] void throw_bad_label(const FilePair& pair, const LabelMap& labels,
                                    std::size_t pixel) const;

  std::vector<FilePair> pairs_;
  LabelRule rule_;
  std::array<bool, 256> allowed_{};
  std::array<std::uint8_t, 256> mapped_{};
};

}  // namespace lockstep
