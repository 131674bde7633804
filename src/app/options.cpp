#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <type_traits>

#include "app/command.h"
#include "app/files.h"
#include "core/home_path.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

bool takes_one(const CLI::Option& option) {
  return option.nonpositional() && option.get_items_expected_max() == 1;
}

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

void Options::after_parsing(std::function<void()> check) { command_.callback(std::move(check)); }

bool Options::given(const std::string& name) const { return command_.count(name) > 0; }

std::optional<MissingArgument> Options::missing() const {
  for (const CLI::Option* option : std::as_const(command_).get_options()) {
    if (!option->get_positional() || !option->get_required() || option->count() > 0) continue;
    std::string type = option->get_type_name();
    if (type.empty()) type = option->get_name(true, false);
    return MissingArgument{option->get_name(true, false), option->get_description(),
                           CLI::detail::split(type, '|')};
  }
  return std::nullopt;
}

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

// A word that the positional does not take is left to the command.
void Options::check_together() const {
  for (const auto& [option, words] : goes_with_) {
    if (option->count() == 0) continue;
    const CLI::Option& first =
        *command_.get_options([](const CLI::Option* any) { return any->get_positional(); }).front();
    const std::string word = first.results().front();
    const std::vector<std::string> known = CLI::detail::split(first.get_type_name(), '|');
    if (std::ranges::find(words, word) != words.end() ||
        std::ranges::find(known, word) == known.end()) {
      continue;
    }
    const std::string& name = command_.get_name();
    throw ConfigError(fmt::format("{} goes with {} {}, not with {} {}", option->get_name(), name,
                                  fmt::join(words, ", "), name, word));
  }
}

}  // namespace lockstep
