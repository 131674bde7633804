#pragma once
// Brings buffers that wait on the host between the forward and the backward pass there and back.
// The plan says which leaves after which step, and has to be back before which (liveness.h).

#include <memory>
#include <vector>

#include "lockstep/backend/backend.h"
#include "nn/graph/liveness.h"

namespace lockstep {

/// Owned by the passes whose steps it hears of. Without round trips it does nothing.
class RoundTrips {
 public:
  /// `offload`: of what travels, in the plan's order; null: nothing does.
  RoundTrips(const MemoryPlan& plan, std::unique_ptr<Offload> offload);

  /// Begins a forward pass. What a pass that failed has left under way must not arrive in it.
  void begin();
  /// Before a step's work is issued, and after it has been.
  void before(int step);
  void after(int step);

 private:
  /// Indices of round trips.
  struct AtStep {
    std::vector<int> gone, fetched, needed;  // before the step
    std::vector<int> sent;                   // after it
  };

  void wait(int trip);

  std::vector<AtStep> steps_;
  std::vector<bool> under_way_;  // [trip]
  std::unique_ptr<Offload> offload_;
};

}  // namespace lockstep
