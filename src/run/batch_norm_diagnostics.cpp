#include "run/batch_norm_diagnostics.h"

#include <algorithm>
#include <cmath>

#include "backend/moments.h"
#include "nn/norms/batch_norm_layer.h"
#include "run/share_ranks.h"
#include "step/replica.h"

namespace lockstep {
namespace {

// One channel over all parts, in double.
struct Channel {
  double within = 0, between = 0, log_ratio = 0;
};

Channel compare_channel(std::span<const PartMoments> parts, std::size_t c, double total,
                        double eps) {
  double mean = 0;
  for (const PartMoments& part : parts) {
    mean += static_cast<double>(part.count) / total * static_cast<double>(part.mean[c]);
  }
  Channel channel;
  for (const PartMoments& part : parts) {
    const double distance = static_cast<double>(part.mean[c]) - mean;
    channel.within += static_cast<double>(part.m2[c]) / total;
    channel.between += static_cast<double>(part.count) / total * distance * distance;
  }
  const double whole = channel.within + channel.between + eps;
  for (const PartMoments& part : parts) {
    const double own = static_cast<double>(part.m2[c]) / static_cast<double>(part.count) + eps;
    channel.log_ratio += std::abs(std::log(own / whole)) / static_cast<double>(parts.size());
  }
  return channel;
}

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
  for (const BatchNormLayer* layer : replica.network().batch_norms()) {
    if (!layer->config().norm.frozen) layers.push_back(layer);
  }
  return layers;
}

// Largest distance of any device's running mean of `layer` from device 0's.
double running_mean_spread(const std::vector<ReplicaStatistics>& statistics,
                           const std::string& layer) {
  double spread = 0;
  for (std::size_t s = 0; s < statistics.front().size(); ++s) {
    const std::vector<float>& first = statistics.front()[s].mean;
    if (statistics.front()[s].layer != layer) continue;
    for (const ReplicaStatistics& replica : statistics) {
      for (std::size_t c = 0; c < first.size(); ++c) {
        spread = std::max(spread, std::abs(static_cast<double>(replica[s].mean[c]) -
                                           static_cast<double>(first[c])));
      }
    }
  }
  return spread;
}

}  // namespace

BatchNormDiagnostics compare_parts(std::span<const PartMoments> all, double eps) {
  std::vector<PartMoments> parts;
  for (const PartMoments& part : all) {
    if (part.count > 0) parts.push_back(part);
  }
  BatchNormDiagnostics lens;
  lens.parts = static_cast<int>(parts.size());
  if (parts.empty()) return lens;
  lens.channels = static_cast<std::int64_t>(parts.front().mean.size());
  for (const PartMoments& part : parts) lens.count += part.count;
  const auto channels = static_cast<double>(lens.channels);
  for (std::size_t c = 0; c < parts.front().mean.size(); ++c) {
    const Channel channel = compare_channel(parts, c, static_cast<double>(lens.count), eps);
    const double ratio = channel.between / (channel.within + eps);
    lens.within += channel.within / channels;
    lens.between += channel.between / channels;
    lens.ratio_mean += ratio / channels;
    lens.ratio_max = std::max(lens.ratio_max, ratio);
    lens.log_var_ratio += channel.log_ratio / channels;
  }
  return lens;
}

namespace {

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

}  // namespace

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

std::vector<BatchNormDiagnostics> diagnose(const BatchNormReading& reading, std::int64_t step) {
  std::vector<BatchNormDiagnostics> lenses;
  for (const BatchNormCall& call : reading.calls) {
    std::vector<PartMoments> all;
    for (const auto& of_rank : call.parts) all.insert(all.end(), of_rank.begin(), of_rank.end());
    BatchNormDiagnostics lens = compare_parts(all, call.eps);
    lens.layer = call.layer;
    lens.step = step;
    lens.running_mean_spread = running_mean_spread(reading.running, call.layer);
    lenses.push_back(std::move(lens));
  }
  return lenses;
}

}  // namespace lockstep
