// The only place where an exception becomes an exit code.

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "lockstep/cli/run_cli.h"
#include "lockstep/train/exit_code.h"
#include "lockstep/train/trainer.h"

int main(int argc, char** argv) {
  try {
    return lockstep::run_cli(argc, argv);
  } catch (const lockstep::StuckReplica& error) {
    std::fprintf(stderr, "lockstep: error: %s\n", error.what());
    std::fflush(nullptr);
    std::_Exit(lockstep::kExitReplica);  // a thread still uses what destructors would free
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: error: %s\n", error.what());
    return lockstep::exit_code_of(error);
  }
}
