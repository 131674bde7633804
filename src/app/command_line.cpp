#include "app/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <type_traits>

#include "app/files.h"
#include "app/first_screen.h"
#include "core/home_path.h"
#include "core/words.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

bool takes_one(const CLI::Option& option) {
  return option.nonpositional() && option.get_items_expected_max() == 1;
}

OptionShape shape_of(const CLI::Option& option) {
  OptionShape shape{.says = option.get_description(), .takes = option.get_type_name()};
  shape.positional = option.get_positional();
  if (shape.takes.empty()) shape.takes = option.get_name(true, false);
  for (const std::string& name : option.get_lnames()) shape.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) shape.names.push_back("-" + name);
  if (shape.positional) shape.names = {option.get_name(true, false)};
  shape.takes_value = option.get_type_size() != 0;
  shape.needs_value = option.get_expected_min() > 0;
  shape.repeats = option.get_expected_max() >= CLI::detail::expected_max_vector_size;
  return shape;
}

std::vector<OptionShape> shapes_of(const CLI::App& parser) {
  std::vector<OptionShape> shapes;
  for (const CLI::Option* option : parser.get_options()) shapes.push_back(shape_of(*option));
  return shapes;
}

bool is_option(const std::string& word) { return word.starts_with("-") && word != "--"; }

/// `text` as a whole is a number.
template <typename Number>
std::optional<Number> read_number(const std::string& text) {
  Number value = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  return read.ec == std::errc() && read.ptr == end ? std::optional(value) : std::nullopt;
}

/// Has what is given for `option` changed before anybody sees it.
template <typename Change>
void change_paths(CLI::Option& option, Change change) {
  option.transform(CLI::Validator(
      [change](std::string& path) {
        path = change(std::filesystem::path(path)).string();
        return std::string();
      },
      ""));
}

}  // namespace

CommandOption& CommandOption::required() {
  option_->required();
  return *this;
}

CommandOption& CommandOption::takes(const std::string& type) {
  option_->type_name(type);
  constexpr const char* kWords = "abcdefghijklmnopqrstuvwxyz_|";
  if (type.empty() || type.find_first_not_of(kWords) != std::string::npos) return *this;
  const std::vector<std::string> words = CLI::detail::split(type, '|');
  option_->check([words](const std::string& text) {
    if (std::ranges::find(words, text) != words.end()) return std::string();
    return fmt::format("expected one of {}, got {}", joined(words), text);
  });
  return *this;
}

CommandOption& CommandOption::takes_count(std::int64_t least, std::int64_t most) {
  option_->check([=](const std::string& text) {
    const auto value = read_number<std::int64_t>(text);
    if (value && *value >= least && *value <= most) return std::string();
    return fmt::format("expected an integer from {} to {}, got {}", least, most, text);
  });
  return takes("N");
}

CommandOption& CommandOption::takes_positive() {
  option_->check([](const std::string& text) {
    const auto value = read_number<double>(text);
    const bool good = value && std::isfinite(*value) && *value > 0;
    return good ? std::string() : fmt::format("expected a number > 0, got {}", text);
  });
  return *this;
}

CommandOption& CommandOption::value_may_be_missing() {
  option_->expected(0, 1);
  return *this;
}

CommandOption& CommandOption::one_value_each() {
  option_->allow_extra_args(false);
  return *this;
}

CommandOption& CommandOption::separated_by_commas() {
  option_->delimiter(',');
  return *this;
}

CommandOption& CommandOption::shows_default() {
  option_->capture_default_str();
  return *this;
}

CommandOption& CommandOption::needs(const CommandOption& other) {
  option_->needs(other.option_);
  return *this;
}

CommandOption& CommandOption::goes_with(std::vector<std::string> words) {
  goes_with_.push_back({option_, std::move(words)});
  return *this;
}

template <typename Value>
CommandOption Options::add(const std::string& names, Value& value, const std::string& says) {
  CLI::Option* option = command_.add_option(names, value, says);
  if constexpr (std::is_same_v<Value, std::filesystem::path> ||
                std::is_same_v<Value, std::vector<std::filesystem::path>>) {
    change_paths(*option, expand_home);
  }
  return {option, goes_with_};
}
template CommandOption Options::add(const std::string&, std::string&, const std::string&);
template CommandOption Options::add(const std::string&, std::vector<std::string>&,
                                    const std::string&);
template CommandOption Options::add(const std::string&, std::filesystem::path&, const std::string&);
template CommandOption Options::add(const std::string&, std::vector<std::filesystem::path>&,
                                    const std::string&);
template CommandOption Options::add(const std::string&, int&, const std::string&);
template CommandOption Options::add(const std::string&, std::int64_t&, const std::string&);
template CommandOption Options::add(const std::string&, std::vector<std::int64_t>&,
                                    const std::string&);
template CommandOption Options::add(const std::string&, double&, const std::string&);

CommandOption Options::add_flag(const std::string& names, bool& value, const std::string& says) {
  return {command_.add_flag(names, value, says), goes_with_};
}

template <typename Paths>
CommandOption Options::add_config(const std::string& names, Paths& value, const std::string& says) {
  CLI::Option* option = command_.add_option(names, value, says);
  change_paths(*option,
               [](const std::filesystem::path& path) { return here_or_shared(expand_home(path)); });
  option->type_name(option->nonpositional() ? "CONFIG" : "");
  return {option, goes_with_};
}
template CommandOption Options::add_config(const std::string&, std::filesystem::path&,
                                           const std::string&);
template CommandOption Options::add_config(const std::string&, std::vector<std::filesystem::path>&,
                                           const std::string&);

