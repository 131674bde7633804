// lockstep eval: the validation split, or another, under a checkpoint.

#include <fmt/format.h>

#include <cstdio>

#include "app/cli.h"
#include "run/report_text.h"
#include "train/evaluator.h"

namespace lockstep {

namespace {

void print_report(const EvalArguments& arguments, const EvalReport& report) {
  for (const std::string& warning : report.warnings) fmt::print(stderr, "warning: {}\n", warning);
  if (arguments.common.json) {
    fmt::print("{}\n", to_json(report));
    return;
  }
  fmt::print("{}\n", format_checkpoint(report.checkpoint, report.iteration, report.devices,
                                       arguments.common.devices.empty()));
  if (!report.split.empty()) fmt::print("split {}\n", report.split);
  if (report.augmentation.active()) {
    fmt::print("test-time augmentation: {}\n", to_string(report.augmentation));
  }
  fmt::print("{}", format_evaluation(report.evaluation, report.classes));
}

}  // namespace

int run_eval(const EvalArguments& arguments) {
  const EvalReport report = evaluate_checkpoint(
      {arguments.target, arguments.config, arguments.common.overrides, arguments.common.devices,
       arguments.common.tables, arguments.split, augmentation_of(arguments.flip, arguments.scales),
       arguments.common.world});
  arguments.common.world.get().on_first([&] { print_report(arguments, report); });
  return kExitDone;
}

}  // namespace lockstep
