#pragma once
// What losses against labels have in common.

#include <vector>

#include "lockstep/nn/loss_node.h"

namespace lockstep {

/// A cross-entropy of the pass, its samples' weights included.
inline CrossEntropy label_arguments(const LossPass& pass, int ignore_index) {
  CrossEntropy arguments;
  arguments.logits = pass.output;
  arguments.labels = pass.target;
  arguments.ignore_index = ignore_index;
  arguments.normalizer = pass.normalizer;
  arguments.row_weights = pass.sample_weights;
  arguments.rows_per_weight = pass.output.shape.rows_per_sample();
  arguments.grad_logits = pass.grad_output;
  arguments.loss = pass.loss;
  arguments.image_losses = pass.image_losses;
  arguments.grad_scale = pass.grad_scale;
  return arguments;
}

/// The valid labels, each times the weight of its class. `class_weight` [class]; empty: all 1.
inline double weighted_labels(const LossCounts& counts, const std::vector<float>& class_weight) {
  double sum = 0;
  for (std::size_t c = 0; c < counts.labels.size(); ++c) {
    const double weight = class_weight.empty() ? 1.0 : static_cast<double>(class_weight[c]);
    sum += counts.labels[c] * weight;
  }
  return sum;
}

}  // namespace lockstep
