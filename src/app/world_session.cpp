#include "app/world_session.h"

#include "app/cli.h"
#include "lockstep/core/check.h"
#include "run/exit_code.h"

namespace lockstep {

int run_in_world(const std::function<int(World& world)>& work) {
  const std::unique_ptr<World> world = init_world();
  try {
    return work(*world);
  } catch (const std::exception& error) {
    if (world->size() == 1) throw;
    if (world->shows_error(error.what())) show_error(error);
    world->announce_failure(error.what());
    world->abort(exit_code_of(error));
  }
}

void check_alone(const std::string& command) {
  if (!launched_with_others()) return;
  throw ConfigError("lockstep " + command +
                    " runs in one process; of several, as mpirun and srun start them, train, "
                    "compare, eval, bench step and bench exchange make use");
}

}  // namespace lockstep
