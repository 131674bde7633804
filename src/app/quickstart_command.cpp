// lockstep quickstart: a first comparison, with nothing to choose.

#include <fmt/format.h>

#include "app/compare_runs.h"
#include "app/files.h"

namespace lockstep {
namespace {

struct QuickstartArguments {
  CommonArguments common;
  int seeds = 2;  // --seeds N
};

constexpr const char* kConfig = "data/configs/quickstart.toml";
constexpr const char* kDevices = "cpu:4";

void declare_quickstart(Options& options, QuickstartArguments& arguments) {
  options.add("--seeds", arguments.seeds, "how many: seeds 0 .. N-1")
      .shows_default()
      .takes_count(1, 1000);
  options.add_output("DIR", "folder of the comparison; default: runs/quickstart");
}

int run_quickstart(const QuickstartArguments& arguments) {
  CompareArguments compare;
  compare.common = arguments.common;
  if (compare.common.output.empty()) compare.common.output = "runs/quickstart";
  compare.common.devices = kDevices;
  compare.inputs = {here_or_shared(kConfig)};
  compare.modes = {"local", "sync"};
  compare.seeds = arguments.seeds;
  compare.verbose = true;
  fmt::print("quickstart: training local and sync BatchNorm, {} seeds each, on 4 virtual devices\n",
             arguments.seeds);
  const int code = train_and_compare(compare);
  if (code != kExitDone) return code;
  fmt::print(R"(
Everything lies in {0}:
  report.html                      curves, classes, BatchNorm layer by layer, pictures: open it in a browser
  comparison.md, comparison.json   the tables above
  <mode>-s<seed>/                  one run each: config.toml, run.log, scalars.json, events.jsonl, ckpt/
Next:
  {1} eval {0}/sync-s0    per-class IoU of one run
  {1} train data/configs/streets.toml -d cpu:4    a longer training
  {1} docs data    images of your own
)",
             compare.common.output.string(), compare.common.program);
  return kExitDone;
}

}  // namespace

Command quickstart_command() {
  return {.name = "quickstart",
          .says =
              "A first comparison in a minute: per-device and synchronized BatchNorm on generated "
              "street scenes",
          .page = "first_comparison",
          .examples = {{"lockstep quickstart -o runs/quickstart",
                        "four trainings on four virtual devices of this CPU, a table and "
                        "report.html"}},
          .declare = declares(declare_quickstart, run_quickstart)};
}

}  // namespace lockstep
