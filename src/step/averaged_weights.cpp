#include "step/averaged_weights.h"

namespace lockstep {

AveragedWeights::AveragedWeights(double decay, const float* weights, std::int64_t elements,
                                 Backend& backend)
    : weights_(weights),
      elements_(elements),
      share_(static_cast<float>(1 - decay)),
      backend_(backend) {
  if (decay == 0 || elements == 0) return;
  average_ = backend_.allocate(static_cast<std::size_t>(elements) * sizeof(float));
}

void AveragedWeights::follow(const OptimizerShard& update) {
  if (!any()) return;
  backend_.optimizer().average_weights({.weights = weights_,
                                        .average = static_cast<float*>(average_.data()),
                                        .elements = elements_,
                                        .share = share_,
                                        .updates = update.updates,
                                        .losses = update.losses});
}

Tensor AveragedWeights::tensor(const void* memory) const {
  return {const_cast<void*>(memory), Shape{1, elements_}, DType::kFloat32};
}

void AveragedWeights::save(float* average) const {
  if (any()) backend_.download(average, tensor(average_.data()));
}

void AveragedWeights::restore(const float* average) {
  if (any()) backend_.upload(tensor(average_.data()), average);
}

void AveragedWeights::restart() {
  if (any()) backend_.copy(tensor(weights_), tensor(average_.data()), false);
}

}  // namespace lockstep
