#include "app/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

// CMakeLists.txt names the commands, in the order of the help: COMMAND(train) COMMAND(eval) ...
#define COMMAND(name) Command name##_command();
namespace lockstep {
LOCKSTEP_COMMANDS
}  // namespace lockstep
#undef COMMAND

namespace lockstep {
namespace {

std::vector<Command> all_commands() {
#define COMMAND(name) name##_command(),
  return {LOCKSTEP_COMMANDS};
#undef COMMAND
}

/// What help says below the options.
std::string footer_of(const Command& command) {
  std::string text;
  for (const HelpExample& example : command.examples) {
    text += fmt::format("{}  {}\n      {}\n", text.empty() ? "Examples:\n" : "", example.command,
                        example.says);
  }
  if (!command.page.empty()) text += fmt::format("\nMore: lockstep docs {}\n", command.page);
  text += "\nExit codes:";
  for (const auto& [code, says] : exit_codes())
    text += fmt::format("{} {} {}", code == kExitDone ? "" : ",", code, says);
  return text + ".";
}

/// The parser's own message says nothing of an option that is there twice; Options::check does.
void let_repeat(CLI::App& parser) {
  for (CLI::Option* option : parser.get_options()) {
    if (option->nonpositional() && option->get_items_expected_max() == 1) option->take_last();
  }
}

DeclaredCommand declare(Command command, CLI::App& app, const CommonArguments& common) {
  CLI::App& parser = *app.add_subcommand(command.name, command.says);
  auto options = std::make_unique<Options>(parser);
  options->set_common(common);
  std::function<int()> run = command.declare(*options);
  let_repeat(parser);
  parser.allow_extras();
  parser.footer(footer_of(command));
  return {std::move(command), &parser, std::move(options), std::move(run)};
}

}  // namespace

const Command& program() {
  static const Command program{
      .name = "lockstep",
      .says =
          "Trains semantic-segmentation networks on every device of one workstation, and "
          "compares per-device, synchronized and Ghost BatchNorm.",
      .page = "readme",
      .examples = {
          {"lockstep doctor", "is all well with this machine and this build?"},
          {"lockstep train data/configs/quickstart.toml -d cpu:4 -s bn.mode=sync -o runs/first",
           "train a small network, with synchronized BatchNorm on four virtual devices"},
          {"lockstep eval runs/first", "what it has learned, class by class"},
          {"lockstep compare data/configs/quickstart.toml --modes local,sync --seeds 2 -d cpu:4 "
           "-o runs/compare",
           "does this training need synchronized BatchNorm?"},
          {"lockstep config init folder > mine.toml", "begin a configuration of your own"},
          {"lockstep docs", "the pages of the documentation"}}};
  return program;
}

std::vector<DeclaredCommand> declare_commands(CLI::App& app, const CommonArguments& common) {
  std::vector<DeclaredCommand> declared;
  for (Command& command : all_commands())
    declared.push_back(declare(std::move(command), app, common));
  // Behind a subcommand its name and no other's is one: `docs predict` is a page.
  app.require_subcommand(0, 1);
  app.footer(footer_of(program()));
  return declared;
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

}  // namespace lockstep
