#pragma once
// The words that the program is started with. CLI11, which takes them apart, is known to
// command_line.cpp alone.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "app/command.h"

namespace lockstep {

/// A subcommand that can be parsed.
struct DeclaredCommand {
  Command command;
  std::unique_ptr<Options> options;
  std::function<int()> run;
};

/// Every subcommand, in the order of the help.
class CommandLine {
 public:
  explicit CommandLine(const CommonArguments& common);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  std::span<const DeclaredCommand> commands() const { return commands_; }
  /// Null where there is none of this name.
  const DeclaredCommand* find(const std::string& name) const;
  /// Those of the program itself.
  std::vector<OptionShape> options() const;
  std::string help() const;

  /// The subcommand that was typed, with its values; null: help or a version was asked for and
  /// printed. `argv[0]` is the program. Throws ConfigError for what cannot be parsed, and says
  /// where a positional is missing what there is to choose from.
  const DeclaredCommand* parse(std::span<const char* const> argv);

 private:
  std::unique_ptr<CLI::App> app_;
  std::vector<DeclaredCommand> commands_;
};

}  // namespace lockstep
