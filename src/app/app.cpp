#include "lockstep/app.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <sstream>
#include <string_view>

#include "app/command.h"
#include "app/completion.h"
#include "app/first_screen.h"
#include "app/terminal.h"
#include "config/suggest.h"
#include "core/memory.h"
#include "lockstep/core/check.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const auto nearest = nearest_word(word, known);
  return nearest ? fmt::format("; did you mean `{}`?", *nearest) : "";
}

// CLI11 only says that a subcommand is required, so the word is looked at before it parses.
void check_subcommand(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  const std::string list = fmt::format("{}", fmt::join(names, ", "));
  if (word.starts_with("-") || std::find(names.begin(), names.end(), word) != names.end()) return;
  const std::string hint = did_you_mean(word, names);
  throw ConfigError(fmt::format("unknown subcommand `{}`{}", word,
                                hint.empty() ? "; expected one of " + list : hint));
}

// The options of a subcommand are checked here, for the same reason.
void check_leftovers(const CLI::App& command) {
  bool marked = false;  // by "--": what follows are arguments
  for (const std::string& word : command.remaining()) {
    if (!marked && word == "--") {
      marked = true;
      continue;
    }
    const bool option = !marked && word.starts_with("-");
    throw ConfigError(fmt::format(
        "{}: unexpected {} `{}`{}", command.get_name(), option ? "option" : "argument", word,
        option ? did_you_mean(word.substr(0, word.find('=')), option_names(command)) : ""));
  }
}

/// What the library has behind what the user has, which is found first.
template <typename Table>
Table joined(const Table& own, const Table& builtin) {
  Table all = own;
  all.insert(all.end(), builtin.begin(), builtin.end());
  return all;
}

/// What the shells' scripts ask for; no subcommand of anyone else's.
std::optional<int> run_hidden(const CLI::App& app, int argc, const char* const* argv,
                              const Tables& tables) {
  const std::string_view word = argc > 1 ? argv[1] : "";
  if (word == "__complete") {
    const std::vector<std::string> words(argv + 2, argv + argc);
    fmt::print("{}", to_text(complete(app, words, tables)));
    return kExitDone;
  }
  return std::nullopt;
}

/// `help COMMAND` is `COMMAND --help`.
std::vector<const char*> without_help(int argc, const char* const* argv) {
  std::vector<const char*> words(argv, argv + argc);
  if (words.size() < 2 || std::string_view(words[1]) != "help") return words;
  words.erase(words.begin() + 1);
  words.resize(std::min<std::size_t>(words.size(), 2));
  words.push_back("--help");
  return words;
}

/// What the typed subcommand lacks; nothing where it is another mistake.
std::optional<std::string> what_is_missing(std::span<const DeclaredCommand> commands,
                                           std::span<const char* const> words) {
  const std::vector<std::string> typed(words.begin() + 1, words.end());
  for (const DeclaredCommand& command : commands) {
    if (typed.empty() || command.command.name != typed.front()) continue;
    const auto missing = command.options->missing();
    if (missing) return describe_missing(command.command, *missing, typed);
  }
  return std::nullopt;
}

/// The subcommand that was typed.
const DeclaredCommand& parse(CLI::App& app, std::span<const DeclaredCommand> commands, int argc,
                             const char* const* argv) {
  check_subcommand(app, argv[1]);
  app.parse(argc, argv);
  const auto chosen = std::ranges::find_if(
      commands, [](const DeclaredCommand& command) { return command.parser->parsed(); });
  if (chosen == commands.end()) throw ConfigError("expected a subcommand; --help says more");
  check_leftovers(*chosen->parser);
  return *chosen;
}

int run_alone(const DeclaredCommand& chosen) {
  check_alone(chosen.command.name);
  chosen.options->check();
  return chosen.run();
}

/// By the processes that were started together. What one throws where there are several ends all of
/// them, with an exit code that says why.
int run_in_world(const DeclaredCommand& chosen) {
  const std::unique_ptr<World> world = init_world();
  try {
    chosen.options->set_world(*world);
    chosen.options->check();
    return chosen.run();
  } catch (const std::exception& error) {
    if (world->size() == 1) throw;
    if (world->shows_error(error.what())) show_error(error);
    world->announce_failure(error.what());
    const int exit_code = exit_code_of(error);
    world->abort(exit_code);
    return exit_code;  // for compilers that do not see that nothing comes back
  }
}

int run_command(int argc, const char* const* argv, const Tables& tables) {
  const std::vector<const char*> words = without_help(argc, argv);
  CLI::App app(program().says, program().name);
  app.set_version_flag("--version", std::string("lockstep ") + LOCKSTEP_VERSION);
  CommonArguments common;
  common.program = argv[0];
  common.tables = &tables;
  const auto commands = declare_commands(app, common);
  if (const auto exit_code = run_hidden(app, argc, argv, tables)) return *exit_code;
  if (argc < 2) {
    fmt::print("{}\n", app.help());
    throw ConfigError("expected a subcommand, for example lockstep quickstart");
  }
  try {
    const DeclaredCommand& chosen =
        parse(app, commands, static_cast<int>(words.size()), words.data());
    const ShownProgress shown;
    if (!chosen.command.by_several_processes) return run_alone(chosen);
    return run_in_world(chosen);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      const bool lacks = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
      if (const auto missing = what_is_missing(commands, words); lacks && missing) {
        throw ConfigError(*missing);
      }
      throw ConfigError(error.what());
    }
    std::ostringstream text;  // --help, --version
    const int exit_code = app.exit(error, text);
    fmt::print("{}", text.str());
    return exit_code;
  }
}

}  // namespace

// Errors in a configuration begin with file and line, as a compiler's, and stand as they are.
void show_error(const std::exception& error) {
  const std::string_view text = error.what();
  const bool located = text.substr(0, text.find('\n')).find(": error: ") != std::string_view::npos;
  std::fprintf(stderr, "%s%s\n", located ? "" : "lockstep: error: ", error.what());
  std::fflush(nullptr);
}

void check_alone(const std::string& command) {
  if (!launched_with_others()) return;
  throw ConfigError("lockstep " + command +
                    " runs in one process; of several, as mpirun and srun start them, train, "
                    "compare, eval, bench step and bench exchange make use");
}

int run_cli(int argc, const char* const* argv, const CliOptions& options) {
  const Tables tables{joined(options.models, builtin_models()),
                      joined(options.datasets, builtin_layouts())};
  PrintedOutput output;
  explain_bad_alloc();
  int exit_code = kExitFailure;
  try {
    exit_code = run_command(argc, argv, tables);
  } catch (const std::exception& error) {
    show_error(error);
    exit_code = exit_code_of(error);
  }
  exit_code = output.finish(exit_code);
  if (threads_left_behind()) {
    std::fflush(nullptr);
    std::_Exit(exit_code);
  }
  return exit_code;
}

}  // namespace lockstep
