#pragma once
// What the processes of a run tell each other between steps, so that each of them knows what is
// known of all ranks. All are collective: every process calls them in the same order. `say`: gives
// what this process says, gets what each does, [process] (all_gather of sync/fleet.h).

#include <functional>
#include <span>
#include <vector>

#include "lockstep/optim/optimizer.h"
#include "lockstep/sync/fleet.h"
#include "parallel/replica.h"
#include "parallel/step.h"

namespace lockstep {

using Say = std::function<std::vector<Bytes>(const Bytes& own)>;

/// outcomes [rank], of which those of this process's ranks are there. The others' spans then point
/// into `memory`.
void share_outcomes(const Say& say, const Roster& roster, std::span<StepOutcome> outcomes,
                    std::vector<std::vector<double>>& memory);

/// batches [index]: rank index % ranks has evaluated it. Confusion matrices are added up.
void share_evaluation(const Say& say, const Roster& roster, std::span<EvalOutcome> batches,
                      std::span<std::int64_t> confusion);

/// Process 0's becomes everyone's.
void share_state(const Say& say, const Roster& roster, ReplicaState& state);

/// Every process has what its ranks own of it.
void share_optimizer_state(const Say& say, const Roster& roster, OptimizerState& state);

}  // namespace lockstep
