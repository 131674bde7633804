#include "core/profiler.h"

#include <atomic>

namespace lockstep {
namespace {

std::atomic<Profiler*> profiler_of_process{nullptr};

}  // namespace

Profiler* set_profiler(Profiler* profiler) { return profiler_of_process.exchange(profiler); }

Profiler* profiler() { return profiler_of_process.load(std::memory_order_acquire); }

void start_profiler() {
  if (Profiler* const told = profiler()) told->start();
}

void stop_profiler() {
  if (Profiler* const told = profiler()) told->stop();
}

}  // namespace lockstep
