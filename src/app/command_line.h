#pragma once
// What can be typed: the subcommands and their options, as CLI11 is told of them.

#include <functional>
#include <string>
#include <vector>

#include "app/cli.h"

namespace CLI {
class App;
}

namespace lockstep {

/// The parsed command line: one struct per subcommand, and what to run.
struct CommandLine {
  CommonArguments common;
  std::string seed, max_iters, resume;
  TrainArguments train;
  EvalArguments eval;
  PredictArguments predict;
  ExportArguments exported;
  CompareArguments compare;
  ReportArguments report;
  BenchArguments bench;
  LogsArguments logs;
  DataArguments data;
  PlanArguments plan;
  ConfigArguments config;
  DoctorArguments doctor;
  SelftestArguments selftest;
  DocsArguments docs;
  InspectArguments inspect;
};

/// A subcommand as it is declared, and what carries it out when `line` has been filled.
struct Command {
  CLI::App* declared = nullptr;
  std::function<int(CommandLine& line)> run;
};

/// Declares every subcommand, in the order of the help; parsing fills `line`, which outlives `app`.
std::vector<Command> add_commands(CLI::App& app, CommandLine& line);

}  // namespace lockstep
