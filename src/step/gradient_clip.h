#pragma once
// A rank's end of the gradient's bounds (GradientClipping). The norm is that of all parameters, of
// which a rank knows the squares of those that it owns: ranks show each other theirs, and each adds
// up all of them in the order of the parameters.
//
// Without a bound of the norm the factor is 1: nothing is computed, and no rank waits for another.

#include <span>
#include <vector>

#include "lockstep/optim/optimizer.h"
#include "lockstep/sync/exchange.h"
#include "step/gradient_reducer.h"

namespace lockstep {

/// Owned by its replica's TrainStep, used by the rank's thread.
class GradientClip {
 public:
  /// `elements`: of the flat parameters; `share`: the rank's. The rest outlives the object.
  GradientClip(const GradientClipping& bounds, std::int64_t elements, const UpdateShare& share,
               Backend& backend, Communicator& communicator);

  /// Says in the shard what the rank's update does to the gradient. Its gradients are reduced, and
  /// its elements begin with the first that the rank owns. All ranks call it in a step, or none.
  void bound(OptimizerShard& shard);

 private:
  void point_at(std::span<const StatSlot> slots);

  OptimizerOperations& optimizer_;
  Communicator& communicator_;  // of the owners
  Exchange exchange_{"gradient norm"};
  const float max_norm_, most_;
  const int owner_;
  std::vector<GradientSquares> squares_;  // [owner]
  std::int64_t blocks_ = 0;               // of the owner with most
  Storage own_;  // [blocks_]; the ranks meet behind every update, so that one is enough
  Storage factor_;
};

}  // namespace lockstep
