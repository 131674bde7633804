#include "app/command.h"

#include <fmt/format.h>

// CMakeLists.txt names the commands, in the order of the help: COMMAND(train) COMMAND(eval) ...
#define COMMAND(name) Command name##_command();
namespace lockstep {
LOCKSTEP_COMMANDS
}  // namespace lockstep
#undef COMMAND

namespace lockstep {

std::vector<Command> all_commands() {
#define COMMAND(name) name##_command(),
  return {LOCKSTEP_COMMANDS};
#undef COMMAND
}

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

std::vector<std::string> WindowArguments::overrides() const {
  std::vector<std::string> keys;
  const bool square = window.find(',') == std::string::npos;
  if (!window.empty()) {
    keys.push_back(square ? fmt::format("eval.window=[{0},{0}]", window)
                          : fmt::format("eval.window=[{}]", window));
  }
  if (!overlap.empty()) keys.push_back("eval.overlap=" + overlap);
  if (!blend.empty()) keys.push_back("eval.blend=" + blend);
  return keys;
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
