#include "app/fleet_session.h"

#include "app/cli.h"
#include "lockstep/core/check.h"
#include "run/exit_code.h"

namespace lockstep {

int run_in_fleet(const std::function<int(Fleet* fleet)>& work) {
  const std::unique_ptr<Fleet> fleet = join_fleet();
  if (!fleet) return work(nullptr);
  try {
    return work(fleet.get());
  } catch (const std::exception& error) {
    if (fleet->shows_error(error.what())) show_error(error);
    fleet->say_last_words(error.what());
    const int exit_code = exit_code_of(error);
    fleet->abort(exit_code);
    return exit_code;
  }
}

void check_alone(const std::string& command) {
  if (!launched_with_others()) return;
  throw ConfigError("lockstep " + command +
                    " runs in one process; of several, as mpirun and srun start them, train, "
                    "compare, eval, bench step and bench exchange make use");
}

}  // namespace lockstep
