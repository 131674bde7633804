// The choice of hard pixels against a sorted list of their probabilities, by any number of ranks.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "backend/device_number.h"
#include "backend/operand.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

using PixelLabels = std::vector<std::uint16_t>;

constexpr int kVoid = 77;

struct OhemCase {
  Shape shape;  // of the logits of all ranks
  std::int64_t min_kept;
  float thresh;
  bool weighted = false;
  float scale = 1.5F;  // of the logits: of large ones most probabilities are 0 or 1
};

/// What a rank has of a batch.
struct Rank {
  Operand logits;
  Storage labels_memory;
  Tensor labels;
  Operand rows, weights, class_weights, counts, by_class;
  DeviceNumber<OhemState> state;

  Rank(const TypedBackend& on, const OhemCase& c, std::int64_t first, std::int64_t images,
       const Values& all, const PixelLabels& all_labels, const Values& of_samples,
       const Values& of_classes)
      : logits(on, c.shape.with_batch(images), slice(all, first, images, c.shape.batch())),
        labels_memory(on->allocate(all_labels.size() * sizeof(std::uint16_t))),
        labels(labels_memory.data(), c.shape.with_batch(images).with_channels(1), DType::kUInt16),
        rows(on.backend, {1, std::max<std::int64_t>(1, logits.tensor().shape.rows())}),
        weights(on.backend, {1, std::max<std::int64_t>(1, images)},
                slice(of_samples, first, std::max<std::int64_t>(1, images), c.shape.batch())),
        class_weights(on.backend, {1, c.shape.channels()}, of_classes),
        counts(on.backend, {1, 2 * kOhemCounts}),
        by_class(on.backend, {1, std::max<std::int64_t>(1, images) * 4 * c.shape.channels()}),
        state(on.backend, OhemState{}) {
    if (images == 0) return;
    const auto rows_each = static_cast<std::ptrdiff_t>(c.shape.rows_per_sample());
    on->upload(labels, all_labels.data() + first * rows_each);
    on->synchronize();
  }

  static Values slice(const Values& all, std::int64_t first, std::int64_t images, std::int64_t of) {
    const auto each = static_cast<std::ptrdiff_t>(all.size()) / of;
    const auto begin = std::min(first, of - images);
    return {all.begin() + begin * each, all.begin() + (begin + images) * each};
  }
  std::int64_t images() const { return logits.tensor().shape.batch(); }
};

struct Chosen {
  Values probabilities, rows;  // of all ranks
  std::vector<OhemState> states;
};

Values first_of(const Operand& operand, std::int64_t count) {
  Values values = operand.get();
  values.resize(static_cast<std::size_t>(count));
  return values;
}

void append(const Values& from, Values& to) { to.insert(to.end(), from.begin(), from.end()); }

/// The operations as a loss calls them.
Chosen choose(const TypedBackend& on, const OhemCase& c,
              std::vector<std::unique_ptr<Rank>>& ranks) {
  Chosen result;
  for (const auto& rank : ranks) {
    on->losses().label_probabilities(
        {rank->logits.tensor(), rank->labels, kVoid, rank->rows.floats()});
    append(first_of(rank->rows, rank->logits.tensor().shape.rows()), result.probabilities);
  }
  for (int round = 0; round < kOhemRounds; ++round) {
    std::vector<StatSlot> slots;
    for (const auto& rank : ranks) {
      on->losses().ohem_count({round, rank->rows.floats(), rank->logits.tensor().shape.rows(),
                               rank->images(), rank->state.pointer(), rank->counts.floats()});
      slots.push_back({rank->images(), rank->counts.floats()});
    }
    for (const auto& rank : ranks) {
      on->losses().ohem_narrow({round, slots, c.min_kept, c.thresh, rank->state.pointer()});
    }
  }
  const std::int64_t classes = c.shape.channels();
  std::vector<StatSlot> slots;
  for (const auto& rank : ranks) {
    OhemChoice choice;
    choice.labels = rank->labels;
    choice.classes = classes;
    choice.sample_weights = c.weighted ? rank->weights.floats() : nullptr;
    choice.state = rank->state.pointer();
    choice.rows = rank->rows.floats();
    choice.by_image = on->sums_by_image();
    choice.slots = rank->by_class.floats();
    if (rank->images() == 0) on->fill(rank->by_class.tensor(), 0);
    if (rank->images() > 0) on->losses().ohem_choose(choice);
    slots.push_back({rank->images(), choice.slots,
                     choice.by_image ? std::max<std::int64_t>(1, rank->images()) : 1});
    append(first_of(rank->rows, rank->logits.tensor().shape.rows()), result.rows);
  }
  for (const auto& rank : ranks) {
    on->losses().ohem_share({slots, classes, c.weighted ? rank->class_weights.floats() : nullptr,
                             100.0, rank->state.pointer()});
    result.states.push_back(rank->state.get());
  }
  return result;
}

void check_probabilities(const OhemCase& c, const Values& logits, const PixelLabels& labels,
                         const Values& probabilities) {
  const auto classes = static_cast<std::size_t>(c.shape.channels());
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] == kVoid) {
      REQUIRE(probabilities[row] == 2);
      continue;
    }
    double sum = 0;
    for (std::size_t k = 0; k < classes; ++k) {
      sum += std::exp(static_cast<double>(logits[row * classes + k]));
    }
    const double own = std::exp(static_cast<double>(logits[row * classes + labels[row]]));
    REQUIRE(static_cast<double>(probabilities[row]) == doctest::Approx(own / sum).epsilon(1e-5));
  }
}

