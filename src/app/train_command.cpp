// lockstep train: one run from a configuration.

#include "app/cli.h"
#include "app/signals.h"
#include "train/trainer.h"

namespace lockstep {

int run_train(const TrainArguments& arguments) {
  const StopSignals signals;
  TrainRequest request;
  request.config = load_config(arguments.config, arguments.common.overrides, &request.warnings,
                               *arguments.common.tables);
  request.devices = arguments.common.devices;
  request.output = arguments.common.output;
  request.init = arguments.init;
  request.resume = arguments.resume;
  request.stop = &signals.requested();
  request.program = arguments.common.program;
  request.world = arguments.common.world;
  const TrainSummary summary = train(request);
  return summary.status == TrainStatus::kInterrupted ? kExitInterrupted : kExitDone;
}

}  // namespace lockstep
