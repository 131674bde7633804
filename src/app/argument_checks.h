#pragma once
// What the parser lets pass, or says too little of: values that are none, and options that would be
// ignored.

#include <cstdint>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lockstep {

/// The option takes whole numbers from `least` to `most`.
void takes_count(CLI::Option* option, std::int64_t least, std::int64_t most);
/// The option takes numbers above 0.
void takes_positive(CLI::Option* option);

/// Lets an option be there twice, which the parser's own message says nothing of: check_values
/// does.
void let_repeat(CLI::App& command);
/// Throws ConfigError for an option that is there twice, and for an empty value, which an unset
/// variable of a shell leaves: it is no default. After parsing.
void check_values(const CLI::App& command);
/// Throws ConfigError for an option that would be ignored. A word that the positional does not take
/// is left to the command. After parsing.
void check_together(const CLI::App& command);

}  // namespace lockstep
