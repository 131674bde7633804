#include "step/placement.h"

#include <unordered_set>

#include "lockstep/core/check.h"
#include "nn/norms/batch_norm_layer.h"

namespace lockstep {
namespace {

std::string norm_obstacle(const Network& network) {
  for (const BatchNormLayer* layer : network.batch_norms()) {
    const NormLayer& norm = layer->config().norm;
    if (norm.frozen) continue;
    if (norm.options.mode != BatchNormMode::kSync) {
      return concat("BatchNorm is not synchronized (", layer->name(), ")");
    }
    if (norm.options.process_groups.size() > 1) {
      return concat("BatchNorm is synchronized in groups (", layer->name(), ")");
    }
  }
  return {};
}

// Each call adds a tree of its own to the gradient.
std::string sharing_obstacle(const Network& network) {
  std::unordered_set<const Parameter*> seen;
  for (const auto& layer : network.layers()) {
    for (const Parameter* parameter : layer->parameters()) {
      if (!seen.insert(parameter).second) return concat("several calls share ", parameter->name);
    }
  }
  return {};
}

}  // namespace

std::string placement_obstacle(const DataParallelOptions& options,
                               const GradientExchangeChoice& exchange, const Network& network) {
  if (!network.backend().sums_by_image()) {
    return "GPUs keep sums image by image only with run.placement_invariant = true";
  }
  if (options.accumulate > 1) return "a batch is cut into micro-batches (batch.accumulate)";
  if (exchange.kind != "owner") {
    return "the gradient exchange is all_reduce, whose sums have an order of their own, not owner";
  }
  if (options.communicator.transport == "nccl") {
    return "the transport is nccl, which exchanges no sums of single images";
  }
  const std::string norm = norm_obstacle(network);
  return norm.empty() ? sharing_obstacle(network) : norm;
}

}  // namespace lockstep
