#include "step/gradient_buckets.h"

#include <algorithm>
#include <unordered_map>

namespace lockstep {
namespace {

/// The first layer that uses each parameter: the last one to add to its gradient.
std::unordered_map<const Parameter*, std::size_t> first_uses(const Network& network) {
  std::unordered_map<const Parameter*, std::size_t> first;
  for (std::size_t layer = 0; layer < network.layers().size(); ++layer) {
    for (const Parameter* parameter : network.layers()[layer]->parameters()) {
      first.emplace(parameter, layer);
    }
  }
  return first;
}

}  // namespace

std::vector<GradientBucket> plan_gradient_buckets(const Network& network,
                                                  const GradientExchangeOptions& options) {
  const ParameterStore& store = network.parameters();
  const auto first = first_uses(network);
  const std::size_t last_layer = network.layers().size() - 1;
  std::vector<GradientBucket> buckets;
  GradientBucket next{store.elements(), store.elements(), last_layer};
  for (std::size_t i = store.parameters().size(); i-- > 0;) {
    const Parameter& parameter = *store.parameters()[i];
    const auto use = first.find(&parameter);
    // A parameter that no layer uses has a gradient of zero at any time.
    if (use != first.end()) next.ready_after = std::min(next.ready_after, use->second);
    next.begin = parameter.offset;
    const std::size_t bytes = static_cast<std::size_t>(next.end - next.begin) * sizeof(float);
    if (i > 0 && bytes < (buckets.empty() ? options.first_bucket_bytes : options.bucket_bytes)) {
      continue;
    }
    buckets.push_back(next);
    next = {next.begin, next.begin, last_layer};
  }
  // Only a store that another network has filled in another order needs it.
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const auto& a, const auto& b) { return a.ready_after > b.ready_after; });
  return buckets;
}

}  // namespace lockstep
