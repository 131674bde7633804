#pragma once
// What the help and the man pages say beside the options: examples, exit codes, where to read on.

#include <span>
#include <string>
#include <string_view>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lockstep {

/// A command line that works as it stands, in the order of the examples; a test runs them.
struct HelpExample {
  const char* command;
  const char* says;
};

/// Of a subcommand; "": of the program.
std::span<const HelpExample> examples_of(std::string_view subcommand);

/// The page of the documentation that says more (`lockstep docs PAGE`); "" where there is none.
std::string_view page_of(std::string_view subcommand);

struct ExitCode {
  int code;
  const char* says;
};

std::span<const ExitCode> exit_codes();

/// Whether the option is given any number of values.
bool takes_many(const CLI::Option& option);

/// Puts all of it below the options in the help of the program and of each subcommand.
void add_footers(CLI::App& app);

}  // namespace lockstep
