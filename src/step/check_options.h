#pragma once
// Whether the options of a data-parallel run fit each other and its devices.

#include "lockstep/parallel/data_parallel.h"

namespace lockstep {

/// Throws Error or ConfigError naming the option, what was expected and what to do. `ranks`: of all
/// processes.
void check_options(const DataParallelOptions& options, int ranks);

/// The same for steps that are replayed. `can_record`: of the transport.
void check_recording(const DataParallelOptions& options, const GradientExchangeChoice& exchange,
                     bool can_record);

}  // namespace lockstep