void check_ohem(const TypedBackend& on, const OhemCase& c,
                const std::vector<std::int64_t>& shares) {
  const Values logits = on.random(c.shape, 1, c.scale);
  const auto classes = static_cast<std::size_t>(c.shape.channels());
  const auto image_rows = static_cast<std::size_t>(c.shape.rows_per_sample());
  std::mt19937 generator(7);
  PixelLabels labels(static_cast<std::size_t>(c.shape.rows()));
  for (auto& label : labels) {
    label = static_cast<std::uint16_t>(generator() % 5 == 0 ? kVoid : generator() % classes);
  }
  Values of_samples, of_classes;
  for (std::int64_t n = 0; n < c.shape.batch(); ++n)
    of_samples.push_back(0.5F * static_cast<float>(1 + n % 4));
  for (std::size_t k = 0; k < classes; ++k)
    of_classes.push_back(0.25F * static_cast<float>(1 + k % 3));
  std::vector<std::unique_ptr<Rank>> ranks;
  std::int64_t first = 0;
  for (const std::int64_t images : shares) {
    ranks.push_back(
        std::make_unique<Rank>(on, c, first, images, logits, labels, of_samples, of_classes));
    first += images;
  }
  const Chosen chosen = choose(on, c, ranks);
  check_probabilities(c, logits, labels, chosen.probabilities);

  Values sorted;
  for (const float p : chosen.probabilities) {
    if (p != 2) sorted.push_back(p);
  }
  std::sort(sorted.begin(), sorted.end());
  const auto place = std::min<std::int64_t>(c.min_kept * c.shape.batch(),
                                            static_cast<std::int64_t>(sorted.size()) - 1);
  const float threshold = std::max(sorted[static_cast<std::size_t>(place)], c.thresh);
  double chosen_weight = 0, all_weight = 0;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    const float p = chosen.probabilities[row];
    const float weight = c.weighted ? of_samples[row / image_rows] : 1.0F;
    REQUIRE(chosen.rows[row] == (p < threshold ? weight : 0.0F));
    if (labels[row] == kVoid) continue;
    const double of_label = c.weighted ? static_cast<double>(of_classes[labels[row]]) : 1.0;
    all_weight += static_cast<double>(weight) * of_label;
    chosen_weight += p < threshold ? static_cast<double>(weight) * of_label : 0.0;
  }
  for (const OhemState& state : chosen.states) {
    CHECK(state.threshold == threshold);
    CHECK(state.normalizer == doctest::Approx(100 * chosen_weight / all_weight).epsilon(1e-12));
    CHECK(state.normalizer == chosen.states.front().normalizer);
  }
}

}  // namespace

TEST_CASE("hard pixels are those of a sorted list, whatever ranks have of them") {
  for_each_type([](const TypedBackend& on) {
    for (const OhemCase& c : std::vector<OhemCase>{
             {{5, 7, 9, 5}, 11, 0},
             {{5, 7, 9, 5}, 0, 0.3F},
             {{5, 7, 9, 5}, 30, 0.1F, true},
             {{5, 7, 9, 5}, 100000, 0.7F},
             {{5, 7, 9, 5}, 20, 0, false, 40},
             {{5, 40, 30, 2}, 500, 0, true},
             {{5, 4, 6, 37}, 3, 0.05F},
         }) {
      CAPTURE(to_string(c.shape));
      CAPTURE(c.min_kept);
      for (const std::vector<std::int64_t>& shares :
           {std::vector<std::int64_t>{5}, {2, 3}, {2, 2, 1, 0}}) {
        check_ohem(on, c, shares);
      }
    }
  });
}

TEST_CASE("a batch without labels has no hard pixels, and its loss no normalizer") {
  for_each_type([](const TypedBackend& on) {
    const OhemCase c{{2, 3, 4, 5}, 3, 0.5F};
    const PixelLabels labels(24, kVoid);
    std::vector<std::unique_ptr<Rank>> ranks;
    ranks.push_back(
        std::make_unique<Rank>(on, c, 0, 2, Values(120), labels, Values(2, 1.0F), Values(5, 1.0F)));
    const Chosen chosen = choose(on, c, ranks);
    CHECK(chosen.rows == Values(24, 0.0F));
    CHECK(chosen.states[0].threshold == 0.5F);
    CHECK(chosen.states[0].normalizer == 0);
  });
}

TEST_CASE("a label that is no class weighs nothing") {
  for_each_type([](const TypedBackend& on) {
    const Rank rank(on, {{1, 1, 2, 5}, 0, 0}, 0, 1, Values(10), {5, 1}, {1}, Values(5));
    const DeviceNumber<OhemState> state(on.backend, OhemState{.threshold = 0.5F});
    on->fill(rank.rows.tensor(), 0.25F);
    OhemChoice choice;
    choice.labels = rank.labels;
    choice.classes = 5;
    choice.state = state.pointer();
    choice.rows = rank.rows.floats();
    choice.slots = rank.by_class.floats();
    on->losses().ohem_choose(choice);
    CHECK(first_of(rank.by_class, 10) == Values{0, 1, 0, 0, 0, 0, 1, 0, 0, 0});
  });
}

}  // namespace lockstep::test
