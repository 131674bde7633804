#pragma once
// One rank's part of the gradient exchange: reduce-scatter, SGD and all-gather in one pass over the
// parameters it owns. It reads every replica's gradients and writes every replica's weights, so all
// ranks must have finished their backward pass before it and must not start a forward pass until
// all are done.

#include <span>
#include <vector>

#include "lockstep/optim/sgd.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {

/// Owned by the run, used by its rank's thread.
class GradientExchange {
 public:
  /// Allocates `replicas[rank].velocity`. All replicas are built already. `lr`: device memory of
  /// this rank; `losses` [rank]: of every rank.
  GradientExchange(std::span<Replica> replicas, int rank, const SgdOptions& options,
                   const float* lr, std::vector<const double*> losses);

  /// Sums the owned gradients over the ranks in rank order, updates, and writes to every replica;
  /// changes nothing when one of the losses is not finite.
  void update();

  /// Momentum of the owned elements, [1, size] on this rank's device, and where they start.
  const Tensor& velocity() const { return velocity_; }
  std::int64_t begin() const { return begin_; }

 private:
  Backend& backend_;
  std::int64_t begin_ = 0;              // of the owned elements, in the flat parameters
  std::vector<ParameterRange> ranges_;  // relative to begin_
  std::vector<const float*> grads_;     // [rank], at begin_
  std::vector<float*> weights_;         // [rank], at begin_
  const float* lr_;
  std::vector<const double*> losses_;  // [rank]
  Tensor velocity_;
  float momentum_;
};

}  // namespace lockstep
