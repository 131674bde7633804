#pragma once
// What replicas or their first steps would refuse, found by declaring the network: without memory,
// devices and images.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/parallel/options.h"
#include "nn/norms/batch_norm_layer.h"

namespace lockstep {

/// Throws ConfigError unless the norm layers are those that the options ask for.
void check_norm_layers(const DataParallelOptions& options,
                       std::span<const BatchNormLayer* const> layers);

/// Throws ConfigError for options that do not fit each other, for a shape that the model does not
/// take, and where nothing can change; ReplicaError, as the step would, for a layer to which one
/// value per channel is left. `ranks`: of all processes; `batches`: the sizes that global batches
/// will have. Returns what is odd.
std::vector<std::string> check_declared(const DataParallelOptions& options, int ranks,
                                        std::span<const std::int64_t> batches);

}  // namespace lockstep
