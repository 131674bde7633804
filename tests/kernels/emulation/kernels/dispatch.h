#pragma once
// Where the emulation's launches go. Apart from emulation.h, whose names are those of CUDA's own
// headers.

#include <cstdint>
#include <functional>

#include "kernels/device/stream.h"

namespace lockstep::emulation {

/// `dispatch(stream, work, early)` has `work` done in the stream's turn, by one thread at a time.
/// `early`: it may start before what is in front of it ends. Null, the default: done at once.
using Dispatch = void (*)(gpu::Stream stream, std::function<void()> work, bool early);
Dispatch& dispatch();

/// Launches since the program's start.
std::int64_t launches();
/// Those of them that may start before the kernel in front of them ends.
std::int64_t dependent_launches();

}  // namespace lockstep::emulation
