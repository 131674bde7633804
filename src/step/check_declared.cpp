#include "step/check_declared.h"

#include <algorithm>
#include <memory>
#include <ranges>

#include "core/words.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"
#include "step/check_options.h"
#include "step/parameter_ranges.h"
#include "step/scatter.h"

namespace lockstep {
namespace {

// A pattern that stands for no layer is a mistake in writing.
void check_sync_layers(const DataParallelOptions& options,
                       std::span<const BatchNormLayer* const> layers) {
  for (const std::string& pattern : options.norm.options.sync_layers) {
    const bool found = std::any_of(layers.begin(), layers.end(), [&](const BatchNormLayer* layer) {
      return matches_pattern(layer->name(), pattern);
    });
    if (found) continue;
    throw ConfigError(concat("sync_layers: \"", pattern, "\" stands for no ",
                             "BatchNorm layer of the model, which has ",
                             joined(layers | std::views::transform(&BatchNormLayer::name))));
  }
}

/// The images of each set of statistics that a layer takes of a micro-batch, which is of
/// `shares` [rank] images.
std::vector<std::int64_t> images_of_statistics(const NormLayer& norm,
                                               const std::vector<std::int64_t>& shares) {
  std::vector<std::int64_t> images;
  if (norm.options.statistics() == StatisticsOf::kDevices) {
    const auto ranks = static_cast<int>(shares.size());
    const RankPartition& groups = norm.options.process_groups;
    for (const std::vector<int>& group :
         groups.empty() ? contiguous_groups(ranks, ranks) : groups) {
      images.push_back(0);
      for (const int rank : group) images.back() += shares[static_cast<std::size_t>(rank)];
    }
    return images;
  }
  for (const std::int64_t share : shares) {
    const std::vector<std::int64_t> slices = chunk_sizes(share, norm.options.slices());
    images.insert(images.end(), slices.begin(), slices.end());
  }
  return images;
}

void check_values(const BatchNormLayer& layer, const DataParallelOptions& options, int ranks,
                  std::int64_t batch) {
  const NormLayer& norm = layer.config().norm;
  const Shape& shape = layer.output()->shape;
  if (norm.is_frozen() || shape.rows_per_sample() > 1) return;
  for (int micro = 0; micro < options.micro_batches(); ++micro) {
    const std::int64_t images = shard_of(batch, options.micro_batches(), micro).count;
    for (const std::int64_t together : images_of_statistics(norm, chunk_sizes(images, ranks))) {
      if (together != 1) continue;
      throw ReplicaError(
          concat(layer.name(), ": batch statistics need more than one value per channel, got 1: a ",
                 "batch of ", batch, " images leaves one to a set of statistics, and the layer ",
                 "sees ", to_string(shape), "; use a larger batch or images, synchronized ",
                 "BatchNorm, or fewer slices"));
    }
  }
}

// What does not take the images' size is for who wrote the configuration to mend.
Outputs declare(const DataParallelOptions& options, NetworkBuilder& net) {
  try {
    return options.model(net, net.input(options.input.with_batch(1)), options.norm);
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

std::vector<std::string> check_learns(const DataParallelOptions& options,
                                      const ParameterStore& store, bool has_statistics) {
  const auto ranges = parameter_ranges(store, options.optimizer, options.parameter_groups);
  const bool learns = std::any_of(ranges.begin(), ranges.end(),
                                  [](const ParameterRange& range) { return range.lr_scale != 0; });
  if (learns) return {};
  const std::string message =
      "all parameters are frozen or have the learning rate 0: nothing is learnt";
  if (!has_statistics) throw ConfigError(message + "; leave some of them free");
  return {message + " but BatchNorm's running statistics"};
}

}  // namespace

void check_norm_layers(const DataParallelOptions& options,
                       std::span<const BatchNormLayer* const> layers) {
  if (!options.norm.options.synchronizes()) return;
  check_sync_layers(options, layers);
  std::size_t taking = 0, synced = 0;
  for (const BatchNormLayer* layer : layers) {
    if (layer->config().norm.is_frozen()) continue;
    ++taking;
    if (layer->config().norm.options.statistics() == StatisticsOf::kDevices) ++synced;
  }
  if (taking == 0 || synced > 0) return;
  throw ConfigError(concat("synchronized BatchNorm is asked for, but none of the model's ", taking,
                           " BatchNorm layers is: the model does not call the norm layer that it ",
                           "is given; let it, or wrap it in convert_sync_batchnorm"));
}

std::vector<std::string> check_declared(const DataParallelOptions& options, int ranks,
                                        std::span<const std::int64_t> batches) {
  check_options(options);
  check_process_groups(options, ranks);
  const std::unique_ptr<Backend> backend = make_backend(Device{}, 1);
  ParameterStore store;
  NetworkBuilder net(*backend, store, options.norm);
  std::vector<const Value*> values;
  for (const Output& output : declare(options, net)) values.push_back(output.value);
  std::vector<const BatchNormLayer*> norms;
  for (const Layer* layer : net.layers_to(values)) {
    if (const auto* norm = dynamic_cast<const BatchNormLayer*>(layer)) norms.push_back(norm);
  }
  check_norm_layers(options, norms);
  for (const std::int64_t batch : batches) {
    for (const BatchNormLayer* norm : norms) check_values(*norm, options, ranks, batch);
  }
  const bool statistics = std::any_of(norms.begin(), norms.end(), [](const BatchNormLayer* norm) {
    return norm->state() != nullptr && !norm->config().norm.is_frozen();
  });
  return check_learns(options, store, statistics);
}

}  // namespace lockstep
