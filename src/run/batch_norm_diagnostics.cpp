#include "run/batch_norm_diagnostics.h"

#include <algorithm>
#include <cmath>

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
  BatchNormDiagnostics layer;
  layer.parts = static_cast<int>(parts.size());
  if (parts.empty()) return layer;
  layer.channels = static_cast<std::int64_t>(parts.front().mean.size());
  for (const PartMoments& part : parts) layer.count += part.count;
  const auto channels = static_cast<double>(layer.channels);
  for (std::size_t c = 0; c < parts.front().mean.size(); ++c) {
    const Channel channel = compare_channel(parts, c, static_cast<double>(layer.count), eps);
    const double ratio = channel.between / (channel.within + eps);
    layer.within += channel.within / channels;
    layer.between += channel.between / channels;
    layer.ratio_mean += ratio / channels;
    layer.ratio_max = std::max(layer.ratio_max, ratio);
    layer.log_var_ratio += channel.log_ratio / channels;
  }
  return layer;
}

std::vector<BatchNormDiagnostics> diagnose(const BatchNormReading& reading, std::int64_t step) {
  std::vector<BatchNormDiagnostics> layers;
  for (const BatchNormCall& call : reading.calls) {
    std::vector<PartMoments> all;
    for (const auto& of_rank : call.parts) all.insert(all.end(), of_rank.begin(), of_rank.end());
    BatchNormDiagnostics layer = compare_parts(all, call.eps);
    layer.layer = call.layer;
    layer.step = step;
    layer.running_mean_spread = running_mean_spread(reading.running, call.layer);
    layers.push_back(std::move(layer));
  }
  return layers;
}

}  // namespace lockstep
