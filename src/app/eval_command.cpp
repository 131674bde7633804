// lockstep eval: the validation split, or another, under a checkpoint.

#include <fmt/format.h>

#include <cstdio>

#include "app/command.h"
#include "app/per_image.h"
#include "run/report_text.h"
#include "train/evaluator.h"

namespace lockstep {

namespace {

struct EvalArguments {
  CommonArguments common;
  std::filesystem::path target;  // run folder or checkpoint
  std::filesystem::path config;  // --config; empty: the run's
  std::string split;             // --split; empty: the configuration's
  bool flip = false;             // --flip
  std::string scales;            // --scales 0.5,1,1.5; empty: not given
  WindowArguments windows;
  bool per_image = false;  // --per-image
};

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
  if (arguments.per_image) fmt::print("{}", format_images(report));
}

void declare_eval(Options& options, EvalArguments& arguments) {
  options.add_weights(arguments.target, arguments.config);
  options
      .add("--split", arguments.split,
           "of the data's splits; default: the configuration's data.val")
      .takes("NAME");
  const auto per_image =
      options.add_flag("--per-image", arguments.per_image, "also the scores of single images");
  options.add_output("DIR", "per_image.csv and pictures of the worst images").needs(per_image);
  options.add_augmentation(arguments.flip, arguments.scales);
  options.add_windows(arguments.windows);
  options.add_devices();
  options.add_overrides();
  options.add_json();
}

int run_eval(const EvalArguments& arguments) {
  std::vector<std::string> overrides = arguments.common.overrides;
  for (const std::string& key : arguments.windows.overrides()) overrides.push_back(key);
  const EvalReport report = evaluate_checkpoint(
      {arguments.target, arguments.config, overrides, arguments.common.devices,
       arguments.common.tables, arguments.split, augmentation_of(arguments.flip, arguments.scales),
       arguments.common.world, arguments.per_image});
  arguments.common.world.get().on_first([&] {
    print_report(arguments, report);
    if (!arguments.common.output.empty()) write_images(report, arguments.common.output);
  });
  return kExitDone;
}

}  // namespace

Command eval_command() {
  return {.name = "eval",
          .says = "Evaluate a run or a checkpoint on the validation split, or another",
          .page = "predict",
          .examples =
              {{"lockstep eval runs/first", "the last checkpoint of a run on its validation split"},
               {"lockstep eval runs/first --per-image -o worst",
                "also image by image, with pictures of the worst"},
               {"lockstep eval runs/first --flip --scales 0.75,1,1.25 --json",
                "with test-time augmentation, for a script"},
               {"lockstep eval runs/first --window 64,64",
                "in windows that overlap, and how far they contradict each other"},
               {"lockstep eval runs/first/ckpt/last.safetensors -c data/configs/quickstart.toml",
                "weights from anywhere, with the configuration that they belong to"}},
          .by_several_processes = true,
          .declare = declares(declare_eval, run_eval)};
}

}  // namespace lockstep
