#pragma once
// The samples of a split as the loaders want them: decoded, by their own numbers normalised where
// that is asked for, resized, cropped, exposed; kept in
// memory within a budget, because decoding a photograph costs more than everything that happens to
// it later. What is not kept is decoded again each time, and no more of it than a crop needs: the
// budget changes speed, never a value.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/resize.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

/// Throws ConfigError where something is to be made of colours in 0..255, and there are none.
void check_colors(const DataOptions& options);

/// Memory of one thread that fetches samples.
struct SampleScratch {
  Sample decoded, resized;
  Resizer resizer;
};

/// Safe from several threads, each with its own scratch.
class SampleStore {
 public:
  SampleStore(const DataOptions& options, Split split, std::uint64_t seed);

  const Dataset& dataset() const { return *dataset_; }
  std::int64_t size() const { return dataset_->size(); }
  std::string describe(std::int64_t index) const { return dataset_->describe(index); }
  /// Size of sample `index` as `fetch` gives it; reads a header at most.
  Size image_size(std::int64_t index) const;
  /// Adds the labels of sample `index` that count to `counts` [classes]. Throws DataError for one
  /// that is neither a class nor ignored, which no layout of the library's own gives.
  void count_labels(std::int64_t index, std::span<const Label> labels,
                    std::span<std::int64_t> counts) const;
  /// What the samples' labels are of.
  Task task() const { return task_; }
  /// The sample, in the store or in `scratch`: valid until the scratch is used again.
  const Sample& fetch(std::int64_t index, SampleScratch& scratch) const;
  /// The same, or at least the part that `needed` says of an image of this size.
  using NeededPart = std::function<ImagePart(Size image)>;
  SamplePart fetch_part(std::int64_t index, const NeededPart& needed, SampleScratch& scratch) const;

 private:
  /// Loads no more than what is needed of what will not be kept; of what, or nothing.
  std::optional<Whole> load_part(std::int64_t index, const NeededPart& needed,
                                 Sample& sample) const;
  Sample& prepare(std::int64_t index, SampleScratch& scratch) const;
  const Sample* kept(std::int64_t index) const;
  bool fits(std::int64_t index, Size image) const;
  void keep(std::int64_t index, const Sample& sample) const;

  DataOptions options_;
  std::unique_ptr<Dataset> dataset_;
  Task task_;
  Label ignored_;
  ResizeRule resize_;
  bool parts_do_;  // where they are enough
  std::optional<ExposureOptions> exposure_;
  Split split_;
  std::uint64_t seed_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<const Sample>> kept_;  // [sample]; guarded by mutex_
  mutable std::vector<bool> too_large_;  // [sample] for the budget; guarded by mutex_
  mutable std::size_t budget_;           // bytes left; guarded by mutex_
};

}  // namespace lockstep
