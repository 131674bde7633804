#include "data/changed_datasets.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "data/for_each_sample.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"

namespace lockstep {
namespace {

class WholeSamples final : public Dataset {
 public:
  WholeSamples(std::unique_ptr<Dataset> all, int workers) : all_(std::move(all)) {
    std::vector<std::string> trouble(static_cast<std::size_t>(all_->size()));
    LongWork work("looking for broken samples", "samples", all_->size());
    for_each_sample(*all_, workers, [&](std::int64_t index, const Sample*, const DataError* error) {
      if (error != nullptr) trouble[static_cast<std::size_t>(index)] = error->what();
      work.advance();
    });
    for (std::int64_t i = 0; i < all_->size(); ++i) {
      std::string& text = trouble[static_cast<std::size_t>(i)];
      if (text.empty()) {
        whole_.push_back(i);
      } else {
        skipped_.push_back(std::move(text));
      }
    }
    if (!whole_.empty()) return;
    throw DataError(concat("none of ", all_->size(), " samples can be read; the first: ",
                           skipped_.empty() ? "there is none" : skipped_.front()));
  }

  using Dataset::load;
  std::int64_t size() const override { return static_cast<std::int64_t>(whole_.size()); }
  void load(std::int64_t index, Sample& sample) const override {
    all_->load(in_all(index), sample);
  }
  Size image_size(std::int64_t index) const override { return all_->image_size(in_all(index)); }
  std::string describe(std::int64_t index) const override { return all_->describe(in_all(index)); }
  std::vector<std::string> files(std::int64_t index) const override {
    return all_->files(in_all(index));
  }
  std::vector<std::string> skipped() const override { return skipped_; }

 private:
  std::int64_t in_all(std::int64_t index) const {
    LOCKSTEP_CHECK(index >= 0 && index < size(), "sample ", index, " of a data set of ", size());
    return whole_[static_cast<std::size_t>(index)];
  }

  std::unique_ptr<Dataset> all_;
  std::vector<std::int64_t> whole_;  // indices of those that can be read
  std::vector<std::string> skipped_;
};

}  // namespace

std::unique_ptr<Dataset> leave_out_broken(std::unique_ptr<Dataset> dataset, int workers) {
  return std::make_unique<WholeSamples>(std::move(dataset), workers);
}

namespace {

class Relabelled final : public Dataset {
 public:
  Relabelled(std::unique_ptr<Dataset> dataset, Label from, Label to)
      : dataset_(std::move(dataset)), from_(from), to_(to) {}

  using Dataset::load;
  std::int64_t size() const override { return dataset_->size(); }
  void load(std::int64_t index, Sample& sample) const override {
    dataset_->load(index, sample);
    std::replace(sample.labels.pixels.begin(), sample.labels.pixels.end(), from_, to_);
  }
  Size image_size(std::int64_t index) const override { return dataset_->image_size(index); }
  std::string describe(std::int64_t index) const override { return dataset_->describe(index); }
  std::vector<std::string> files(std::int64_t index) const override {
    return dataset_->files(index);
  }
  std::vector<std::string> skipped() const override { return dataset_->skipped(); }

 private:
  std::unique_ptr<Dataset> dataset_;
  Label from_, to_;
};

}  // namespace

std::unique_ptr<Dataset> relabelled(std::unique_ptr<Dataset> dataset, Label from, Label to) {
  return std::make_unique<Relabelled>(std::move(dataset), from, to);
}

}  // namespace lockstep
