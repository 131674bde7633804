#include "app/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <system_error>

#include "app/argument_checks.h"
#include "app/share.h"
#include "lockstep/core/check.h"

// What an option takes is its type_name, which the help, the man pages and completion
// (completion.cpp) have in common: words in small letters are what may be typed, with ,... several
// of them; names in capitals are kinds of things, of which CONFIG, DIR, FILE, RUN, DEVICES,
// KEY=VALUE, LAYOUT and PAGE can be completed. A positional option without one is of the kind that
// its name says.

namespace lockstep {
namespace {

constexpr const char* kConfig = "CONFIG";
constexpr const char* kDir = "DIR";
constexpr const char* kFile = "FILE";
constexpr const char* kRun = "RUN";
constexpr const char* kTrained = "RUN|FILE";

/// Configurations that come with Lockstep are found from everywhere.
CLI::Option* takes_configs(CLI::Option* option) {
  option->transform(CLI::Validator(
      [](std::string& path) {
        path = here_or_shared(path).string();
        return std::string();
      },
      ""));
  return option->type_name(option->nonpositional() ? kConfig : "");
}

void add_devices(CLI::App& command, CommandLine& line) {
  command
      .add_option(
          "-d,--devices", line.common.devices,
          "cpu:4 (virtual devices), cuda:0,1, cuda:all, cuda:0x4; default: all GPUs, else cpu:1")
      ->type_name("DEVICES");
}

void add_overrides(CLI::App& command, CommandLine& line) {
  command
      .add_option("-s,--set", line.common.overrides,
                  "key=value, for example bn.mode=sync; may be repeated")
      ->type_name("KEY=VALUE")
      ->expected(-1)
      ->allow_extra_args(false);
}

void add_devices_and_overrides(CLI::App& command, CommandLine& line) {
  add_devices(command, line);
  add_overrides(command, line);
}

void add_output(CLI::App& command, CommandLine& line, const char* type, const std::string& what) {
  command.add_option("-o,--output", line.common.output, what)->type_name(type);
}

void add_json(CLI::App& command, CommandLine& line) {
  command.add_flag("--json", line.common.json, "print JSON and nothing else");
}

CLI::App& add_train(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand("train", "Train a network from a configuration");
  takes_configs(command.add_option("CONFIG", line.train.config, "configuration (TOML)"))
      ->required();
  add_devices_and_overrides(command, line);
  add_output(command, line, kDir, "run folder; default: <work_dir>/<name>/<time>-s<seed>");
  command
      .add_option("--init", line.train.init, "weights to start from: safetensors or PyTorch's .pth")
      ->type_name(kFile);
  command
      .add_option("--resume", line.resume,
                  "continue: a checkpoint, or auto (the default): the newest good one")
      ->expected(0, 1)
      ->type_name("[FILE|auto]");
  command.add_option("--seed", line.seed, "short for -s run.seed=N")->type_name("N");
  command.add_option("--max-iters", line.max_iters, "short for -s run.max_iters=N")->type_name("N");
  command.callback([&command, &line] {
    if (command.count("--resume") > 0)
      line.train.resume = line.resume.empty() ? "auto" : line.resume;
  });
  return command;
}

void add_augmentation(CLI::App& command, bool& flip, std::string& scales) {
  command.add_flag("--flip", flip, "test-time augmentation: also the mirrored image");
  command
      .add_option("--scales", scales,
                  "test-time augmentation: probabilities averaged over scales, 0.5,1,1.5")
      ->type_name("X,...");
}

CLI::App& add_eval(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand(
      "eval", "Evaluate a run or a checkpoint on the validation split, or another");
  command
      .add_option("TARGET", line.eval.target,
                  "run folder (its last checkpoint), checkpoint, or with -c any weights, also .pth")
      ->type_name(kTrained)
      ->required();
  takes_configs(
      command.add_option("-c,--config", line.eval.config, "configuration; default: the run's own"));
  command
      .add_option("--split", line.eval.split,
                  "of the data's splits; default: the configuration's data.val")
      ->type_name("NAME");
  add_augmentation(command, line.eval.flip, line.eval.scales);
  add_devices_and_overrides(command, line);
  add_json(command, line);
  return command;
}

CLI::App& add_predict(CLI::App& app, CommandLine& line) {
  CLI::App& command =
      *app.add_subcommand("predict", "Classes of images of one's own, as pictures or a table");
  command
      .add_option("TARGET", line.predict.target,
                  "run folder (its last checkpoint), checkpoint, or with -c any weights, also .pth")
      ->type_name(kTrained)
      ->required();
  command.add_option("IMAGES", line.predict.images, "JPEG and PNG files, and folders of them")
      ->type_name(kFile)
      ->required();
  takes_configs(command.add_option("-c,--config", line.predict.config,
                                   "configuration; default: the run's own"));
  command.add_flag("--no-overlay", line.predict.no_overlay,
                   "only class maps, no pictures of the classes over the images");
  command.add_flag("--probabilities", line.predict.probabilities,
                   "also NAME.npy, the classes' probabilities [classes, height, width]");
  command.add_flag("--submission", line.predict.submission,
                   "maps as the benchmark's server takes them: of layouts ade20k, cityscapes");
  command.add_flag("--force", line.predict.force, "write over files that are there");
  add_augmentation(command, line.predict.flip, line.predict.scales);
  add_devices_and_overrides(command, line);
  add_output(command, line, kDir, "the folder to write to; made where it is not there");
  add_json(command, line);
  return command;
}

CLI::App& add_export(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand("export", "Write a trained network for other programs");
  command.add_option("FORMAT", line.exported.format, "onnx or safetensors")
      ->type_name("onnx|safetensors")
      ->required();
  command
      .add_option("TARGET", line.exported.target,
                  "run folder (its last checkpoint), checkpoint, or with -c any weights, also .pth")
      ->type_name(kTrained)
      ->required();
  takes_configs(command.add_option("-c,--config", line.exported.config,
                                   "configuration; default: the run's own"));
  command.add_flag("--plain", line.exported.plain,
                   "onnx: BatchNorm as nodes of their own, not folded into convolutions");
  command
      .add_option("--size", line.exported.size,
                  "onnx: for images of HxW only; default: of any size")
      ->type_name("HxW");
  add_overrides(command, line);
  add_output(command, line, kFile, "the file to write");
  add_json(command, line);
  return command;
}

CLI::App& add_compare(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand(
      "compare", "Train a configuration in several BatchNorm modes and seeds, or compare runs");
  takes_configs(
      command.add_option("INPUT", line.compare.inputs, "one configuration, or run folders"))
      ->type_name("CONFIG|RUN")
      ->required();
  command.add_option("--modes", line.compare.modes, "of local, sync, ghost; default: local,sync")
      ->type_name("local|sync|ghost,...")
      ->delimiter(',');
  command.add_flag("--verbose,-v", line.compare.verbose,
                   "print the runs' own lines also where the output is no terminal");
  command.add_flag("--no-images", line.compare.no_images,
                   "no example images in report.html, for which the networks must be run");
  takes_count(command.add_option("--seeds", line.compare.seeds, "how many: seeds 0 .. N-1")
                  ->capture_default_str(),
              1, 1000);
  add_devices_and_overrides(command, line);
  add_output(command, line, kDir, "folder of the comparison");
  add_json(command, line);
  command.callback([&command, &line] {
    std::error_code unknown;
    if (!std::filesystem::is_directory(line.compare.inputs.front(), unknown)) return;
    for (const char* option : {"--modes", "--seeds", "--verbose", "--devices", "--set"}) {
      if (command.count(option) == 0) continue;
      throw ConfigError(fmt::format(
          "{} goes with a configuration to train; runs are compared as they are", option));
    }
  });
  return command;
}

CLI::App& add_report(CLI::App& app, CommandLine& line) {
  CLI::App& command =
      *app.add_subcommand("report", "Write runs or a comparison as one page of HTML");
  command.add_option("FOLDER", line.report.inputs, "run folders, or folders of comparisons")
      ->type_name(kRun)
      ->required();
  add_output(command, line, kFile, "the page; default: report.html in the folder");
  command
      .add_option("--figures", line.report.figures,
                  "also write every figure as an .svg file into this folder")
      ->type_name(kDir);
  command.add_flag("--no-images", line.report.no_images,
                   "no example images, for which the networks must be run");
  add_json(command, line);
  return command;
}

CLI::App& add_bench(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand(
      "bench", "Measure a training step, its layers, BatchNorm or its exchange");
  command.add_option("WHAT", line.bench.what, "step, layers, batch_norm or exchange")
      ->type_name("step|layers|batch_norm|exchange")
      ->required();
  takes_configs(command.add_option("CONFIG", line.bench.config, "step, layers: configuration"));
  command.add_flag("--eval", line.bench.eval,
                   "layers: of an evaluation of one image, not of a training step");
  command
      .add_option("--against", line.bench.against,
                  "step: time a training with this setting changed, too, step by step in turns")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  takes_count(command.add_option("--iters", line.bench.iters,
                                 "measured iterations; default: the benchmark's own"),
              1, 1000000);
  add_devices_and_overrides(command, line);
  add_json(command, line);
  return command;
}

CLI::App& add_logs(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand("logs", "List, read, draw and convert the logs of runs");
  command
      .add_option("ACTION", line.logs.action,
                  "ls: the runs in a folder; show: a run's log; tail: its end; plot: curves in the "
                  "terminal; export: for other programs")
      ->type_name("ls|show|tail|plot|export")
      ->required();
  command.add_option("RUN", line.logs.inputs, "run folders, or folders of them; ls: default runs")
      ->type_name("");
  command.add_option("--key", line.logs.key, "plot: loss, lr, grad_norm, mIoU, ...; default: loss")
      ->type_name("NAME");
  command.add_option("--svg", line.logs.svg, "plot: into this file, in place of the terminal")
      ->type_name(kFile);
  command.add_flag("-f,--follow", line.logs.follow, "tail: until the run ends");
  command.add_option("--csv", line.logs.csv, "export: one line per number, for spreadsheets")
      ->type_name(kFile);
  command
      .add_option("--tensorboard", line.logs.tensorboard,
                  "export: event files in a folder, one run each")
      ->type_name(kDir);
  add_json(command, line);
  return command;
}

CLI::App& add_data(CLI::App& app, CommandLine& line) {
  CLI::App& command =
      *app.add_subcommand("data", "Look at a data set: what it holds, what is wrong with it");
  command
      .add_option("ACTION", line.data.action,
                  "check: classes, sizes, mistakes; preview: training samples as pictures")
      ->type_name("check|preview")
      ->required();
  takes_configs(command.add_option("CONFIG", line.data.config, "configuration (TOML)"))->required();
  takes_count(
      command.add_option("-n,--count", line.data.count,
                         "images: to look at per split (default: all), to write (default: 12)"),
      1, 1000000000);
  add_overrides(command, line);
  add_output(command, line, kDir, "preview: the folder to write to");
  add_json(command, line);
  return command;
}

CLI::App& add_plan(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand(
      "plan", "What a training will take: memory, time, BatchNorm's statistics, after a few steps");
  takes_configs(command.add_option("CONFIG", line.plan.config, "configuration (TOML)"))->required();
  add_devices_and_overrides(command, line);
  takes_count(
      command.add_option("--steps", line.plan.steps, "steps to time")->capture_default_str(), 1,
      1000000);
  CLI::Option* max_batch = command.add_flag("--max-batch", line.plan.max_batch,
                                            "also the largest global batch that fits");
  takes_positive(
      command
          .add_option("--memory", line.plan.memory,
                      "of all devices together, in GiB, for --max-batch; default: the host's free")
          ->type_name("GIB")
          ->needs(max_batch));
  add_json(command, line);
  return command;
}

CLI::App& add_config(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand("config", "Show, compare and begin configurations");
  command
      .add_option("ACTION", line.config.action,
                  "show CONFIG: every key, its value and who says so; diff CONFIG CONFIG; "
                  "init LAYOUT: a commented beginning; schema: JSON Schema of the keys")
      ->type_name("show|diff|init|schema")
      ->required();
  takes_configs(command.add_option("INPUT", line.config.inputs,
                                   "configurations (run folders, too), or a layout"))
      ->type_name("CONFIG|RUN|LAYOUT");
  add_overrides(command, line);
  add_json(command, line);
  return command;
}

CLI::App& add_doctor(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand(
      "doctor", "Examine the machine and this build, and test an exchange on it");
  command.add_flag("--verbose,-v", line.doctor.verbose,
                   "also which implementation computes each convolution");
  add_json(command, line);
  return command;
}

CLI::App& add_selftest(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand(
      "selftest", "Check what this build computes on these devices, as one table");
  add_devices(command, line);
  add_json(command, line);
  return command;
}

CLI::App& add_docs(CLI::App& app, CommandLine& line) {
  CLI::App& command =
      *app.add_subcommand("docs", "List the pages of the documentation, or print one");
  command.add_option("PAGE", line.docs.page, "its name in the list; default: the list")
      ->type_name("");
  add_json(command, line);
  return command;
}

CLI::App& add_inspect(CLI::App& app, CommandLine& line) {
  CLI::App& command = *app.add_subcommand(
      "inspect", "What a file of weights holds and whether it is sound, or how two files differ");
  command
      .add_option("TARGET", line.inspect.target,
                  "run folder (its last checkpoint), checkpoint, safetensors or PyTorch's .pth")
      ->type_name(kTrained)
      ->required();
  command
      .add_option("OTHER", line.inspect.other,
                  "another: only what differs is shown; exit code 0: equal, 1: different")
      ->type_name(kTrained);
  command
      .add_option("--filter", line.inspect.filter,
                  "only tensors whose names match, such as '*.running_var'")
      ->type_name("GLOB");
  add_json(command, line);
  return command;
}

/// Gives the arguments what all subcommands share. --seed and --max-iters come last: they win over
/// -s.
template <typename Arguments>
Command command(CLI::App& declared, Arguments CommandLine::*own, int (*run)(const Arguments&)) {
  let_repeat(declared);
  return {&declared, [&declared, own, run](CommandLine& line) {
            check_values(declared);
            check_together(declared);
            Arguments& arguments = line.*own;
            arguments.common = line.common;
            std::vector<std::string>& overrides = arguments.common.overrides;
            if (!line.seed.empty()) overrides.push_back("run.seed=" + line.seed);
            if (!line.max_iters.empty()) overrides.push_back("run.max_iters=" + line.max_iters);
            return run(arguments);
          }};
}

}  // namespace

std::vector<Command> add_commands(CLI::App& app, CommandLine& line) {
  std::vector<Command> commands{
      command(add_train(app, line), &CommandLine::train, run_train),
      command(add_eval(app, line), &CommandLine::eval, run_eval),
      command(add_predict(app, line), &CommandLine::predict, run_predict),
      command(add_export(app, line), &CommandLine::exported, run_export),
      command(add_compare(app, line), &CommandLine::compare, run_compare),
      command(add_report(app, line), &CommandLine::report, run_report),
      command(add_logs(app, line), &CommandLine::logs, run_logs),
      command(add_data(app, line), &CommandLine::data, run_data),
      command(add_plan(app, line), &CommandLine::plan, run_plan),
      command(add_config(app, line), &CommandLine::config, run_config),
      command(add_bench(app, line), &CommandLine::bench, run_bench),
      command(add_doctor(app, line), &CommandLine::doctor, run_doctor),
      command(add_selftest(app, line), &CommandLine::selftest, run_selftest),
      command(add_docs(app, line), &CommandLine::docs, run_docs),
      command(add_inspect(app, line), &CommandLine::inspect, run_inspect)};
  // Behind a subcommand its name and no other's is one: `docs predict` is a page.
  app.require_subcommand(0, 1);
  return commands;
}

}  // namespace lockstep
