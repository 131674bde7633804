#include "data/sampler.h"

#include <numeric>
#include <utility>

#include "core/rng.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"

namespace lockstep {

void epoch_order(std::int64_t count, bool shuffle, std::uint64_t seed, std::int64_t epoch,
                 std::vector<std::int64_t>& order) {
  LOCKSTEP_CHECK(count >= 0 && count < (std::int64_t{1} << 32), "a data set of ", count,
                 " samples");
  order.resize(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle) return;
  Rng rng(seed, RngPurpose::kShuffle, static_cast<std::uint64_t>(epoch));
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[rng.below(static_cast<std::uint32_t>(i))]);
  }
}

DistributedSampler::DistributedSampler(std::int64_t samples,
                                       const DistributedSamplerOptions& options)
    : samples_(samples), options_(options) {
  LOCKSTEP_CHECK(samples > 0, "expected at least 1 sample, got ", samples);
  LOCKSTEP_CHECK(options.rank >= 0 && options.rank < options.ranks, "expected a rank from 0 to ",
                 options.ranks - 1, ", got ", options.rank);
}

std::int64_t DistributedSampler::size() const {
  const std::int64_t whole = samples_ / options_.ranks;
  return options_.drop_last || samples_ % options_.ranks == 0 ? whole : whole + 1;
}

std::vector<std::int64_t> DistributedSampler::indices(std::int64_t epoch) const {
  std::vector<std::int64_t> order, indices;
  epoch_order(samples_, options_.shuffle, options_.seed, epoch, order);
  for (std::int64_t i = 0; i < size(); ++i) {
    const std::int64_t place = i * options_.ranks + options_.rank;
    indices.push_back(order[static_cast<std::size_t>(place % samples_)]);
  }
  return indices;
}

}  // namespace lockstep
