#include "nn/graph/declared_network.h"

#include <algorithm>
#include <iterator>
#include <ranges>
#include <unordered_map>

#include "core/words.h"
#include "nn/layers/conv2d_layer.h"

namespace lockstep {

Outputs::const_iterator find_output(const Outputs& outputs, const std::string& name) {
  const auto found = std::find_if(outputs.begin(), outputs.end(),
                                  [&](const Output& output) { return output.name == name; });
  if (found != outputs.end()) return found;
  throw ConfigError(concat("the network has no output '", name, "'; it has ",
                           joined(outputs | std::views::transform(&Output::name))));
}

bool DeclaredNetwork::owns(const Value* value) const {
  return std::any_of(values.begin(), values.end(),
                     [&](const auto& own) { return own.get() == value; });
}

std::unordered_set<const Value*> DeclaredNetwork::needed_for(
    std::unordered_set<const Value*> wanted) const {
  wanted.insert(input);
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    if (!wanted.contains((*layer)->output())) continue;
    wanted.insert((*layer)->inputs().begin(), (*layer)->inputs().end());
  }
  return wanted;
}

void DeclaredNetwork::leave_out_all_but(const std::vector<std::string>& names) {
  std::unordered_set<const Value*> wanted;
  for (const std::string& name : names) wanted.insert(find_output(outputs, name)->value);
  const std::unordered_set<const Value*> needed = needed_for(std::move(wanted));
  std::erase_if(batch_norms, [&](const Layer* layer) { return !needed.contains(layer->output()); });
  std::erase_if(layers, [&](const auto& layer) { return !needed.contains(layer->output()); });
  const auto rest = std::stable_partition(values.begin(), values.end(), [&](const auto& value) {
    return needed.contains(value.get());
  });
  left_out.assign(std::make_move_iterator(rest), std::make_move_iterator(values.end()));
  values.erase(rest, values.end());
}

// In an evaluation a BatchNorm is a pass over memory, which the convolution before it spares where
// nobody else reads what it writes.
void DeclaredNetwork::join_convolutions_and_batch_norms(DType activations) {
  std::unordered_map<const Value*, int> readers;
  for (const Output& output : outputs) ++readers[output.value];
  for (const auto& layer : layers) {
    for (const Value* value : layer->inputs()) ++readers[value];
  }
  for (std::size_t i = 1; i < layers.size(); ++i) {
    auto* convolution = dynamic_cast<Conv2dLayer*>(layers[i - 1].get());
    auto* batch_norm = dynamic_cast<BatchNormLayer*>(layers[i].get());
    if (convolution == nullptr || batch_norm == nullptr || batch_norm->state() == nullptr) continue;
    const Value* between = convolution->output();
    if (batch_norm->inputs()[0] != between || readers[between] > 1) continue;
    if (convolution->can_normalize(backend.convolutions(), activations)) {
      convolution->take_over(*batch_norm);
    }
  }
}

}  // namespace lockstep
