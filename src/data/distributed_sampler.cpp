#include "data/sampler.h"
#include "lockstep/core/check.h"
#include "lockstep/data/loader.h"

namespace lockstep {

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
