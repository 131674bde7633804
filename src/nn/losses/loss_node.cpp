#include "lockstep/nn/loss_node.h"

#include <numeric>

namespace lockstep {

LossNode::LossNode(const LossSite& site, float weight, const LossTarget& target)
    : output_(site.output),
      weight_(weight),
      target_(target),
      backend_(site.network.backend()),
      index_(site.network.output_index(site.output)),
      classes_(site.network.output(index_).shape.channels()) {}

Tensor LossNode::target(const Network& network, void* memory) const {
  const Shape& output = network.output(index_).shape;
  if (!takes_labels()) return {memory, output};
  return {memory, output.with_channels(1), DType::kUInt16};
}

double LossNode::normalizer(const LossCounts& counts) const {
  return mean_over(counts) / static_cast<double>(weight_);
}

double LossNode::terms(const LossCounts& counts) const {
  if (!takes_labels()) return counts.elements;
  return std::accumulate(counts.labels.begin(), counts.labels.end(), 0.0);
}

}  // namespace lockstep
