#include <unistd.h>

#include <cstdlib>

#include "lockstep/app.h"

namespace lockstep {

void sleep_while_waiting(char* const* argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  // docs/notes/bench.md has the measurements of others.
  if (setenv("GOMP_SPINCOUNT", "1000", 1) != 0) return;
  execv("/proc/self/exe", argv);  // where it comes back, all works, and waits as OpenMP does
}

}  // namespace lockstep
