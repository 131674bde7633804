// lockstep train: one run from a configuration.

#include <utility>

#include "app/command.h"
#include "app/terminal.h"
#include "run/run_folder.h"
#include "train/diagnosis/sync_layers.h"
#include "train/trainer.h"

namespace lockstep {
namespace {

struct TrainArguments {
  CommonArguments common;
  std::filesystem::path config;
  std::filesystem::path init;   // --init
  std::string resume;           // --resume [CKPT|auto]; empty: not given
  std::string seed, max_iters;  // --seed, --max-iters: win over -s; empty: not given
};

void declare_train(Options& options, TrainArguments& arguments) {
  options.add_config("CONFIG", arguments.config, "configuration (TOML)").required();
  options.add_devices();
  options.add_overrides();
  options.add_output("DIR", "run folder; default: <work_dir>/<name>/<time>-s<seed>");
  options.add("--init", arguments.init, "weights to start from: safetensors or PyTorch's .pth")
      .takes("FILE");
  options
      .add("--resume", arguments.resume,
           "continue: a checkpoint, or auto (the default): the newest good one of -o, of the run "
           "whose config.toml this is, or of the newest run of this name")
      .value_may_be_missing()
      .takes("[FILE|auto]");
  options.add("--seed", arguments.seed, "short for -s run.seed=N").takes("N");
  options.add("--max-iters", arguments.max_iters, "short for -s run.max_iters=N").takes("N");
  options.after_parsing([&] {
    if (options.given("--resume") && arguments.resume.empty()) arguments.resume = "auto";
  });
}

/// The run that the configuration is of; empty: of none.
std::filesystem::path run_of_config(const std::filesystem::path& config) {
  const RunFolder folder{config.parent_path()};
  std::error_code unknown;
  const bool is_of_run =
      folder.config() == config && std::filesystem::exists(folder.events(), unknown);
  if (!is_of_run) return {};
  return folder.root.empty() ? "." : folder.root;
}

std::vector<std::string> overrides_of(const TrainArguments& arguments) {
  std::vector<std::string> overrides = arguments.common.overrides;
  if (!arguments.seed.empty()) overrides.push_back("run.seed=" + arguments.seed);
  if (!arguments.max_iters.empty()) overrides.push_back("run.max_iters=" + arguments.max_iters);
  return overrides;
}

int run_train(const TrainArguments& arguments) {
  const StopSignals signals;
  TrainRequest request;
  request.config = load_config(arguments.config, overrides_of(arguments), &request.warnings,
                               *arguments.common.tables);
  request.devices = arguments.common.devices;
  request.output = arguments.common.output;
  request.init = arguments.init;
  if (!arguments.resume.empty()) request.resume = arguments.resume;
  if (arguments.resume == "auto" && request.output.empty())
    request.output = run_of_config(arguments.config);
  request.stop = &signals.requested();
  request.program = arguments.common.program;
  request.world = arguments.common.world;
  const TrainSummary summary = train(with_sync_layers(std::move(request)));
  return summary.status == TrainStatus::kInterrupted ? kExitInterrupted : kExitDone;
}

}  // namespace

Command train_command() {
  return {
      .name = "train",
      .says = "Train a network from a configuration",
      .page = "run_folder",
      .examples =
          {{"lockstep train data/configs/quickstart.toml -d cpu:4 -s bn.mode=sync -o runs/first",
            "synchronized BatchNorm on four virtual devices of the CPU"},
           {"lockstep train data/configs/quickstart.toml -d cpu:4 -s bn.mode=sync -o runs/first "
            "--resume",
            "go on where this training was interrupted, from its newest good checkpoint"},
           {"lockstep train data/configs/quickstart.toml --init runs/first/ckpt/last.safetensors "
            "--seed 1 -o runs/second",
            "begin with the weights of another training"},
           {"lockstep train data/configs/quickstart.toml -d cuda:0,1 -o runs/gpus", "on two GPUs"}},
      .by_several_processes = true,
      .declare = declares(declare_train, run_train)};
}

}  // namespace lockstep
