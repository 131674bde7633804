#pragma once
// A subcommand is one file, COMMAND_command.cpp: what it takes, what its help says, and its work.
// It defines `Command COMMAND_command()`, and CMakeLists.txt names it once. Help,
// completion and messages about wrong words come from what it declares. Commands return an exit
// code or throw; only `main` turns exceptions into exit codes.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "lockstep/sync/world.h"
#include "run/exit_code.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lockstep {

/// What several subcommands share.
struct CommonArguments {
  std::string program = "lockstep";                      // argv[0], for commands that are shown
  std::string devices;                                   // -d; empty: the default
  std::vector<std::string> overrides;                    // -s key=value
  std::filesystem::path output;                          // -o; empty: not given
  bool json = false;                                     // --json: nothing but JSON on stdout
  std::reference_wrapper<World> world = World::alone();  // the processes that run the command
  const Tables* tables = &builtin_tables();
};

/// --window, --overlap and --blend: keys of the section eval.
struct WindowArguments {
  std::string window, overlap, blend;  // empty: not given

  /// As -s would have them.
  std::vector<std::string> overrides() const;
};

/// Options that mean something only with some of the words that the first positional takes.
struct GoesWith {
  const CLI::Option* option;
  std::vector<std::string> words;
};

/// An option that is being declared.
class CommandOption {
 public:
  CommandOption(CLI::Option* option, std::vector<GoesWith>& goes_with)
      : option_(option), goes_with_(goes_with) {}

  CommandOption& required();
  /// What it takes, which help and completion have in common: words in small letters are what may
  /// be typed, and nothing else where there are no others; with ,... several of them; names in
  /// capitals are kinds of things, of which CONFIG, DIR, FILE, RUN, DEVICES, KEY=VALUE, LAYOUT and
  /// PAGE can be completed. A positional option without one is of the kind that its name says.
  CommandOption& takes(const std::string& type);
  /// Whole numbers from `least` to `most`.
  CommandOption& takes_count(std::int64_t least, std::int64_t most);
  /// Numbers above 0.
  CommandOption& takes_positive();
  /// May be there without a value.
  CommandOption& value_may_be_missing();
  /// Each time it is there, it takes one value.
  CommandOption& one_value_each();
  /// Several values in one word, with commas between them.
  CommandOption& separated_by_commas();
  /// The help says what it is when it is not given.
  CommandOption& shows_default();
  CommandOption& needs(const CommandOption& other);
  /// Refused where the first positional is another word.
  CommandOption& goes_with(std::vector<std::string> words);

 private:
  CLI::Option* option_;
  std::vector<GoesWith>& goes_with_;
};

/// An option as it can be typed.
struct OptionShape {
  std::vector<std::string> names = {};  // "--output", "-o"; of a positional its one: "TARGET"
  std::string says = {};
  std::string takes = {};  // CommandOption::takes, else its name
  bool positional = false;
  bool takes_value = false, needs_value = false;  // neither: a flag
  bool repeats = false;
};

/// The options of a subcommand, in the order of its help. Their values are filled in by parsing.
class Options {
 public:
  Options(CLI::App& command, const CommonArguments& common) : command_(command), common_(common) {}
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  /// "-o,--output" or, for a positional, "TARGET".
  template <typename Value>
  CommandOption add(const std::string& names, Value& value, const std::string& says);
  CommandOption add_flag(const std::string& names, bool& value, const std::string& says);
  /// A configuration, or several; those that come with Lockstep are found from everywhere.
  template <typename Paths>
  CommandOption add_config(const std::string& names, Paths& value, const std::string& says);

  CommandOption add_devices();
  CommandOption add_overrides();
  CommandOption add_output(const char* takes, const std::string& says);
  void add_json();
  /// TARGET, a trained network, and -c, its configuration.
  void add_weights(std::filesystem::path& target, std::filesystem::path& config);
  /// --flip and --scales.
  void add_augmentation(bool& flip, std::string& scales);
  void add_windows(WindowArguments& windows);

  /// Called as soon as all values are there.
  void after_parsing(std::function<void()> check);
  bool given(const std::string& name) const;
  std::vector<OptionShape> shapes() const;
  /// The first positional that is required and not there. After parsing, also where that has
  /// failed.
  std::optional<OptionShape> missing() const;
  /// Words that nothing takes. After parsing.
  std::vector<std::string> leftovers() const;

  /// Throws ConfigError for what the parser lets pass: an option that is there twice, one that
  /// would be ignored, and an empty value, which an unset variable of a shell leaves: it is no
  /// default.
  void check() const;
  const CommonArguments& common() const { return common_; }
  void set_world(World& world) { common_.world = world; }

 private:
  void check_values() const;
  void check_together() const;

  CLI::App& command_;
  CommonArguments common_;
  std::vector<GoesWith> goes_with_;
};

/// A command line that works as it stands, in the order of the examples; a test runs them.
struct HelpExample {
  const char* command;
  const char* says;
};

/// A subcommand, as its file describes it.
struct Command {
  std::string name;
  std::string says;                        // what it is for
  std::string page = {};                   // `lockstep docs PAGE` says more; empty: no page does
  std::vector<HelpExample> examples = {};  // they name files as they lie in the source tree
  bool by_several_processes = false;       // else it refuses to be one of several
  /// Declares the options, and returns what carries the command out once they are parsed.
  std::function<std::function<int()>(Options& options)> declare = nullptr;
};

/// For Command::declare: `Arguments` begins with CommonArguments.
template <typename Arguments>
auto declares(void (*declare)(Options&, Arguments&), int (*run)(const Arguments&)) {
  return [=](Options& options) {
    const auto arguments = std::make_shared<Arguments>();
    declare(options, *arguments);
    return [=, &options] {
      arguments->common = options.common();
      return run(*arguments);
    };
  };
}

/// The program itself: what the commands are told beside, and its examples.
const Command& program();

/// Every subcommand, in the order of the help.
std::vector<Command> all_commands();
/// What the help of `command` says below the options.
std::string footer_of(const Command& command);

struct ExitCode {
  int code;
  const char* says;
};
std::span<const ExitCode> exit_codes();

/// Throws ConfigError where a launcher has started several processes, of which `command` makes no
/// use.
void check_alone(const std::string& command);

/// On stderr, as all commands show what ended them.
void show_error(const std::exception& error);

}  // namespace lockstep
