#include "data/changed_datasets.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "data/for_each_sample.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"

namespace lockstep {

namespace fs = std::filesystem;

namespace {

/// Some samples of another data set, or all, after a call of `change` each.
class ChangedSamples final : public Dataset {
 public:
  using Change = std::function<void(std::int64_t index, Sample& sample)>;

  ChangedSamples(std::unique_ptr<Dataset> all, std::vector<std::int64_t> indices,
                 std::vector<std::string> skipped)
      : all_(std::move(all)), indices_(std::move(indices)), skipped_(std::move(skipped)) {}
  ChangedSamples(std::unique_ptr<Dataset> all, Change change)
      : all_(std::move(all)), skipped_(all_->skipped()), change_(std::move(change)) {}

  using Dataset::load;
  std::int64_t size() const override {
    return change_ ? all_->size() : static_cast<std::int64_t>(indices_.size());
  }
  void load(std::int64_t index, Sample& sample) const override {
    all_->load(in_all(index), sample);
    if (change_) change_(index, sample);
  }
  bool load_part(std::int64_t index, const ImagePart& part, Sample& sample) const override {
    if (!all_->load_part(in_all(index), part, sample)) return false;
    if (change_) change_(index, sample);
    return true;
  }
  Size image_size(std::int64_t index) const override { return all_->image_size(in_all(index)); }
  PixelType pixel_type(std::int64_t index) const override {
    return all_->pixel_type(in_all(index));
  }
  std::string describe(std::int64_t index) const override { return all_->describe(in_all(index)); }
  std::vector<std::string> files(std::int64_t index) const override {
    return all_->files(in_all(index));
  }
  std::vector<std::string> skipped() const override { return skipped_; }
  std::vector<std::string> left_out() const override { return all_->left_out(); }

 private:
  std::int64_t in_all(std::int64_t index) const {
    if (change_) return index;
    LOCKSTEP_CHECK(index >= 0 && index < size(), "sample ", index, " of a data set of ", size());
    return indices_[static_cast<std::size_t>(index)];
  }

  std::unique_ptr<Dataset> all_;
  std::vector<std::int64_t> indices_;  // of those that there are where nothing is changed
  std::vector<std::string> skipped_;
  Change change_;
};

/// What a sample is called below the data set's root, the same on every machine.
std::string name_below(const fs::path& root, const std::string& description) {
  return fs::path(description)
      .lexically_normal()
      .lexically_relative(root.lexically_normal())
      .generic_string();
}

}  // namespace

std::unique_ptr<Dataset> leave_out_broken(std::unique_ptr<Dataset> dataset, int workers) {
  std::vector<std::string> trouble(static_cast<std::size_t>(dataset->size()));
  LongWork work("looking for broken samples", "samples", dataset->size());
  for_each_sample(*dataset, workers,
                  [&](std::int64_t index, const Sample*, const DataError* error) {
                    if (error != nullptr) trouble[static_cast<std::size_t>(index)] = error->what();
                    work.advance();
                  });
  std::vector<std::int64_t> whole;
  std::vector<std::string> skipped;
  for (std::int64_t i = 0; i < dataset->size(); ++i) {
    std::string& text = trouble[static_cast<std::size_t>(i)];
    if (text.empty()) {
      whole.push_back(i);
    } else {
      skipped.push_back(std::move(text));
    }
  }
  if (whole.empty()) {
    throw DataError(concat("none of ", dataset->size(), " samples can be read; the first: ",
                           skipped.empty() ? "there is none" : skipped.front()));
  }
  return std::make_unique<ChangedSamples>(std::move(dataset), std::move(whole), std::move(skipped));
}

std::unique_ptr<Dataset> share_of(std::unique_ptr<Dataset> dataset, const fs::path& root,
                                  float val_share, Split split) {
  const std::int64_t size = dataset->size();
  if (size < 2) {
    throw DataError(
        concat("data.val_share divides the samples of the training split, but there is ", "only ",
               size, " in ", root.string()));
  }
  std::vector<std::pair<std::uint64_t, std::int64_t>> order;
  for (std::int64_t i = 0; i < size; ++i) {
    const std::string name = name_below(root, dataset->describe(i));
    order.emplace_back(XXH3_64bits(name.data(), name.size()), i);
  }
  std::sort(order.begin(), order.end());
  const std::int64_t wanted =
      std::llround(static_cast<double>(val_share) * static_cast<double>(size));
  const auto cut = order.begin() + std::clamp<std::int64_t>(wanted, 1, size - 1);
  std::vector<std::int64_t> indices;
  const bool val = split == Split::kVal;
  std::transform(val ? order.begin() : cut, val ? cut : order.end(), std::back_inserter(indices),
                 [](const auto& place) { return place.second; });
  std::sort(indices.begin(), indices.end());
  return std::make_unique<ChangedSamples>(std::move(dataset), std::move(indices),
                                          std::vector<std::string>{});
}

namespace {

/// What is not as it says; empty: nothing.
std::string contradiction(const Sample& sample, Task task) {
  const Image& image = sample.image;
  const LabelMap& labels = sample.labels;
  const Size size{image.height, image.width};
  const bool segments = task == Task::kSegmentation;
  const Size expected = segments ? size : Size{1, 1};
  const auto values = with_values(image, [](const auto& all) { return all.size(); });
  const auto elements = [](const Size& of) { return std::int64_t{of.height} * of.width; };
  if (size.height < 1 || size.width < 1 || image.channels < 1 ||
      static_cast<std::int64_t>(values) != elements(size) * image.channels) {
    return concat("an image of ", to_string(size), " in ", image.channels, " channels has ", values,
                  " values");
  }
  if (Size{labels.height, labels.width} != expected ||
      static_cast<std::int64_t>(labels.pixels.size()) != elements(expected)) {
    return concat("expected ", to_string(expected), segments ? " labels, as the image" : " label",
                  ", got ", labels.pixels.size(), " as ",
                  to_string(Size{labels.height, labels.width}));
  }
  return {};
}

}  // namespace

std::unique_ptr<Dataset> relabelled(std::unique_ptr<Dataset> dataset, Label from, Label to) {
  return std::make_unique<ChangedSamples>(
      std::move(dataset), [from, to](std::int64_t, Sample& sample) {
        std::replace(sample.labels.pixels.begin(), sample.labels.pixels.end(), from, to);
      });
}

std::unique_ptr<Dataset> whole_samples(std::unique_ptr<Dataset> dataset, Task task) {
  const Dataset& all = *dataset;
  return std::make_unique<ChangedSamples>(
      std::move(dataset), [&all, task](std::int64_t index, Sample& sample) {
        if (const std::string text = contradiction(sample, task); !text.empty())
          throw DataError(concat(all.describe(index), ": ", text));
      });
}

}  // namespace lockstep
