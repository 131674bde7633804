#include "data/ignored_class.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {
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
