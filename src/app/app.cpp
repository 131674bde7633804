#include "lockstep/app.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string_view>

#include "app/command_line.h"
#include "app/completion.h"
#include "app/terminal.h"
#include "config/suggest.h"
#include "core/memory.h"
#include "lockstep/core/check.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const auto nearest = nearest_word(word, known);
  return nearest ? fmt::format("; did you mean `{}`?", *nearest) : "";
}

// The parser only says that a subcommand is required, so the word is looked at before it parses.
void check_subcommand(const CommandLine& line, const std::string& word) {
  if (word.starts_with("-") || line.find(word) != nullptr) return;
  std::vector<std::string> names;
  for (const DeclaredCommand& declared : line.commands()) names.push_back(declared.command.name);
  const std::string hint = did_you_mean(word, names);
  throw ConfigError(fmt::format(
      "unknown subcommand `{}`{}", word,
      hint.empty() ? fmt::format("; expected one of {}", fmt::join(names, ", ")) : hint));
}

// The options of a subcommand are checked here, for the same reason.
void check_leftovers(const DeclaredCommand& chosen) {
  bool marked = false;  // by "--": what follows are arguments
  for (const std::string& word : chosen.options->leftovers()) {
    if (!marked && word == "--") {
      marked = true;
      continue;
    }
    const bool option = !marked && word.starts_with("-");
    std::vector<std::string> known;
    for (const OptionShape& shape : chosen.options->shapes())
      if (!shape.positional) known.insert(known.end(), shape.names.begin(), shape.names.end());
    throw ConfigError(
        fmt::format("{}: unexpected {} `{}`{}", chosen.command.name, option ? "option" : "argument",
                    word, option ? did_you_mean(word.substr(0, word.find('=')), known) : ""));
  }
}

/// What the library has behind what the user has, which is found first.
template <typename Table>
Table joined(const Table& own, const Table& builtin) {
  Table all = own;
  all.insert(all.end(), builtin.begin(), builtin.end());
  return all;
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
  CommonArguments common;
  common.program = argv[0];
  common.tables = &tables;
  CommandLine line(common);
  if (argc > 1 && std::string_view(argv[1]) == "__complete") {  // the shells' scripts ask
    const std::vector<std::string> words(argv + 2, argv + argc);
    fmt::print("{}", to_text(complete(line, words, tables)));
    return kExitDone;
  }
  if (argc < 2) {
    fmt::print("{}\n", line.help());
    throw ConfigError("expected a subcommand, for example lockstep quickstart");
  }
  const std::vector<const char*> words = without_help(argc, argv);
  check_subcommand(line, words[1]);
  const DeclaredCommand* const chosen = line.parse(words);
  if (chosen == nullptr) return kExitDone;
  check_leftovers(*chosen);
  const ShownProgress shown;
  return chosen->command.by_several_processes ? run_in_world(*chosen) : run_alone(*chosen);
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
  open_standard_streams();
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
