#include "train/replica_readings.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <map>
#include <string>

#include "backend/moments.h"
#include "lockstep/core/check.h"
#include "lockstep/core/progress.h"
#include "nn/norms/batch_norm_layer.h"
#include "step/replica.h"
#include "sync/byte_stream.h"

namespace lockstep {
namespace {

/// write(rank, writer) for each rank of this process, read(rank, reader) for those of the others,
/// in their order; nothing for one process. All processes call it.
template <typename Write, typename Read>
void share_ranks(DataParallel& replicas, const Write& write, const Read& read) {
  const RankLayout& layout = replicas.rank_layout();
  const auto for_ranks_of = [&layout](int process, const auto& work) {
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      if (layout.process_of(rank) == process) work(rank);
    }
  };
  PeerExchange()(
      replicas,
      [&](ByteWriter& writer) {
        for_ranks_of(layout.process, [&](int rank) { write(rank, writer); });
      },
      [&](int process, ByteReader& reader) {
        for_ranks_of(process, [&](int rank) { read(rank, reader); });
      });
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

/// What one call of a layer saw of a batch on one rank, on the host.
struct CallMoments {
  std::int64_t count = 0, parts = 1;
  std::vector<float> values;  // [parts, 2, C]; empty where the count is 0
};
/// [call][slice]; a call in evaluation mode has no slices.
using BatchMoments = std::vector<std::vector<CallMoments>>;

CallMoments read_slot(Backend& backend, const StatSlot& slot, std::int64_t channels) {
  CallMoments read{slot.count, slot.parts, {}};
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
    if (layer->config().norm.is_frozen() || layer->state() == nullptr) continue;
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

/// Ranks of other processes have the layers of this one's.
void share_statistics(DataParallel& replicas, std::vector<ReplicaStatistics>& statistics) {
  const ReplicaStatistics& own =
      statistics[static_cast<std::size_t>(replicas.rank_layout().first_rank())];
  share_ranks(
      replicas,
      [&](int rank, ByteWriter& writer) {
        for (const BatchNormStatistics& layer : statistics[static_cast<std::size_t>(rank)]) {
          writer.add_all(layer.mean);
          writer.add_all(layer.var);
          writer.add(layer.num_batches_tracked);
        }
      },
      [&](int rank, ByteReader& reader) {
        ReplicaStatistics theirs = own;
        for (BatchNormStatistics& layer : theirs) {
          reader.get_all(layer.mean);
          reader.get_all(layer.var);
          layer.num_batches_tracked = reader.get<std::int64_t>();
        }
        statistics[static_cast<std::size_t>(rank)] = std::move(theirs);
      });
}

void share_moments(DataParallel& replicas, std::vector<BatchMoments>& by_rank) {
  share_ranks(
      replicas,
      [&](int rank, ByteWriter& writer) {
        for (const auto& call : by_rank[static_cast<std::size_t>(rank)]) {
          writer.add(call.size());
          for (const CallMoments& slice : call) {
            writer.add(slice.count);
            writer.add(slice.parts);
            writer.add(slice.values.size());
            writer.add_all(slice.values);
          }
        }
      },
      [&](int rank, ByteReader& reader) {
        BatchMoments& calls = by_rank[static_cast<std::size_t>(rank)];
        calls.resize(by_rank[static_cast<std::size_t>(replicas.rank_layout().first_rank())].size());
        for (auto& call : calls) {
          call.resize(reader.get<std::size_t>());
          for (CallMoments& slice : call) {
            slice.count = reader.get<std::int64_t>();
            slice.parts = reader.get<std::int64_t>();
            slice.values.resize(reader.get<std::size_t>());
            reader.get_all(slice.values);
          }
        }
      });
}

/// What all ranks saw in a call, merged as a step merges it: the same bits however many they are,
/// where slots have a part for each image.
void add_call(const std::vector<BatchMoments>& by_rank, std::size_t call, std::int64_t channels,
              LayerMoments& moments) {
  std::vector<StatSlot> slots;
  for (const BatchMoments& rank : by_rank) {
    for (const CallMoments& slice : rank[call]) {
      slots.push_back({slice.count, slice.values.data(), slice.parts});
    }
  }
  std::vector<float> merged(static_cast<std::size_t>(2 * channels));
  const std::int64_t count = merge_moments(slots, channels, merged.data());
  const std::vector<double> values(merged.begin(), merged.end());
  moments.add(count, values.data(), values.data() + channels, static_cast<std::size_t>(channels));
}

// --- what BatchNorm saw ---

// What this replica's part of the call saw.
std::vector<PartMoments> read_parts(const Replica& replica, const BatchNormLayer& layer) {
  const std::int64_t channels = layer.output()->shape.channels();
  std::vector<PartMoments> parts;
  for (const StatSlot& local : layer.local_moments()) {
    parts.push_back({.count = local.count, .mean = {}, .m2 = {}});
    if (local.count == 0) continue;
    const std::vector<float> slot = read_moments(replica.backend(), local, channels);
    parts.back().mean.assign(slot.begin(), slot.begin() + channels);
    parts.back().m2.assign(slot.begin() + channels, slot.end());
  }
  return parts;
}

std::vector<const BatchNormLayer*> layers_in_training(const Replica& replica) {
  std::vector<const BatchNormLayer*> layers;
  for (const BatchNormLayer* layer : batch_norms_of(replica.network())) {
    if (!layer->config().norm.is_frozen()) layers.push_back(layer);
  }
  return layers;
}

void share_parts(DataParallel& replicas, BatchNormReading& reading) {
  share_ranks(
      replicas,
      [&](int rank, ByteWriter& writer) {
        for (const BatchNormCall& call : reading.calls) {
          const std::vector<PartMoments>& parts = call.parts[static_cast<std::size_t>(rank)];
          writer.add(parts.size());
          for (const PartMoments& part : parts) {
            writer.add(part.count);
            writer.add(part.mean.size());
            writer.add_all(part.mean);
            writer.add_all(part.m2);
          }
        }
      },
      [&](int rank, ByteReader& reader) {
        for (BatchNormCall& call : reading.calls) {
          std::vector<PartMoments>& parts = call.parts[static_cast<std::size_t>(rank)];
          parts.resize(reader.get<std::size_t>());
          for (PartMoments& part : parts) {
            part.count = reader.get<std::int64_t>();
            part.mean.resize(reader.get<std::size_t>());
            part.m2.resize(part.mean.size());
            reader.get_all(part.mean);
            reader.get_all(part.m2);
          }
        }
      });
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

void add_digest(const Replica& replica, RankReport& report) {
  const ReplicaState state = training_replica(replica).read_state();
  Hash weights, statistics;
  weights.add(state.values);
  statistics.add(state.statistics);
  statistics.add(state.tracked);
  report.weights_hash = weights.text();
  report.statistics_hash = statistics.text();
  report.smallest_running_var = smallest_running_var(replica, state);
}

}  // namespace

std::vector<ReplicaStatistics> read_running_statistics(DataParallel& replicas) {
  std::vector<ReplicaStatistics> statistics(static_cast<std::size_t>(replicas.size()));
  replicas.for_each_replica([&](Replica& replica) {
    statistics[static_cast<std::size_t>(replica.rank())] = read_replica(replica);
  });
  share_statistics(replicas, statistics);
  return statistics;
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
  const Replica& own = replicas.replica(replicas.rank_layout().first_rank());
  const std::span<BatchNormLayer* const> calls = batch_norms_of(own.network());
  std::vector<BatchMoments> by_rank(static_cast<std::size_t>(replicas.size()));
  std::map<std::string, LayerMoments> merged;  // of a layer, however often it is called
  LongWork work("precise statistics", "batches", batches);
  for (std::int64_t i = 0; i < batches; ++i) {
    replicas.forward(loader.next());
    replicas.for_each_replica([&](Replica& replica) {
      by_rank[static_cast<std::size_t>(replica.rank())] = read_batch(replica);
    });
    share_moments(replicas, by_rank);
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
  TrainLoader batches(config.data, {.batch = config.micro_batch(replicas.size()),
                                    .drop_last = config.batch.drop_last,
                                    .seed = config.run.seed,
                                    .divisor = config.size_divisor()});
  return precise_statistics(replicas, batches, config.bn.precise_iters);
}

BatchNormReading read_batch_norms(DataParallel& replicas) {
  BatchNormReading reading;
  const std::vector<std::vector<PartMoments>> parts(static_cast<std::size_t>(replicas.size()));
  for (const BatchNormLayer* layer :
       layers_in_training(replicas.replica(replicas.rank_layout().first_rank()))) {
    const auto eps = static_cast<double>(layer->config().norm.options.eps);
    reading.calls.push_back({layer->name(), eps, parts});
  }
  replicas.for_each_replica([&](const Replica& replica) {
    for (std::size_t call = 0; const BatchNormLayer* layer : layers_in_training(replica)) {
      const auto rank = static_cast<std::size_t>(replica.rank());
      reading.calls[call++].parts[rank] = read_parts(replica, *layer);
    }
  });
  share_parts(replicas, reading);
  reading.running = read_running_statistics(replicas);
  return reading;
}

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

}  // namespace lockstep