CommandOption Options::add_devices() {
  return add("-d,--devices", common_.devices,
             "cpu:4 (virtual devices), cuda:0,1, cuda:all, cuda:0x4; default: all GPUs, else cpu:1")
      .takes("DEVICES");
}

CommandOption Options::add_overrides() {
  CLI::Option* option = command_.add_option("-s,--set", common_.overrides,
                                            "key=value, for example bn.mode=sync; may be repeated");
  option->type_name("KEY=VALUE")->expected(-1)->allow_extra_args(false);
  return {option, goes_with_};
}

CommandOption Options::add_output(const char* takes, const std::string& says) {
  return add("-o,--output", common_.output, says).takes(takes);
}

void Options::add_json() { add_flag("--json", common_.json, "print JSON and nothing else"); }

void Options::add_weights(std::filesystem::path& target, std::filesystem::path& config) {
  add("TARGET", target,
      "run folder (its last checkpoint), checkpoint, or with -c any weights, also .pth")
      .takes("RUN|FILE")
      .required();
  add_config("-c,--config", config, "configuration; default: the run's own");
}

void Options::add_augmentation(bool& flip, std::string& scales) {
  add_flag("--flip", flip, "test-time augmentation: also the mirrored image");
  add("--scales", scales, "test-time augmentation: probabilities averaged over scales, 0.5,1,1.5")
      .takes("X,...");
}

void Options::add_windows(WindowArguments& windows) {
  add("--window", windows.window,
      "images in windows of so many pixels, which memory is planned for (eval.window)")
      .takes("H,W");
  add("--overlap", windows.overlap, "share of a window that the next one has, too (eval.overlap)")
      .takes("SHARE");
  add("--blend", windows.blend, "what windows that overlap come to (eval.blend)")
      .takes("crop|gaussian|flat");
}

void Options::after_parsing(std::function<void()> check) { command_.callback(std::move(check)); }

bool Options::given(const std::string& name) const { return command_.count(name) > 0; }

std::vector<OptionShape> Options::shapes() const { return shapes_of(command_); }

std::optional<OptionShape> Options::missing() const {
  for (const CLI::Option* option : std::as_const(command_).get_options()) {
    if (option->get_positional() && option->get_required() && option->count() == 0) {
      return shape_of(*option);
    }
  }
  return std::nullopt;
}

std::vector<std::string> Options::leftovers() const { return command_.remaining(); }

void Options::check() const {
  check_values();
  check_together();
}

void Options::check_values() const {
  for (const CLI::Option* option : std::as_const(command_).get_options()) {
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

void Options::check_together() const {
  for (const auto& [option, words] : goes_with_) {
    if (option->count() == 0) continue;
    const CLI::Option& first =
        *command_.get_options([](const CLI::Option* any) { return any->get_positional(); }).front();
    const std::string word = first.results().front();
    if (std::ranges::find(words, word) != words.end()) continue;
    const std::string& name = command_.get_name();
    throw ConfigError(fmt::format("{} goes with {} {}, not with {} {}", option->get_name(), name,
                                  fmt::join(words, ", "), name, word));
  }
}

namespace {

DeclaredCommand declare(Command command, CLI::App& app, const CommonArguments& common) {
  CLI::App& parser = *app.add_subcommand(command.name, command.says);
  auto options = std::make_unique<Options>(parser, common);
  std::function<int()> run = command.declare(*options);
  // The parser's own message says nothing of an option that is there twice; Options::check does.
  for (CLI::Option* option : parser.get_options())
    if (takes_one(*option)) option->take_last();
  parser.allow_extras();
  parser.footer(footer_of(command));
  return {std::move(command), std::move(options), std::move(run)};
}

}  // namespace

CommandLine::CommandLine(const CommonArguments& common)
    : app_(std::make_unique<CLI::App>(program().says, program().name)) {
  app_->set_version_flag("--version", std::string("lockstep ") + LOCKSTEP_VERSION);
  for (Command& command : all_commands())
    commands_.push_back(declare(std::move(command), *app_, common));
  // Behind a subcommand its name and no other's is one: `docs predict` is a page.
  app_->require_subcommand(0, 1);
  app_->footer(footer_of(program()));
}

CommandLine::~CommandLine() = default;

const DeclaredCommand* CommandLine::find(const std::string& name) const {
  const auto found = std::ranges::find(commands_, name,
                                       [](const auto& declared) { return declared.command.name; });
  return found == commands_.end() ? nullptr : &*found;
}

std::vector<OptionShape> CommandLine::options() const { return shapes_of(*app_); }

std::string CommandLine::help() const { return app_->help(); }

const DeclaredCommand* CommandLine::parse(std::span<const char* const> argv) {
  const std::vector<std::string> typed(argv.begin() + 1, argv.end());
  try {
    app_->parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      std::ostringstream text;
      app_->exit(error, text);
      fmt::print("{}", text.str());
      return nullptr;
    }
    const bool lacks = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
    const DeclaredCommand* const command = lacks ? find(typed.front()) : nullptr;
    const std::vector<std::string> unknown =
        command != nullptr ? command->options->leftovers() : std::vector<std::string>();
    // A word that was misspelled is told of by whoever looks at what is left over.
    if (std::ranges::any_of(unknown, is_option)) return command;
    const auto missing = command != nullptr ? command->options->missing() : std::nullopt;
    throw ConfigError(missing ? describe_missing(command->command, *missing, typed) : error.what());
  }
  const std::vector<CLI::App*> chosen = app_->get_subcommands();
  if (chosen.empty()) throw ConfigError("expected a subcommand; --help says more");
  return find(chosen.front()->get_name());
}

}  // namespace lockstep
