// The choice of hard pixels (OhemCrossEntropyLoss), on one thread: it is a fraction of what the
// loss itself takes.

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <span>

#include "backend/cpu/operations.h"
#include "backend/formulas.h"

namespace lockstep {
namespace {

void write(std::span<const double> sums, float* slot) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const SplitSum split(sums[i]);
    slot[i] = split.nearest;
    slot[sums.size() + i] = split.rest;
  }
}

/// sums = those of all slots and their parts, in their order.
void add_slots(std::span<const StatSlot> slots, std::span<double> sums) {
  std::fill(sums.begin(), sums.end(), 0.0);
  const auto elements = static_cast<std::int64_t>(sums.size());
  for (const StatSlot& slot : slots) {
    for (std::int64_t part = 0; part < slot.parts; ++part) {
      const float* data = slot.data + part * 2 * elements;
      for (std::int64_t i = 0; i < elements; ++i) {
        sums[static_cast<std::size_t>(i)] += split_sum(data, i, elements);
      }
    }
  }
}

/// Of image n: rows become weights; sums [2, C].
void choose_in_image(const OhemChoice& choice, std::int64_t n, std::span<double> sums) {
  const float weight = weight_of(choice.sample_weights, n);
  const std::int64_t rows = choice.labels.shape.rows_per_sample();
  for (std::int64_t row = n * rows; row < (n + 1) * rows; ++row) {
    float& probability = choice.rows[row];
    const bool chosen = probability < choice.state->threshold;
    const std::int64_t label = choice.labels.labels()[row * choice.labels.row_stride];
    if (probability != kNoLabel && label < choice.classes) {
      if (chosen) sums[static_cast<std::size_t>(label)] += static_cast<double>(weight);
      sums[static_cast<std::size_t>(choice.classes + label)] += static_cast<double>(weight);
    }
    probability = chosen ? weight : 0.0F;
  }
}

}  // namespace

void CpuLosses::ohem_count(const OhemCount& count) {
  check_operands(count);
  const OhemRound round(count.round);
  const std::uint32_t prefix = count.round == 0 ? 0 : count.state->prefix;
  std::array<double, kOhemCounts> own{};
  for (std::int64_t row = 0; row < count.rows; ++row) {
    const float p = count.probabilities[row];
    const auto bits = std::bit_cast<std::uint32_t>(p);
    if (p != kNoLabel && round.begins_with(bits, prefix)) own[round.bin_of(bits)] += 1;
  }
  own[kOhemBins] = static_cast<double>(count.samples);
  write(own, count.slot);
}

void CpuLosses::ohem_narrow(const OhemNarrow& narrow) {
  check_operands(narrow);
  std::array<double, kOhemCounts> counts;
  add_slots(narrow.counts, counts);
  OhemState& state = *narrow.state;
  if (narrow.round == 0) {
    const double labels = std::accumulate(counts.begin(), counts.begin() + kOhemBins, 0.0);
    begin_ohem(labels, static_cast<double>(narrow.min_kept) * counts[kOhemBins], state);
  }
  std::uint32_t bin = 0;
  while (bin + 1 < kOhemBins && state.before >= counts[bin]) state.before -= counts[bin++];
  state.prefix |= bin << OhemRound(narrow.round).shift;
  if (narrow.round + 1 < kOhemRounds) return;
  finish_ohem(std::bit_cast<float>(state.prefix), narrow.thresh, state);
}

void CpuLosses::ohem_choose(const OhemChoice& choice) {
  check_operands(choice);
  const std::int64_t samples = choice.labels.shape.batch(), elements = 2 * choice.classes;
  auto* const memory =
      static_cast<double*>(cpu_.scratch(static_cast<std::size_t>(elements) * sizeof(double)));
  const std::span<double> sums(memory, static_cast<std::size_t>(elements));
  const std::int64_t slots = choice.by_image ? samples : 1;
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    std::fill(sums.begin(), sums.end(), 0.0);
    const std::int64_t begin = choice.by_image ? slot : 0;
    const std::int64_t end = choice.by_image ? slot + 1 : samples;
    for (std::int64_t n = begin; n < end; ++n) choose_in_image(choice, n, sums);
    write(sums, choice.slots + slot * 2 * elements);
  }
}

void CpuLosses::ohem_share(const OhemShare& share) {
  check_operands(share);
  const auto elements = static_cast<std::size_t>(2 * share.classes);
  auto* const memory = static_cast<double*>(cpu_.scratch(elements * sizeof(double)));
  add_slots(share.weights, {memory, elements});
  share.state->normalizer =
      ohem_normalizer(memory, share.classes, share.class_weight, share.normalizer.get());
}

}  // namespace lockstep
