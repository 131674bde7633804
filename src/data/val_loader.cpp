#include "data/augment.h"
#include "data/sample_store.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"

namespace lockstep {
namespace {

int round_up(int value, int divisor) { return (value + divisor - 1) / divisor * divisor; }

}  // namespace

struct ValLoader::Impl {
  Impl(const DataOptions& data, std::uint64_t seed)
      : store(data, Split::kVal, seed),
        normalizer(data),
        ignore_index(data.ignore_index),
        classes(static_cast<std::size_t>(class_count(data))) {}

  const SampleStore store;
  const Normalizer normalizer;
  const int ignore_index;
  const std::size_t classes;
};

ValLoader::ValLoader(const DataOptions& data, std::uint64_t seed)
    : impl_(std::make_unique<Impl>(data, seed)) {}

ValLoader::~ValLoader() = default;

std::int64_t ValLoader::size() const { return impl_->store.size(); }

Batch ValLoader::load(std::int64_t index, int divisor) const {
  LOCKSTEP_CHECK(divisor > 0, "sizes cannot be multiples of ", divisor);
  SampleScratch scratch;
  const Sample& sample = impl_->store.fetch(index, scratch);
  Batch batch;
  batch.samples = {index};
  batch.size = {round_up(sample.image.height, divisor), round_up(sample.image.width, divisor)};
  const std::size_t pixels =
      static_cast<std::size_t>(batch.size.height) * static_cast<std::size_t>(batch.size.width);
  batch.images.resize(pixels * 3);
  batch.labels.resize(pixels);
  impl_->normalizer.apply(sample.image, batch.size, batch.images.data());
  pad_labels(sample.labels, batch.size, impl_->ignore_index, batch.labels.data());
  batch.class_pixels.assign(impl_->classes, 0);
  for (const std::uint8_t label : sample.labels.pixels) {
    if (label != impl_->ignore_index) ++batch.class_pixels[label];
  }
  return batch;
}

}  // namespace lockstep
