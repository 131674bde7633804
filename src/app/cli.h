#pragma once
// The command line: parsed into plain structs in cli.cpp and command_line.cpp (only they, help.cpp,
// completion.cpp and man_page.cpp know CLI11), carried out by one function per subcommand, each in
// its own file. Commands return an exit code or throw; only `main` turns exceptions into exit
// codes.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "lockstep/sync/world.h"
#include "run/exit_code.h"
#include "train/inference/views.h"

namespace lockstep {

/// What several subcommands share.
struct CommonArguments {
  std::string program = "lockstep";    // argv[0], for commands that are shown
  std::string devices;                 // -d; empty: the default
  std::vector<std::string> overrides;  // -s key=value, and --seed, --max-iters as such
  std::filesystem::path output;        // -o; empty: not given
  bool json = false;                   // --json: nothing but JSON on stdout
  const Tables* tables = &builtin_tables();
  std::reference_wrapper<World> world = World::alone();  // the processes that run the command
};

struct TrainArguments {
  CommonArguments common;
  std::filesystem::path config;
  std::filesystem::path init;         // --init
  std::optional<std::string> resume;  // --resume [CKPT|auto]; without a value "auto"
};

struct EvalArguments {
  CommonArguments common;
  std::filesystem::path target;  // run folder or checkpoint
  std::filesystem::path config;  // --config; empty: the run's
  std::string split;             // --split; empty: the configuration's
  bool flip = false;             // --flip
  std::string scales;            // --scales 0.5,1,1.5; empty: not given
};

struct PredictArguments {
  CommonArguments common;
  std::filesystem::path target;               // run folder or checkpoint
  std::vector<std::filesystem::path> images;  // files and folders
  std::filesystem::path config;               // --config; empty: the run's
  bool flip = false;                          // --flip
  std::string scales;                         // --scales 0.5,1,1.5; empty: not given
  bool no_overlay = false;                    // --no-overlay
  bool probabilities = false;                 // --probabilities
  bool submission = false;                    // --submission
  bool force = false;                         // --force: write over what is there
};

struct ExportArguments {
  CommonArguments common;
  std::string format;            // onnx, safetensors
  std::filesystem::path target;  // run folder, checkpoint or other weights
  std::filesystem::path config;  // --config; empty: the run's
  bool plain = false;            // --plain: BatchNorm as layers of their own
  std::string size;              // --size HxW; empty: any
};

struct CompareArguments {
  CommonArguments common;
  std::vector<std::filesystem::path> inputs;  // one CONFIG, or run folders
  std::vector<std::string> modes;             // --modes local,sync,virtual
  int seeds = 3;                              // --seeds N: seeds 0 .. N-1
  bool verbose = false;                       // --verbose: the runs' own lines, too
  bool no_images = false;                     // --no-images: none in report.html
};

struct ReportArguments {
  CommonArguments common;
  std::vector<std::filesystem::path> inputs;  // run folders, folders of comparisons
  std::filesystem::path figures;              // --figures DIR; empty: none
  bool no_images = false;                     // --no-images: no predictions of example images
};

struct BenchArguments {
  CommonArguments common;
  std::string what;              // step, layers, batch_norm, exchange
  std::filesystem::path config;  // step, layers
  bool eval = false;             // --eval: layers of an evaluation
  /// --against key=value: step: the settings of another training, timed in turns with this one.
  std::vector<std::string> against;
  int iters = 0;  // --iters; 0: not given, the benchmark's default
};

struct LogsArguments {
  CommonArguments common;
  std::string action;                         // ls, show, tail, plot, export
  std::vector<std::filesystem::path> inputs;  // run folders, or folders of them
  std::string key;                            // plot: --key loss
  bool follow = false;                        // tail: -f
  std::filesystem::path svg;                  // plot: --svg FILE; empty: in the terminal
  std::filesystem::path csv;                  // export: --csv FILE
  std::filesystem::path tensorboard;          // export: --tensorboard DIR
};

struct DataArguments {
  CommonArguments common;
  std::string action;  // check, preview
  std::filesystem::path config;
  std::int64_t count = 0;  // -n: images to look at or to write; 0: not given, all or 12
};

struct PlanArguments {
  CommonArguments common;
  std::filesystem::path config;
  int steps = 3;           // --steps: timed ones
  bool max_batch = false;  // --max-batch
  double memory = 0;       // --memory GiB for all devices; 0: what the host has left
};

struct ConfigArguments {
  CommonArguments common;
  std::string action;                         // show, diff, init, schema
  std::vector<std::filesystem::path> inputs;  // configurations; init: a data layout
};

struct DoctorArguments {
  CommonArguments common;
  bool verbose = false;  // with the details
};

struct SelftestArguments {
  CommonArguments common;
};

struct DocsArguments {
  CommonArguments common;
  std::string page;  // its name; empty: the list
};

struct InspectArguments {
  CommonArguments common;
  std::filesystem::path target;  // a file of weights, a checkpoint, a run folder
  std::filesystem::path other;   // to compare with; empty: none
  std::string filter;            // --filter GLOB of names; empty: all
};

/// On stderr, as all commands show what ended them.
void show_error(const std::exception& error);

int run_train(const TrainArguments& arguments);
int run_eval(const EvalArguments& arguments);
int run_predict(const PredictArguments& arguments);
int run_export(const ExportArguments& arguments);
int run_compare(const CompareArguments& arguments);
int run_report(const ReportArguments& arguments);
int run_bench(const BenchArguments& arguments);
int run_plan(const PlanArguments& arguments);
int run_config(const ConfigArguments& arguments);
int run_logs(const LogsArguments& arguments);
int run_data(const DataArguments& arguments);
int run_doctor(const DoctorArguments& arguments);
int run_selftest(const SelftestArguments& arguments);
int run_docs(const DocsArguments& arguments);
/// kExitFailure where two files differ, as diff has it.
int run_inspect(const InspectArguments& arguments);

}  // namespace lockstep
