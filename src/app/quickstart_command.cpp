// lockstep quickstart: a first comparison, with nothing to choose.

#include <fmt/format.h>

#include <array>

#include "app/compare_runs.h"
#include "app/files.h"
#include "core/words.h"

namespace lockstep {
namespace {

struct QuickstartArguments {
  CommonArguments common;
  int seeds = 6;  // --seeds N: the fewest that can settle anything
};

constexpr const char* kConfig = "data/configs/quickstart.toml";
constexpr const char* kDevices = "cpu:4";
/// Of the configuration, a run of a few seconds.
constexpr std::array kSmaller{"data.size=[64,96]", "data.val_images=40", "run.epochs=5"};

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
  compare.inputs = {find_shared(kConfig)};
  compare.common.overrides.assign(kSmaller.begin(), kSmaller.end());
  compare.modes = {"local", "sync", "instance"};
  compare.seeds = arguments.seeds;
  compare.verbose = true;
  compare.tables = false;
  fmt::print(
      "quickstart: which norm, evaluated how? Training local and sync BatchNorm and "
      "InstanceNorm, {} each, on 4 virtual devices\n",
      count_of(arguments.seeds, "seed"));
  const ComparedModes compared = train_and_compare(compare);
  if (compared.exit_code != kExitDone) return compared.exit_code;
  fmt::print(R"(
Everything lies in {0}:
  report.html                      curves, classes, BatchNorm layer by layer, pictures: open it in a browser
  comparison.md, comparison.json   the tables
  <mode>-s<seed>/                  one run each: config.toml, run.log, scalars.json, events.jsonl, ckpt/
Next:
  {1} eval {0}/local-s0 -s bn.eval_stats=own    per-class IoU of one run, each image by its own statistics
  {1} train data/configs/streets.toml -d cpu:4    a longer training
  {1} docs data    images of your own
  {1} docs which_norm    what each norm assumes, costs, and when it won

{2})",
             compare.common.output.string(), compare.common.program, compared.answer);
  return kExitDone;
}

}  // namespace

Command quickstart_command() {
  return {.name = "quickstart",
          .says =
              "A first comparison in two minutes: per-device and synchronized BatchNorm and "
              "InstanceNorm on generated street scenes",
          .page = "first_comparison",
          .examples = {{"lockstep quickstart -o runs/quickstart",
                        "eighteen small trainings on four virtual devices of this CPU, a table and "
                        "report.html"}},
          .declare = declares(declare_quickstart, run_quickstart)};
}

}  // namespace lockstep
