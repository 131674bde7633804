#include "train/replica_readings.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "backend/moments.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"
#include "nn/norms/batch_norm_layer.h"
#include "step/replica.h"
#include "sync/byte_stream.h"
#include "train/training.h"

namespace lockstep {
namespace {

/// [rank] what `read` returns of each replica, those of other processes included.
template <typename Read>
auto read_all(DataParallel& replicas, const Read& read) {
  std::vector<std::invoke_result_t<const Read&, Replica&>> by_rank(
      static_cast<std::size_t>(replicas.size()));
  replicas.for_each_replica(
      [&](Replica& replica) { by_rank[static_cast<std::size_t>(replica.rank())] = read(replica); });
  share_by_rank(replicas, by_rank);
  return by_rank;
}

// --- running statistics ---

ReplicaStatistics read_replica(Replica& replica) {
  ReplicaStatistics statistics;
  for (const auto& state : replica.store().batch_norms()) {
    const auto channels = static_cast<std::size_t>(state->channels);
    BatchNormStatistics layer{state->name, std::vector<float>(channels),
                              std::vector<float>(channels), state->num_batches_tracked};
    replica.backend().download(layer.mean.data(),
                               Tensor(state->running_mean, {1, state->channels}));
    replica.backend().download(layer.var.data(), Tensor(state->running_var, {1, state->channels}));
    statistics.push_back(std::move(layer));
  }
  replica.backend().synchronize();
  return statistics;
}

void write_replica(Replica& replica, const ReplicaStatistics& statistics) {
  const auto states = replica.store().batch_norms();
  LOCKSTEP_CHECK(statistics.size() == states.size(), "statistics of ", statistics.size(),
                 " BatchNorm layers for a network with ", states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    BatchNormState& state = *states[i];
    const BatchNormStatistics& layer = statistics[i];
    LOCKSTEP_CHECK(layer.layer == state.name &&
                       layer.mean.size() == static_cast<std::size_t>(state.channels) &&
                       layer.var.size() == layer.mean.size(),
                   "statistics of ", layer.layer, " with ", layer.mean.size(), " channels for ",
                   state.name, " with ", state.channels);
    replica.backend().upload(Tensor(state.running_mean, {1, state.channels}), layer.mean.data());
    replica.backend().upload(Tensor(state.running_var, {1, state.channels}), layer.var.data());
    state.num_batches_tracked = layer.num_batches_tracked;
  }
  replica.backend().synchronize();
}

/// Chan's merge of one layer's moments, in double.
struct LayerMoments {
  std::int64_t count = 0;
  std::vector<double> mean, m2;  // [C]

  void add(std::int64_t other_count, const double* other_mean, const double* other_m2,
           std::size_t channels) {
    if (other_count == 0) return;
    mean.resize(channels);
    m2.resize(channels);
    const auto total = static_cast<double>(count + other_count);
    for (std::size_t c = 0; c < channels; ++c) {
      const double delta = other_mean[c] - mean[c];
      mean[c] += delta * static_cast<double>(other_count) / total;
      m2[c] += other_m2[c] + delta * delta * static_cast<double>(count) *
                                 static_cast<double>(other_count) / total;
    }
    count += other_count;
  }
};

/// What one call of a layer saw of a slice of a batch on one rank, on the host.
struct SliceMoments {
  std::int64_t count = 0, parts = 1;
  std::vector<float> values = {};  // [parts, 2, C]; empty where the count is 0

