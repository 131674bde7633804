#pragma once
// The whole program as a function: `main` of the binary, and of a user's own binary with models and
// data sets of one's own beside those of the library.

#include "lockstep/data/dataset.h"
#include "lockstep/nn/model.h"

namespace lockstep {

/// What a program offers beside the library's own.
struct CliOptions {
  // For model.arch and for data.layout; one with the name of a built-in one replaces it.
  ModelTable models = {};
  LayoutTable datasets = {};
};

/// Call it first in `main`. Threads that wait for others of their device then look for them for
/// microseconds, and sleep. Otherwise OpenMP lets them look for milliseconds, and what runs beside
/// them gets no core. OpenMP reads this from the environment before `main`, so the program
/// is executed once more, with GOMP_SPINCOUNT=1000. Does nothing where the user has set that or
/// OMP_WAIT_POLICY.
void sleep_while_waiting(char* const* argv);

/// Parses the command line and carries it out. Errors are written to stderr. Returns the exit code:
/// 0 done, 1 failure, 2 usage or configuration, 3 data, 4 loss or gradient not finite, 5 replica
/// stalled or failed, 130 interrupted. Ends the process at once when a replica's thread hangs in
/// foreign code after a failure.
int run_cli(int argc, const char* const* argv, const CliOptions& options = {});

}  // namespace lockstep
