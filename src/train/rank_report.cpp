#include "train/rank_report.h"

#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {

RankTotals::RankTotals(std::span<const Device> devices) {
  for (const Device& device : devices) {
    sums_.push_back({.rank = static_cast<int>(sums_.size()), .device = to_string(device)});
  }
}

void RankTotals::add(std::span<const RankStep> step) {
  LOCKSTEP_CHECK(step.size() == sums_.size(), "a step of ", step.size(), " ranks in a run of ",
                 sums_.size());
  for (std::size_t rank = 0; rank < step.size(); ++rank) {
    RankReport& sum = sums_[rank];
    sum.loss += step[rank].loss;
    sum.times.compute += step[rank].times.compute;
    sum.times.batch_norm_wait += step[rank].times.batch_norm_wait;
    sum.times.gradient_exchange += step[rank].times.gradient_exchange;
    sum.memory_bytes = step[rank].memory_bytes;
    sum.peak_memory_bytes = step[rank].peak_memory_bytes;
  }
  ++steps_;
}

void RankTotals::clear() {
  for (RankReport& sum : sums_) sum = {.rank = sum.rank, .device = std::move(sum.device)};
  steps_ = 0;
}

std::vector<RankReport> RankTotals::reports() const {
  if (steps_ == 0) return {};
  std::vector<RankReport> means = sums_;
  const auto steps = static_cast<double>(steps_);
  for (RankReport& mean : means) {
    mean.loss /= steps;
    mean.times.compute /= steps;
    mean.times.batch_norm_wait /= steps;
    mean.times.gradient_exchange /= steps;
  }
  return means;
}

}  // namespace lockstep
