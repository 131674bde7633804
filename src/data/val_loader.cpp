#include <algorithm>
#include <numeric>

#include "data/augment.h"
#include "data/formats/file_dataset.h"
#include "data/sample_store.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"

namespace lockstep {

struct ValLoader::Impl {
  Impl(const DataOptions& data, std::uint64_t seed)
      : store(data, Split::kVal, seed),
        normalizer(data),
        channels(static_cast<std::size_t>(data.channels)),
        ignored(ignored_label(data)),
        classes(static_cast<std::size_t>(class_count(data))) {
    if (store.size() == 0)
      throw DataError(split_name(data, Split::kVal) +
                      ": expected samples to evaluate, there are none");
  }

  void append(std::int64_t index, const Sample& sample, int divisor, Batch& batch) const;

  const SampleStore store;
  const Normalizer normalizer;
  const std::size_t channels;
  const Label ignored;
  const std::size_t classes;
};

void ValLoader::Impl::append(std::int64_t index, const Sample& sample, int divisor,
                             Batch& batch) const {
  const Size size = padded_size({sample.image.height, sample.image.width}, divisor);
  LOCKSTEP_CHECK(batch.samples.empty() || size == batch.size, store.describe(index), " is of ",
                 to_string(size), ", the batch before it of ", to_string(batch.size));
  batch.size = size;
  batch.image = {sample.image.height, sample.image.width};
  batch.samples.push_back(index);
  const std::size_t pixels =
      static_cast<std::size_t>(size.height) * static_cast<std::size_t>(size.width);
  const std::size_t image = batch.images.size(), labels = batch.labels.size();
  batch.images.resize(image + pixels * channels);
  normalizer.apply(sample.image, size, batch.images.data() + image);
  if (store.task() == Task::kClassification) {
    batch.labels.push_back(sample.labels.pixels.front());
  } else {
    batch.labels.resize(labels + pixels);
    pad_labels(sample.labels, size, ignored, batch.labels.data() + labels);
  }
  store.count_labels(index, sample.labels.pixels, batch.class_pixels);
}

ValLoader::ValLoader(const DataOptions& data, std::uint64_t seed)
    : impl_(std::make_unique<Impl>(data, seed)) {}

ValLoader::~ValLoader() = default;

std::int64_t ValLoader::size() const { return impl_->store.size(); }

const Dataset& ValLoader::dataset() const { return impl_->store.dataset(); }

Task ValLoader::task() const { return impl_->store.task(); }

bool ValLoader::one_size() const {
  const Size first = impl_->store.image_size(0);
  for (std::int64_t i = 1; i < size(); ++i) {
    if (impl_->store.image_size(i) != first) return false;
  }
  return true;
}

std::int64_t ValLoader::largest(int divisor) const {
  std::int64_t largest = 0, most = 0;
  for (std::int64_t i = 0; i < size(); ++i) {
    const Size padded = padded_size(impl_->store.image_size(i), divisor);
    const std::int64_t pixels = std::int64_t{padded.height} * padded.width;
    if (pixels > most) largest = i;
    most = std::max(most, pixels);
  }
  return largest;
}

Batch ValLoader::load(std::int64_t first, std::int64_t count, int divisor) const {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), first);
  return load(indices, divisor);
}

Batch ValLoader::load(std::span<const std::int64_t> indices, int divisor) const {
  LOCKSTEP_CHECK(divisor > 0, "sizes cannot be multiples of ", divisor);
  SampleScratch scratch;
  Batch batch;
  batch.class_pixels.assign(impl_->classes, 0);
  for (const std::int64_t index : indices) {
    impl_->append(index, impl_->store.fetch(index, scratch), divisor, batch);
  }
  return batch;
}

}  // namespace lockstep
