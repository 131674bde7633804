#pragma once
// A training run from configuration to summary: steps, evaluation, checkpoints, logs. No arithmetic
// and no threads of its own. The one rule: whatever is written to scalars.json and to checkpoints
// is a function of configuration and device count only; anything that time touches goes to
// timing.jsonl.

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "lockstep/sync/world.h"
#include "run/run_sink.h"
#include "run/summary.h"

namespace lockstep {

struct TrainRequest {
  Config config;                      // bn.sync_layers names layers: see with_sync_layers
  std::vector<std::string> warnings;  // from load_config; logged at the start
  std::vector<std::string> notes;     // that are no warnings; logged at the start
  std::string devices;                // DEVICES argument; empty: the default
  std::filesystem::path output;       // the run folder; empty: <work_dir>/<name>/<time>-s<seed>
  std::filesystem::path init;         // weights to start from; empty: random from the seed
  std::optional<std::string>
      resume;  // a checkpoint, or "auto": the newest good one of the run folder
  const std::atomic<bool>* stop =
      nullptr;  // becomes true: finish the step, save, return kInterrupted
  Console console = Console::kStdout;
  std::string program = "lockstep";  // how to call this program in the commands that are shown
  std::reference_wrapper<World> world = World::alone();  // the processes that train together
  CellLabels cell = {};                                  // which the summary then says
  std::string fault;  // train/fault_injection.h; empty: the environment variable LOCKSTEP_FAULT
};

/// Trains. Every process of the world calls it with the same configuration; process 0 writes the
/// run folder, which the others see at the same path or not at all: their own logs are in
/// processes/<number> of it. Throws ConfigError (also when the run folder already holds a run and
/// `resume` is not set, and when the processes do not run the same program and configuration),
/// DataError, NonFiniteError, ReplicaError, or Error (disk full, ...). The run
/// folder's last good checkpoint survives all of them, and its events.jsonl ends with the reason.
TrainSummary train(const TrainRequest& request);

}  // namespace lockstep
