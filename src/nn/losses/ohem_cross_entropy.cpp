// The threshold is an order statistic of the probabilities of all devices. It is found by their
// bits, which rise with a probability: three rounds of counts, each of the next bits among those
// that begin alike. Counts are whole numbers, so that it is the same for any placement.

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <span>
#include <vector>

#include "backend/formulas.h"
#include "lockstep/core/check.h"
#include "lockstep/nn/loss.h"
#include "nn/losses/device_values.h"
#include "nn/losses/label_arguments.h"
#include "nn/losses/sum_exchange.h"

namespace lockstep {
namespace {

constexpr float kNoLabel = 2;  // in place of the probability of a label that is ignored
constexpr int kBins = 2048;
constexpr std::int64_t kCounts = kBins + 1;  // and the samples

/// One round: bits [shift, shift + log2(kBins)) of what has the bits of `prefix` above them.
struct Round {
  int shift;
  std::uint32_t above;  // mask of the bits that are known
};
constexpr std::array<Round, 3> kRounds{{{21, 0}, {10, ~0U << 21U}, {0, ~0U << 10U}}};
constexpr std::array<std::uint32_t, 3> kBinMasks{kBins - 1, kBins - 1, 1023};

class OhemNode final : public LossNode {
 public:
  OhemNode(const LossSite& site, const OhemCrossEntropyLoss& loss)
      : LossNode(site, loss.weight, {true, loss.ignore_index}),
        loss_(loss),
        class_weight_(
            upload_per_channel(backend(), loss.class_weight, classes(), "loss.class_weight")),
        exchange_(site, slot_floats(site)) {
    if (backend().device().kind != DeviceKind::kCpu) {
      throw ConfigError(concat("the loss ", OhemCrossEntropyLoss::kName,
                               " is for CPU devices, and ", to_string(backend().device()),
                               " is none; use focal there"));
    }
    const auto rows = static_cast<std::size_t>(site.network.output(output_index()).shape.rows());
    probabilities_.resize(rows);
    counts_.resize(static_cast<std::size_t>(std::max(kCounts, 2 * classes())));
  }

  void compute(const LossPass& pass) override {
    find_probabilities(pass);
    choose(pass, threshold(pass));
    CrossEntropy arguments = label_arguments(pass, ignore_index());
    arguments.class_weight = floats_of(class_weight_);
    arguments.row_weights = probabilities_.data();
    arguments.rows_per_weight = 1;
    arguments.normalizer = chosen_share() * pass.normalizer.get();
    backend().cross_entropy(arguments);
  }
  // Of all pixels: which of them are hard is a question of training.
  void evaluate(const LossPass& pass) override {
    backend().cross_entropy(label_arguments(pass, ignore_index()));
  }

 private:
  std::size_t slot_floats(const LossSite& site) const {
    const std::int64_t samples = std::max<std::int64_t>(1, site.network.planned_batch());
    return static_cast<std::size_t>(2 * std::max(kCounts, samples * 2 * classes()));
  }

  double mean_over(const LossCounts& counts) const override {
    return weighted_labels(counts, loss_.class_weight);
  }

  std::span<const float> own_probabilities(const LossPass& pass) const {
    return {probabilities_.data(), static_cast<std::size_t>(pass.output.shape.rows())};
  }

  void find_probabilities(const LossPass& pass) {
    LabelProbabilities arguments;
    arguments.logits = pass.output;
    arguments.labels = pass.target;
    arguments.ignore_index = ignore_index();
    arguments.probabilities = probabilities_.data();
    backend().label_probabilities(arguments);
  }

  /// counts_ [elements] = the sums over all ranks and their parts, in their order.
  void exchange_counts(const LossPass& pass, const float* slot, std::int64_t parts,
                       std::int64_t elements) {
    const StatSlot local{pass.output.shape.batch(), slot, parts};
    std::fill_n(counts_.begin(), elements, 0.0);
    for (const StatSlot& theirs : exchange_.all(pass.communicator, local, elements)) {
      for (std::int64_t part = 0; part < theirs.parts; ++part) {
        const float* data = theirs.data + part * 2 * elements;
        for (std::int64_t i = 0; i < elements; ++i) {
          counts_[static_cast<std::size_t>(i)] += split_sum(data, i, elements);
        }
      }
    }
  }

  static void write(std::span<const double> sums, float* slot) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const SplitSum split(sums[i]);
      slot[i] = split.nearest;
      slot[sums.size() + i] = split.rest;
    }
  }

