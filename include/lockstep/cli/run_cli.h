#pragma once
// The way into the program for `main`.

namespace lockstep {

/// Parses the command line and carries it out; returns the exit code. Throws ConfigError for an
/// unknown subcommand or option, with a suggestion, and whatever the command throws.
int run_cli(int argc, const char* const* argv);

}  // namespace lockstep
