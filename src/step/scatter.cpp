#include "step/scatter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "lockstep/core/check.h"

namespace lockstep {

Shard shard_of(std::int64_t batch, int parts, int part) {
  const std::int64_t size = (batch + parts - 1) / parts;
  const std::int64_t begin = std::min(batch, part * size);
  return {begin, std::min(size, batch - begin)};
}

std::vector<std::int64_t> chunk_sizes(std::int64_t batch, int parts) {
  LOCKSTEP_CHECK(batch >= 0 && parts >= 1, "expected a batch of 0 or more in 1 or more parts, got ",
                 batch, " in ", parts);
  std::vector<std::int64_t> sizes;
  for (int part = 0; part < parts; ++part) sizes.push_back(shard_of(batch, parts, part).count);
  return sizes;
}

Scatter::Scatter(const DataParallelOptions& options, int ranks)
    : options_(options),
      ranks_(ranks),
      parts_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(options.micro_batches())) {}

BatchPart& Scatter::part(int rank, int micro) {
  return parts_[static_cast<std::size_t>(rank * options_.micro_batches() + micro)];
}

std::span<const BatchPart> Scatter::operator()(const Batch& batch) {
  for (int micro = 0; micro < options_.micro_batches(); ++micro) {
    const Shard whole = shard_of(batch.count(), options_.micro_batches(), micro);
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
    for (int micro = 0; micro < options_.micro_batches(); ++micro) {
      const Shard shard = shard_of(own.count(), options_.micro_batches(), micro);
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

// --- gather ---

namespace {

double loss_of(const StepDone& done, std::size_t i, std::size_t losses) {
  double sum = 0;
  for (const StepOutcome& outcome : done.outcomes) {
    const std::size_t terms = outcome.loss_terms.size() / losses;
    for (const double term : std::span(outcome.loss_terms).subspan(i * terms, terms)) sum += term;
  }
  return sum;
}

/// What a sentence says of it: a nan's sign means nothing, and differs between processors.
double for_people(double value) { return std::isnan(value) ? std::fabs(value) : value; }

void add_losses(const StepDone& done, const DataParallelOptions& options, const RankLayout& layout,
                StepResult& result) {
  for (std::size_t rank = 0; rank < done.outcomes.size(); ++rank) {
    for (std::size_t i = 0; i < options.losses.size(); ++i) {
      const double loss = done.outcomes[rank].sums.losses[i];
      if (!std::isfinite(loss)) {
        throw NonFiniteError(concat("step ", done.step, ": the loss of ",
                                    layout.describe_rank(static_cast<int>(rank)), " is ",
                                    for_people(loss), "; the weights were not changed"));
      }
    }
  }
  for (std::size_t i = 0; i < options.losses.size(); ++i) {
    result.losses[i] = loss_of(done, i, options.losses.size());
  }
  result.loss = std::accumulate(result.losses.begin(), result.losses.end(), 0.0);
}

void tell_ranks(const StepDone& done, std::span<RankStep> ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const StepOutcome& outcome = done.outcomes[rank];
    const auto& losses = outcome.sums.losses;
    ranks[rank] = {std::accumulate(losses.begin(), losses.end(), 0.0), outcome.times,
                   outcome.memory_bytes, outcome.peak_memory_bytes};
  }
}

StepTimes mean_times(std::span<const StepOutcome> outcomes) {
  StepTimes mean;
  const double share = 1.0 / static_cast<double>(outcomes.size());
  for (const StepOutcome& outcome : outcomes) {
    mean.compute += share * outcome.times.compute;
    mean.batch_norm_wait += share * outcome.times.batch_norm_wait;
    mean.gradient_exchange += share * outcome.times.gradient_exchange;
  }
  return mean;
}

bool left_out(const StepOutcome& outcome) { return outcome.sums.guard != 0; }

double gradient_norm(const StepDone& done) {
  double squares = 0;
  for (const StepOutcome& outcome :
       done.outcomes.first(done.summed_everywhere ? 1 : done.outcomes.size())) {
    for (const double term : outcome.square_terms) squares += term;
  }
  return std::sqrt(squares);
}

void judge_gradient(const StepDone& done, StepResult& result) {
  if (result.skipped && done.scale == 1) {
    throw NonFiniteError(concat("step ", done.step, ": the gradient is not finite although the ",
                                "loss is and its scale is down at 1; the weights were not ",
                                "changed"));
  }
  result.grad_norm =
      result.skipped ? std::numeric_limits<double>::quiet_NaN() : gradient_norm(done);
  if (!result.skipped && !std::isfinite(result.grad_norm)) {
    throw NonFiniteError(
        concat("step ", done.step, ": the gradient is not finite (norm ",
               for_people(result.grad_norm), ") although the loss is; the weights of this ",
               "step are not to be used, go on from the last checkpoint (--resume)"));
  }
}

}  // namespace

StepResult gather(const StepDone& done, const DataParallelOptions& options,
                  const RankLayout& layout, std::span<RankStep> ranks) {
  StepResult result;
  tell_ranks(done, ranks);
  result.ranks = ranks;
  result.times = mean_times(done.outcomes);
  add_losses(done, options, layout, result);
  if (options.loss_scale) {
    result.loss_scale = done.outcomes.front().sums.scale;
    result.skipped = std::any_of(done.outcomes.begin(), done.outcomes.end(), left_out);
  }
  judge_gradient(done, result);
  return result;
}

}  // namespace lockstep
