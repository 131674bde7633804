#include "app/help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <vector>

#include "run/exit_code.h"

namespace lockstep {
namespace {

struct Help {
  std::string_view subcommand;
  std::string_view page;
  std::vector<HelpExample> examples;
};

// In data/configs: of the source tree, or as it is installed (share.h).
const std::vector<Help>& all_help() {
  static const std::vector<Help> help{
      {"",
       "readme",
       {{"lockstep doctor", "is all well with this machine and this build?"},
        {"lockstep train data/configs/quickstart.toml -d cpu:4 -s bn.mode=sync -o runs/first",
         "train a small network, with synchronized BatchNorm on four virtual devices"},
        {"lockstep eval runs/first", "what it has learned, class by class"},
        {"lockstep compare data/configs/quickstart.toml --modes local,sync --seeds 2 -d cpu:4 "
         "-o runs/compare",
         "does this training need synchronized BatchNorm?"},
        {"lockstep config init folder > mine.toml", "begin a configuration of your own"},
        {"lockstep docs", "the pages of the documentation"}}},
      {"train",
       "run_folder",
       {{"lockstep train data/configs/quickstart.toml -d cpu:4 -s bn.mode=sync -o runs/first",
         "synchronized BatchNorm on four virtual devices of the CPU"},
        {"lockstep train data/configs/quickstart.toml -d cpu:4 -s bn.mode=sync -o runs/first "
         "--resume",
         "go on where this training was interrupted, from its newest good checkpoint"},
        {"lockstep train data/configs/quickstart.toml --init runs/first/ckpt/last.safetensors "
         "--seed 1 -o runs/second",
         "begin with the weights of another training"},
        {"lockstep train data/configs/quickstart.toml -d cuda:0,1 -o runs/gpus", "on two GPUs"}}},
      {"eval",
       "predict",
       {{"lockstep eval runs/first", "the last checkpoint of a run on its validation split"},
        {"lockstep eval runs/first --flip --scales 0.75,1,1.25 --json",
         "with test-time augmentation, for a script"},
        {"lockstep eval runs/first/ckpt/last.safetensors -c data/configs/quickstart.toml",
         "weights from anywhere, with the configuration that they belong to"}}},
      {"predict",
       "predict",
       {{"lockstep predict runs/first photos -o predictions",
         "a class map and an overlay for every image in a folder"},
        {"lockstep predict runs/first photos -o probabilities --probabilities --no-overlay",
         "with the probabilities of all classes, for NumPy"}}},
      {"export",
       "export",
       {{"lockstep export onnx runs/first -o model.onnx", "for ONNX Runtime and others"},
        {"lockstep export safetensors runs/first -o model.safetensors", "for PyTorch"}}},
      {"compare",
       "compare",
       {{"lockstep compare data/configs/quickstart.toml --modes local,sync --seeds 2 -d cpu:4 "
         "-o runs/compare",
         "four trainings, a table and report.html; the same command goes on after an "
         "interruption"},
        {"lockstep compare runs/compare --json", "the table of trainings that are there"}}},
      {"report",
       "report",
       {{"lockstep report runs/compare", "writes runs/compare/report.html"},
        {"lockstep report runs/first runs/second -o both.html --figures figures",
         "two runs on one page, and its figures as files"}}},
      {"logs",
       "run_folder",
       {{"lockstep logs ls runs", "all runs below a folder, with their state and score"},
        {"lockstep logs tail -f runs/first", "what a training says, until it ends"},
        {"lockstep logs plot runs/compare --key mIoU", "curves in the terminal"},
        {"lockstep logs export runs/compare --csv all.csv", "all numbers, for a spreadsheet"}}},
      {"data",
       "data",
       {{"lockstep data check data/configs/quickstart.toml",
         "sizes, classes and mistakes, before a training"},
        {"lockstep data preview data/configs/quickstart.toml -n 4 -o preview",
         "training samples as the network sees them, as pictures"}}},
      {"plan",
       "plan",
       {{"lockstep plan data/configs/quickstart.toml -d cpu:4 -s bn.mode=sync",
         "steps, learning rate, values per BatchNorm channel, memory and time"},
        {"lockstep plan data/configs/quickstart.toml -d cpu:4 --max-batch --memory 4",
         "also the largest batch for 4 GiB"}}},
      {"config",
       "plan",
       {{"lockstep config show data/configs/quickstart.toml -s bn.mode=sync",
         "every key, its value and who says so"},
        {"lockstep config diff data/configs/quickstart.toml runs/first",
         "what a run did differently"},
        {"lockstep config init folder > mine.toml", "a commented beginning, for images of yours"},
        {"lockstep config schema > lockstep.schema.json", "for an editor"}}},
      {"bench",
       "bench",
       {{"lockstep bench step data/configs/quickstart.toml -d cpu:4 --iters 10",
         "how long a training step takes"},
        {"lockstep bench exchange -d cpu:4 --iters 10", "what a BatchNorm exchange costs"}}},
      {"doctor",
       "gpu",
       {{"lockstep doctor", "what is here, and what to do about each problem"},
        {"lockstep doctor --verbose --json", "the same with details, for a script"}}},
      {"selftest",
       "selftest",
       {{"lockstep selftest -d cpu:4", "on four virtual devices, in a few seconds"}}},
      {"docs",
       "",
       {{"lockstep docs", "the list, and where the pages lie"},
        {"lockstep docs run_folder", "one page"}}},
      {"inspect",
       "inspect",
       {{"lockstep inspect runs/first --filter '*.running_var'",
         "tensors of the last checkpoint, and whether its BatchNorm layers are sound"},
        {"lockstep inspect runs/first runs/first/ckpt/last.safetensors",
         "where two files of weights differ: exit code 0 where they do not"}}}};
  return help;
}

const Help* find_help(std::string_view subcommand) {
  for (const Help& help : all_help()) {
    if (help.subcommand == subcommand) return &help;
  }
  return nullptr;
}

std::string footer_of(std::string_view subcommand) {
  std::string text;
  for (const HelpExample& example : examples_of(subcommand)) {
    text += fmt::format("{}  {}\n      {}\n", text.empty() ? "Examples:\n" : "", example.command,
                        example.says);
  }
  if (const std::string_view page = page_of(subcommand); !page.empty())
    text += fmt::format("\nMore: lockstep docs {}\n", page);
  text += "\nExit codes:";
  for (const auto& [code, says] : exit_codes())
    text += fmt::format("{} {} {}", code == kExitDone ? "" : ",", code, says);
  return text + ".";
}

}  // namespace

std::span<const HelpExample> examples_of(std::string_view subcommand) {
  const Help* help = find_help(subcommand);
  return help == nullptr ? std::span<const HelpExample>() : help->examples;
}

std::string_view page_of(std::string_view subcommand) {
  const Help* help = find_help(subcommand);
  return help == nullptr ? "" : help->page;
}

std::span<const ExitCode> exit_codes() {
  static constexpr ExitCode kCodes[] = {{kExitDone, "done"},
                                        {kExitFailure, "failure (inspect: the files differ)"},
                                        {kExitUsage, "usage or configuration"},
                                        {kExitData, "data"},
                                        {kExitNonFinite, "loss or gradient not finite"},
                                        {kExitReplica, "replica stalled or failed"},
                                        {kExitInterrupted, "interrupted"}};
  return kCodes;
}

bool takes_many(const CLI::Option& option) {
  return option.get_expected_max() >= CLI::detail::expected_max_vector_size;
}

void add_footers(CLI::App& app) {
  app.footer(footer_of(""));
  for (CLI::App* command : app.get_subcommands({})) command->footer(footer_of(command->get_name()));
}

}  // namespace lockstep
