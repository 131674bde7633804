#include "step/step_losses.h"

#include <algorithm>
#include <set>

#include "backend/operands.h"

namespace lockstep {

StepLosses::StepLosses(const std::vector<NamedLoss>& losses, const Network& network)
    : network_(network), backend_(network.backend()) {
  for (int i = 0; const NamedLoss& loss : losses) {
    nodes_.push_back(loss.loss.make_node({loss.output, network, i++}));
  }
  allocate_added_gradient();
}

// The first loss at an output writes the gradient there, the others theirs beside it.
void StepLosses::allocate_added_gradient() {
  std::set<std::size_t> written;
  std::size_t bytes = 0;
  for (const auto& loss : nodes_) {
    adds_.push_back(!written.insert(loss->output_index()).second);
    if (adds_.back()) {
      bytes = std::max(bytes, dense_bytes(network_.output(loss->output_index())));
    }
  }
  if (bytes > 0) added_gradient_ = backend_.allocate(bytes);
}

Tensor StepLosses::gradient_of(std::size_t loss) const {
  const Tensor& written = network_.output_grad(nodes_[loss]->output_index());
  return adds_[loss] ? Tensor(added_gradient_.data(), written.shape, written.dtype) : written;
}

void StepLosses::compute(const LossOperands& operands) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const std::size_t output = nodes_[i]->output_index();
    const Tensor gradient = gradient_of(i);
    nodes_[i]->compute({.output = network_.output(output),
                        .target = operands.input.target(i),
                        .grad_output = gradient,
                        .sample_weights = operands.input.sample_weights(),
                        .normalizer = {0.0, &operands.scalars.normalizers[i]},
                        .grad_scale = operands.scaler.scale(),
                        .loss = &operands.totals.sums().losses[i],
                        .image_losses = operands.totals.image_losses(i),
                        .communicator = operands.communicator});
    if (adds_[i]) backend_.copy(gradient, network_.output_grad(output), true);
  }
}

}  // namespace lockstep
