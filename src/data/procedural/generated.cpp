#include "data/procedural/generated.h"

#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

const char* name_of(Split split) { return split == Split::kTrain ? "train" : "val"; }

class GeneratedDataset final : public Dataset {
 public:
  GeneratedDataset(std::string name, Size image_size, std::int64_t count, DrawSample draw)
      : name_(std::move(name)), size_(image_size), count_(count), draw_(std::move(draw)) {}

  std::int64_t size() const override { return count_; }
  void load(std::int64_t index, Sample& sample) const override { draw_(index, sample); }
  Size image_size(std::int64_t) const override { return size_; }
  std::string describe(std::int64_t index) const override { return concat(name_, "/", index); }

 private:
  std::string name_;
  Size size_;
  std::int64_t count_;
  DrawSample draw_;
};

}  // namespace

std::unique_ptr<Dataset> make_generated(const DataOptions& options, Split split,
                                        const std::string& noun, int classes, DrawSample draw) {
  if (options.num_classes != 0 && options.num_classes != classes) {
    throw ConfigError(concat("data.num_classes = ", options.num_classes, ": layout \"", noun,
                             "s\" has ", classes, " classes"));
  }
  if (options.size.height < kMinGeneratedExtent || options.size.width < kMinGeneratedExtent) {
    throw ConfigError(concat("data.size = [", options.size.height, ", ", options.size.width,
                             "]: expected [height, width] of at least ", kMinGeneratedExtent));
  }
  const int count = split == Split::kTrain ? options.train_images : options.val_images;
  if (count < 1) {
    throw ConfigError(
        concat("data.", name_of(split), "_images = ", count, ": expected at least 1"));
  }
  return std::make_unique<GeneratedDataset>(concat(noun, " ", name_of(split)), options.size, count,
                                            std::move(draw));
}

}  // namespace lockstep
