#pragma once
// What an exchange of BatchNorm statistics costs inside a recorded step.

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/device.h"

namespace lockstep {

/// Microseconds of one exchange, one figure per iteration: the difference between a recorded chain
/// of BatchNorm's moments and normalisation on tiny tensors with `exchanges` exchanges between
/// them, and the same chain without, per exchange. Empty where the transport between the devices
/// cannot record a step.
std::vector<double> captured_exchange_microseconds(std::span<const Device> devices,
                                                   std::int64_t channels, int exchanges, int iters);

}  // namespace lockstep
