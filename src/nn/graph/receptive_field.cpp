// How far an output looks around a pixel.

#include <algorithm>
#include <map>
#include <ranges>

#include "nn/graph/network_impl.h"

namespace lockstep {
namespace {

using Wanted = std::map<const Value*, Positions>;

void want(Wanted& wanted, const Value* value, const Positions& positions) {
  const auto [found, is_new] = wanted.try_emplace(value, positions);
  if (is_new) return;
  found->second.first = std::min(found->second.first, positions.first);
  found->second.last = std::max(found->second.last, positions.last);
}

/// What `layers` read of `input` for one position of `output`; nullopt: all of it.
std::optional<Positions> reads_for(std::span<const std::unique_ptr<Layer>> layers,
                                   const Value* output, const Value* input, std::int64_t position,
                                   int axis) {
  Wanted wanted{{output, {position, position}}};
  for (const auto& layer : std::views::reverse(layers)) {
    const auto found = wanted.find(layer->output());
    if (found == wanted.end()) continue;
    const std::optional<Positions> reads = layer->reads(found->second, axis);
    if (!reads) return std::nullopt;
    for (const Value* read : layer->inputs()) want(wanted, read, *reads);
  }
  const auto found = wanted.find(input);
  return found == wanted.end() ? Positions{position, position} : found->second;
}

}  // namespace

std::optional<std::int64_t> Network::receptive_radius(std::size_t output,
                                                      std::int64_t divisor) const {
  const Value* const from = impl_->declared->outputs.at(output).value;
  const Value* const to = impl_->declared->input;
  if (from->shape.rank() != 4 || to->shape.rank() != 4) return std::nullopt;
  std::int64_t radius = 0;
  for (const int axis : {1, 2}) {
    if (from->shape[axis] != to->shape[axis]) return std::nullopt;
    const std::int64_t middle = to->shape[axis] / 2 / divisor * divisor;
    for (std::int64_t position = middle; position < middle + divisor; ++position) {
      const auto reads = reads_for(layers(), from, to, position, axis);
      if (!reads) return std::nullopt;
      radius = std::max({radius, position - reads->first, reads->last - position});
    }
  }
  return radius;
}

}  // namespace lockstep
