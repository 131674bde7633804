#include "app/argument_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// Options that mean something only with some of the words that the first positional takes.
struct GoesWith {
  std::string_view command;
  std::string option;
  std::vector<std::string> words;
};

const std::vector<GoesWith>& all_that_go_with() {
  static const std::vector<GoesWith> all{{"logs", "--key", {"plot"}},
                                         {"logs", "--svg", {"plot"}},
                                         {"logs", "--follow", {"tail"}},
                                         {"logs", "--csv", {"export"}},
                                         {"logs", "--tensorboard", {"export"}},
                                         {"data", "--output", {"preview"}},
                                         {"config", "INPUT", {"show", "diff", "init"}},
                                         {"config", "--set", {"show", "diff"}},
                                         {"bench", "CONFIG", {"step", "layers"}},
                                         {"bench", "--against", {"step"}},
                                         {"bench", "--eval", {"layers"}},
                                         {"bench", "--set", {"step", "layers"}}};
  return all;
}

bool takes_one(const CLI::Option& option) {
  return option.nonpositional() && option.get_items_expected_max() == 1;
}

}  // namespace

void takes_count(CLI::Option* option, std::int64_t least, std::int64_t most) {
  const auto check = [=](const std::string& text) {
    std::int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, value);
    if (read.ec == std::errc() && read.ptr == end && value >= least && value <= most) {
      return std::string();
    }
    return fmt::format("expected an integer from {} to {}, got {}", least, most, text);
  };
  option->check(check)->type_name("N");
}

void takes_positive(CLI::Option* option) {
  option->check([](const std::string& text) {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, value);
    const bool good = read.ec == std::errc() && read.ptr == end && std::isfinite(value);
    return good && value > 0 ? std::string() : fmt::format("expected a number > 0, got {}", text);
  });
}

void let_repeat(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (takes_one(*option)) option->take_last();
  }
}

void check_values(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    const std::vector<std::string>& values = option->results();
    if (takes_one(*option) && values.size() > 1) {
      throw ConfigError(fmt::format("{}: expected once, got {} of them: {}", option->get_name(),
                                    values.size(), fmt::join(values, ", ")));
    }
    const bool may_be_empty = option->get_items_expected_min() == 0;
    if (!may_be_empty && std::ranges::find(values, "") != values.end()) {
      throw ConfigError(
          fmt::format("{}: expected a value, got an empty word; is a variable of the shell not "
                      "set?",
                      option->get_name()));
    }
  }
}

void check_together(const CLI::App& command) {
  for (const GoesWith& row : all_that_go_with()) {
    if (row.command != command.get_name() || command.count(row.option) == 0) continue;
    const CLI::Option& first =
        *command.get_options([](const CLI::Option* option) { return option->get_positional(); })
             .front();
    const std::string word = first.results().front();
    const std::vector<std::string> known = CLI::detail::split(first.get_type_name(), '|');
    if (std::ranges::find(row.words, word) != row.words.end() ||
        std::ranges::find(known, word) == known.end()) {
      continue;
    }
    throw ConfigError(fmt::format("{} goes with {} {}, not with {} {}", row.option, row.command,
                                  fmt::join(row.words, ", "), row.command, word));
  }
}

}  // namespace lockstep