  /// counts_ = of all ranks' labels that begin with `prefix`, by their next bits.
  void count_round(const LossPass& pass, std::size_t round, std::uint32_t prefix) {
    std::array<double, kCounts> own{};
    for (const float p : own_probabilities(pass)) {
      const auto bits = std::bit_cast<std::uint32_t>(p);
      if (p == kNoLabel || (bits & kRounds[round].above) != prefix) continue;
      own[(bits >> static_cast<unsigned>(kRounds[round].shift)) & kBinMasks[round]] += 1;
    }
    own[kBins] = static_cast<double>(pass.output.shape.batch());
    float* const slot = exchange_.next_slot();
    write(own, slot);
    exchange_counts(pass, slot, 1, kCounts);
  }

  /// A pixel is chosen whose probability is below it: `thresh`, or that of the first pixel that is
  /// not among the hardest min_kept of each sample, whichever is greater.
  float threshold(const LossPass& pass) {
    std::uint32_t prefix = 0;
    double before = 0;  // the place among those that begin with `prefix`
    bool any = true;
    for (std::size_t round = 0; round < kRounds.size(); ++round) {
      count_round(pass, round, prefix);
      if (round == 0) {
        const double labels = std::accumulate(counts_.begin(), counts_.begin() + kBins, 0.0);
        const double kept = static_cast<double>(loss_.min_kept) * counts_[kBins];
        any = labels > 0;
        before = std::min(kept, labels - 1);
      }
      std::size_t bin = 0;
      while (bin + 1 < kBins && before >= counts_[bin]) before -= counts_[bin++];
      prefix |= static_cast<std::uint32_t>(bin) << static_cast<unsigned>(kRounds[round].shift);
    }
    return any ? std::max(std::bit_cast<float>(prefix), loss_.thresh) : loss_.thresh;
  }

  /// Of image n: probabilities_ become its pixels' weights; sums [2, C] = what its chosen pixels
  /// weigh by class, and all with a label.
  void choose_in_image(const LossPass& pass, std::int64_t n, float threshold,
                       std::span<double> sums) {
    const float weight = weight_of(pass.sample_weights, n);
    const std::int64_t rows = pass.output.shape.rows_per_sample();
    const auto label_classes = static_cast<std::size_t>(classes());
    for (std::int64_t row = n * rows; row < (n + 1) * rows; ++row) {
      float& probability = probabilities_[static_cast<std::size_t>(row)];
      const bool chosen = probability < threshold;
      if (probability != kNoLabel) {
        const std::size_t label = pass.target.labels()[row * pass.target.row_stride];
        if (chosen) sums[label] += static_cast<double>(weight);
        sums[label_classes + label] += static_cast<double>(weight);
      }
      probability = chosen ? weight : 0.0F;
    }
  }

  /// Leaves in counts_ what the pixels of the global batch weigh by class: chosen, and all.
  void choose(const LossPass& pass, float threshold) {
    const std::int64_t samples = pass.output.shape.batch(), elements = 2 * classes();
    float* const slot = exchange_.next_slot();
    std::span<double> sums(counts_.data(), static_cast<std::size_t>(elements));
    for (std::int64_t n = 0; n < std::max<std::int64_t>(1, samples); ++n) {
      std::fill(sums.begin(), sums.end(), 0.0);
      if (n < samples) choose_in_image(pass, n, threshold, sums);
      write(sums, slot + n * 2 * elements);
    }
    exchange_counts(pass, slot, std::max<std::int64_t>(1, samples), elements);
  }

  /// What part of the global batch's weight the chosen pixels have.
  double chosen_share() const {
    const auto count = static_cast<std::size_t>(classes());
    const std::vector<float>& weights = loss_.class_weight;
    const double chosen = weighted_labels({.labels = {counts_.data(), count}}, weights);
    const double all = weighted_labels({.labels = {counts_.data() + count, count}}, weights);
    return all == 0 ? 0 : chosen / all;
  }

  const OhemCrossEntropyLoss loss_;
  const Storage class_weight_;  // [classes]; empty: all 1
  SumExchange exchange_;
  std::vector<float> probabilities_;  // [row] of the label; then the row's weight
  std::vector<double> counts_;        // of all ranks
};

}  // namespace

std::unique_ptr<LossNode> OhemCrossEntropyLoss::make_node(const LossSite& site) const {
  return std::make_unique<OhemNode>(site, *this);
}

}  // namespace lockstep
