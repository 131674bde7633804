#include "step/scatter.h"

#include "step/shard.h"

namespace lockstep {

Scatter::Scatter(const DataParallelOptions& options, int ranks)
    : options_(options),
      ranks_(ranks),
      parts_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(options.accumulate)) {}

BatchPart& Scatter::part(int rank, int micro) {
  return parts_[static_cast<std::size_t>(rank * options_.accumulate + micro)];
}

std::span<const BatchPart> Scatter::operator()(const Batch& batch) {
  for (int micro = 0; micro < options_.accumulate; ++micro) {
    const Shard whole = shard_of(batch.count(), options_.accumulate, micro);
    for (int rank = 0; rank < ranks_; ++rank) {
      const Shard own = shard_of(whole.count, ranks_, rank);
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

std::vector<std::int64_t> own_places(std::int64_t count, int accumulate, const RankLayout& layout) {
  std::vector<std::int64_t> places;
  for (int micro = 0; micro < accumulate; ++micro) {
    const Shard whole = shard_of(count, accumulate, micro);
    for (int i = 0; i < layout.own_ranks(); ++i) {
      const Shard own = shard_of(whole.count, layout.ranks(), layout.first_rank() + i);
      for (std::int64_t n = 0; n < own.count; ++n) places.push_back(whole.begin + own.begin + n);
    }
  }
  return places;
}

}  // namespace lockstep
