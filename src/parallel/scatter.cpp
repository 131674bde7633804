#include "parallel/scatter.h"

#include "lockstep/core/check.h"
#include "parallel/shard.h"

namespace lockstep {

Scatter::Scatter(const DataParallelOptions& options)
    : options_(options),
      parts_(options.devices.size() * static_cast<std::size_t>(options.accumulate)) {}

BatchPart& Scatter::part(int rank, int micro) {
  return parts_[static_cast<std::size_t>(rank * options_.accumulate + micro)];
}

std::span<const BatchPart> Scatter::operator()(const Batch& batch) {
  const auto ranks = static_cast<int>(options_.devices.size());
  for (int micro = 0; micro < options_.accumulate; ++micro) {
    const Shard whole = shard_of(batch.count(), options_.accumulate, micro);
    for (int rank = 0; rank < ranks; ++rank) {
      const Shard own = shard_of(whole.count, ranks, rank);
      const std::int64_t begin = whole.begin + own.begin;
      part(rank, micro) = {&batch, begin, own.count, begin};
    }
  }
  return parts_;
}

std::span<const BatchPart> Scatter::operator()(std::span<const Batch> batches) {
  std::int64_t before = 0;
  for (int rank = 0; const Batch& own : batches) {
    for (int micro = 0; micro < options_.accumulate; ++micro) {
      const Shard shard = shard_of(own.count(), options_.accumulate, micro);
      part(rank, micro) = {&own, shard.begin, shard.count, before + shard.begin};
    }
    before += own.count();
    ++rank;
  }
  return parts_;
}

void add_label_counts(const Batch& batch, std::size_t positions, int ignore_index,
                      std::span<std::int64_t> counts) {
  LOCKSTEP_CHECK(batch.class_pixels.empty() || batch.class_pixels.size() == counts.size(),
                 "expected label counts of ", counts.size(), " classes, got ",
                 batch.class_pixels.size());
  for (std::size_t c = 0; c < batch.class_pixels.size(); ++c) counts[c] += batch.class_pixels[c];
  if (!batch.class_pixels.empty()) return;
  const std::size_t labels = static_cast<std::size_t>(batch.count()) * positions;
  for (std::size_t i = 0; i < labels; ++i) {
    const std::uint8_t label = batch.labels[i];
    if (label == ignore_index) continue;
    LOCKSTEP_CHECK(label < counts.size(), "a label is ", int{label}, ", but there are ",
                   counts.size(), " classes; what does not count is ", ignore_index);
    ++counts[label];
  }
}

}  // namespace lockstep