  auto fields() { return std::tie(count, parts, values); }
  StatSlot slot() const { return {count, values.data(), parts}; }
};
/// [call][slice]; a call in evaluation mode has no slices.
using BatchMoments = std::vector<std::vector<SliceMoments>>;

SliceMoments read_slot(Backend& backend, const StatSlot& slot, std::int64_t channels) {
  SliceMoments read{slot.count, slot.parts};
  if (slot.count == 0) return read;
  read.values.resize(static_cast<std::size_t>(slot.parts * 2 * channels));
  backend.download(read.values.data(),
                   Tensor(const_cast<float*>(slot.data), {slot.parts, 2 * channels}));
  return read;
}

/// Of the last forward pass of a replica.
BatchMoments read_batch(Replica& replica) {
  BatchMoments calls;
  for (const BatchNormLayer* layer : batch_norms_of(replica.network())) {
    calls.emplace_back();
    if (layer->config().norm.is_frozen()) continue;
    for (const StatSlot& slot : layer->local_moments()) {
      calls.back().push_back(read_slot(replica.backend(), slot, layer->output()->shape.channels()));
    }
  }
  replica.backend().synchronize();
  return calls;
}

void take_moments(const LayerMoments& moments, BatchNormStatistics& layer) {
  const auto degrees = static_cast<double>(std::max<std::int64_t>(1, moments.count - 1));
  for (std::size_t c = 0; c < moments.mean.size(); ++c) {
    layer.mean[c] = static_cast<float>(moments.mean[c]);
    layer.var[c] = static_cast<float>(moments.m2[c] / degrees);
  }
}

/// What all ranks saw in a call, merged as a step merges it: the same bits however many they are,
/// where slots have a part for each image.
void add_call(const std::vector<BatchMoments>& by_rank, std::size_t call, std::int64_t channels,
              LayerMoments& moments) {
  std::vector<StatSlot> slots;
  for (const BatchMoments& rank : by_rank) {
    for (const SliceMoments& slice : rank[call]) slots.push_back(slice.slot());
  }
  std::vector<float> merged(static_cast<std::size_t>(2 * channels));
  const std::int64_t count = merge_moments(slots, channels, merged.data());
  const std::vector<double> values(merged.begin(), merged.end());
  moments.add(count, values.data(), values.data() + channels, static_cast<std::size_t>(channels));
}

// --- what BatchNorm saw ---

PartMoments part_of(const SliceMoments& slice, std::int64_t channels) {
  if (slice.count == 0) return {};
  std::vector<float> merged(static_cast<std::size_t>(2 * channels));
  const StatSlot slot = slice.slot();
  merge_moments({&slot, 1}, channels, merged.data());
  const auto m2 = merged.begin() + channels;
  return {slice.count, {merged.begin(), m2}, {m2, merged.end()}};
}

BatchNormCall call_of(const BatchNormLayer& layer, std::size_t call,
                      const std::vector<BatchMoments>& by_rank) {
  BatchNormCall read{layer.name(), static_cast<double>(layer.config().norm.options.eps), {}};
  for (const BatchMoments& rank : by_rank) {
    std::vector<PartMoments>& parts = read.parts.emplace_back();
    for (const SliceMoments& slice : rank[call])
      parts.push_back(part_of(slice, layer.output()->shape.channels()));
  }
  return read;
}

// --- digests ---

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

struct Digests {
  std::string weights, statistics;
  std::optional<float> smallest_running_var;

  auto fields() { return std::tie(weights, statistics, smallest_running_var); }
};

Digests digests_of(const Replica& replica) {
  const ReplicaState state = training_replica(replica).read_state();
  Hash weights, statistics;
  weights.add(state.values);
  statistics.add(state.statistics);
  statistics.add(state.tracked);
  return {weights.text(), statistics.text(), smallest_running_var(replica, state)};
}

}  // namespace

std::vector<ReplicaStatistics> read_running_statistics(DataParallel& replicas) {
  return read_all(replicas, read_replica);
}

void write_running_statistics(DataParallel& replicas,
                              std::span<const ReplicaStatistics> statistics) {
  LOCKSTEP_CHECK(statistics.size() == static_cast<std::size_t>(replicas.size()), "statistics of ",
                 statistics.size(), " replicas for ", replicas.size());
  replicas.for_each_replica([&](Replica& replica) {
    write_replica(replica, statistics[static_cast<std::size_t>(replica.rank())]);
  });
}

ReplicaStatistics precise_statistics(DataParallel& replicas, TrainLoader& loader,
                                     std::int64_t batches) {
  const Replica& own = replicas.own_replica();
  const std::span<BatchNormLayer* const> calls = batch_norms_of(own.network());
  std::map<std::string, LayerMoments> merged;  // of a layer, however often it is called
  LongWork work("precise statistics", "batches", batches);
  for (std::int64_t i = 0; i < batches; ++i) {
    replicas.forward(loader.next());
    const std::vector<BatchMoments> by_rank = read_all(replicas, read_batch);
    for (std::size_t call = 0; call < calls.size(); ++call) {
      const BatchNormState* state = calls[call]->state();
      if (state != nullptr) add_call(by_rank, call, state->channels, merged[state->name]);
    }
    work.advance();
  }
  ReplicaStatistics statistics = read_running_statistics(replicas).front();
  for (BatchNormStatistics& layer : statistics) {
    const auto found = merged.find(layer.layer);
    if (found != merged.end() && found->second.count > 0) take_moments(found->second, layer);
  }
  return statistics;
}

ReplicaStatistics precise_statistics(DataParallel& replicas, const Config& config) {
  TrainLoader batches(config.data, loader_options(config, config.micro_batch(replicas.size())));
  return precise_statistics(replicas, batches, config.bn.precise_iters);
}

BatchNormReading read_batch_norms(DataParallel& replicas) {
  const Replica& own = replicas.own_replica();
  const std::vector<BatchMoments> by_rank = read_all(replicas, read_batch);
  BatchNormReading reading;
  for (std::size_t call = 0; const BatchNormLayer* layer : batch_norms_of(own.network())) {
    if (!layer->config().norm.is_frozen()) reading.calls.push_back(call_of(*layer, call, by_rank));
    ++call;
  }
  reading.running = read_running_statistics(replicas);
  return reading;
}

void add_digests(DataParallel& replicas, std::span<RankReport> reports) {
  const std::vector<Digests> digests = read_all(replicas, digests_of);
  for (std::size_t rank = 0; rank < digests.size(); ++rank) {
    reports[rank].weights_hash = digests[rank].weights;
    reports[rank].statistics_hash = digests[rank].statistics;
    reports[rank].smallest_running_var = digests[rank].smallest_running_var;
  }
}

}  // namespace lockstep
