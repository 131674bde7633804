// The only place where an exception becomes an exit code.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "lockstep/cli/run_cli.h"
#include "lockstep/train/exit_code.h"
#include "lockstep/train/trainer.h"

namespace {

/// Errors in a configuration begin with file and line, as a compiler's, and stand as they are.
void show(const std::exception& error) {
  const std::string_view text = error.what();
  const bool located = text.substr(0, text.find('\n')).find(": error: ") != std::string_view::npos;
  std::fprintf(stderr, "%s%s\n", located ? "" : "lockstep: error: ", error.what());
  std::fflush(nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return lockstep::run_cli(argc, argv);
  } catch (const lockstep::StuckReplica& error) {
    show(error);
    std::_Exit(lockstep::kExitReplica);  // a thread still uses what destructors would free
  } catch (const std::exception& error) {
    show(error);
    return lockstep::exit_code_of(error);
  }
}
