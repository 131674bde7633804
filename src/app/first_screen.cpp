#include "app/first_screen.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "app/files.h"
#include "core/words.h"
#include "run/run_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

constexpr const char* kRuns = "runs";  // the default of run.work_dir
constexpr std::string_view kExampleRun = "runs/first";
constexpr const char* kTraining =
    "`lockstep train data/configs/quickstart.toml -d cpu:4 -o runs/first`";
constexpr std::size_t kShown = 6;

bool has_kind(const OptionShape& missing, std::string_view kind) {
  return ("|" + missing.takes + "|").find(fmt::format("|{}|", kind)) != std::string::npos;
}

void add_configs_of(const fs::path& folder, Names& names) {
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(folder, unreadable)) {
    if (entry.path().extension() != ".toml") continue;
    names.push_back(entry.path().lexically_normal().string());
  }
}

/// Those of this folder, and those that come with the program.
Names configs() {
  Names names;
  add_configs_of(".", names);
  add_configs_of("data/configs", names);
  std::ranges::sort(names);
  for (const std::string& shared : shared_configs()) {
    if (std::ranges::find(names, shared) == names.end()) names.push_back(shared);
  }
  return names;
}

/// Finished ones and others in the default folder, the one that was written last first.
Names runs() {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code ignored;
  constexpr auto kOptions = fs::directory_options::skip_permission_denied;
  for (auto entry = fs::recursive_directory_iterator(kRuns, kOptions, ignored);
       entry != fs::recursive_directory_iterator(); entry.increment(ignored)) {
    if (entry.depth() > 2) entry.disable_recursion_pending();
    const fs::path last = RunFolder{entry->path()}.checkpoint("last");
    if (!fs::exists(last, ignored)) continue;
    found.emplace_back(fs::last_write_time(last, ignored), entry->path().string());
    entry.disable_recursion_pending();
  }
  std::sort(found.rbegin(), found.rend());
  Names names;
  for (auto& [time, name] : found) names.push_back(std::move(name));
  return names;
}

/// One that begins with what was typed, else the first.
std::string example_of(const Command& command, std::span<const std::string> typed) {
  const std::string begun = fmt::format("lockstep {} ", fmt::join(typed, " "));
  for (const HelpExample& example : command.examples) {
    if (std::string(example.command).starts_with(begun)) return example.command;
  }
  return command.examples.empty() ? "" : command.examples.front().command;
}

}  // namespace

std::string describe_missing(const Command& command, const OptionShape& missing,
                             std::span<const std::string> typed) {
  std::string text =
      fmt::format("{}: expected {}: {}", command.name, missing.names.front(), missing.says);
  std::string example = example_of(command, typed);
  if (has_kind(missing, "RUN")) {
    const Names there = runs();
    text += there.empty()
                ? fmt::format("\n  there is no run in {} yet; {} makes one", kRuns, kTraining)
                : fmt::format("\n  runs that are here: {}", joined(there, kShown));
    const std::size_t at = example.find(kExampleRun);
    if (at != std::string::npos) {
      // A command about a run that is not there is none that works.
      example = there.empty() ? "" : example.replace(at, kExampleRun.size(), there.front());
    }
  }
  if (has_kind(missing, "CONFIG")) {
    const Names there = configs();
    if (!there.empty())
      text += fmt::format("\n  configurations that are here: {}", joined(there, kShown));
    text += "\n  `lockstep config init folder > mine.toml` begins one of your own";
  }
  if (!example.empty()) text += fmt::format("\n  for example: {}", example);
  return text + fmt::format("\n  `lockstep {} --help` says more", command.name);
}

}  // namespace lockstep
