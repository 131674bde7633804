#include "run/rank_report.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "lockstep/core/check.h"
#include "run/share_ranks.h"
#include "step/replica.h"

namespace lockstep {
namespace {

class Hash {
 public:
  template <typename T>
  void add(const std::vector<T>& values) {
    hash_ = XXH3_64bits_withSeed(values.data(), values.size() * sizeof(T), hash_);
  }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  std::uint64_t hash_ = 0;
};

std::optional<float> smallest_running_var(const Replica& replica, const ReplicaState& state) {
  std::optional<float> smallest;
  for (const auto& layer : replica.store().batch_norms()) {
    const float* var =
        state.statistics.data() + (layer->running_var - replica.store().statistics());
    const float of_layer = *std::min_element(var, var + layer->channels);
    smallest = std::min(smallest.value_or(of_layer), of_layer);
  }
  return smallest;
}

void add_digest(const Replica& replica, RankReport& report) {
  const ReplicaState state = replica.read_state();
  Hash weights, statistics;
  weights.add(state.values);
  statistics.add(state.statistics);
  statistics.add(state.tracked);
  report.weights_hash = weights.text();
  report.statistics_hash = statistics.text();
  report.smallest_running_var = smallest_running_var(replica, state);
}

}  // namespace

void add_digests(DataParallel& replicas, std::span<RankReport> reports) {
  replicas.for_each_replica([&](const Replica& replica) {
    add_digest(replica, reports[static_cast<std::size_t>(replica.rank())]);
  });
  share_ranks(
      replicas,
      [&](int rank, ByteWriter& writer) {
        const RankReport& report = reports[static_cast<std::size_t>(rank)];
        writer.add_text(report.weights_hash);
        writer.add_text(report.statistics_hash);
        writer.add(report.smallest_running_var.value_or(-1.0F));
      },
      [&](int rank, ByteReader& reader) {
        RankReport& report = reports[static_cast<std::size_t>(rank)];
        report.weights_hash = reader.get_text();
        report.statistics_hash = reader.get_text();
        const auto smallest = reader.get<float>();
        if (smallest >= 0) report.smallest_running_var = smallest;
      });
}

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
