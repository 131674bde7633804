#pragma once
// Whether the options of a data-parallel run fit each other and its devices, and whether it matters
// how a global batch is spread over these.

#include <string>

#include "lockstep/nn/network.h"
#include "lockstep/parallel/options.h"
#include "step/batch_input.h"

namespace lockstep {

/// Throws ConfigError naming the option, what was expected and what to do.
void check_options(const DataParallelOptions& options);

/// The same of ranks that share their statistics. `ranks`: of all processes. Here, and not first
/// when the layers meet.
void check_process_groups(const DataParallelOptions& options, int ranks);

/// The same for steps that are replayed. `can_record`: of the transport.
void check_recording(const DataParallelOptions& options, const GradientExchangeChoice& exchange,
                     bool can_record);
/// The same for what their losses are.
void check_recorded_losses(LossNodes losses);

/// Why training on other devices, or on another number of them, comes to other bits: a clause for
/// messages, "BatchNorm is not synchronized (stem.bn)". Empty where it does not. `network`: a
/// replica's.
std::string placement_obstacle(const DataParallelOptions& options,
                               const GradientExchangeChoice& exchange, const Network& network);

}  // namespace lockstep
