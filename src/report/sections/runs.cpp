#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "report/sections/sections.h"

namespace lockstep {
namespace {

using Values = std::map<std::string, std::string>;

Values values_of(const RunRecord& run) { return {run.config.begin(), run.config.end()}; }

/// Keys in the order of the configuration.
std::vector<std::string> all_keys(const ReportData& data) {
  std::vector<std::string> keys;
  for (const RunRecord& run : data.runs) {
    for (const auto& [key, value] : run.config) {
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
    }
  }
  return keys;
}

std::string get(const Values& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? "(not set)" : found->second;
}

/// The values of a mode's runs, each once.
std::string listed(const std::vector<const RunRecord*>& runs, const std::string& key) {
  std::vector<std::string> seen;
  for (const RunRecord* run : runs) {
    const std::string value = get(values_of(*run), key);
    if (std::ranges::find(seen, value) == seen.end()) seen.push_back(value);
  }
  return fmt::format("{}", fmt::join(seen, "; "));
}

bool differs(const ReportData& data, const std::string& key) {
  const std::string first = get(values_of(data.runs.front()), key);
  return std::ranges::any_of(
      data.runs, [&](const RunRecord& run) { return get(values_of(run), key) != first; });
}

Markup code(const std::string& text) { return {"<code>" + escaped(text).text + "</code>"}; }

void add_configurations(const ReportData& data, Page& page) {
  page.section("configurations", "Configurations");
  const std::vector<std::string> modes = data.modes();
  DataTable table{{"key"}, {}};
  table.header.insert(table.header.end(), modes.begin(), modes.end());
  for (const std::string& key : all_keys(data)) {
    if (data.runs.size() > 1 && !differs(data, key)) continue;
    std::vector<Markup> row{code(key)};
    for (const std::string& mode : modes) row.push_back(code(listed(data.of_mode(mode), key)));
    table.rows.push_back(std::move(row));
  }
  for (const RunRecord& run : data.runs) {
    if (!run.config_error.empty()) {
      page.note(run.folder.string() + ": config.toml cannot be read: " + run.config_error);
    }
  }
  if (table.rows.empty()) return;
  if (data.runs.size() > 1) {
    page.note("Keys that differ between runs; all others are the same.");
    return page.words(table);
  }
  page.add({"<details><summary>All keys</summary>\n"});
  page.words(table);
  page.add({"</details>\n"});
}

/// The runs' values of a key, each once; of times the first and the last.
std::string of_all_runs(const ReportData& data, const std::string& key) {
  std::set<std::string> values;
  for (const RunRecord& run : data.runs) {
    const auto found = run.environment.find(key);
    if (found != run.environment.end()) values.insert(found->second);
  }
  if (key == "time" && values.size() > 1) return *values.begin() + " to " + *values.rbegin();
  return fmt::format("{}", fmt::join(values, "; "));
}

void add_environment(const ReportData& data, Page& page) {
  std::set<std::string> keys;
  for (const RunRecord& run : data.runs) {
    for (const auto& [key, value] : run.environment) keys.insert(key);
  }
  if (keys.empty()) return;
  page.section("environment", "Environment");
  DataTable table{{"what", "value"}, {}};
  for (const std::string& key : keys) {
    table.rows.push_back({escaped(key), escaped(of_all_runs(data, key))});
  }
  page.words(table);
}

void add_files(const ReportData& data, Page& page) {
  page.section("files", "Files");
  DataTable table{{"run", "folder"}, {}};
  for (const RunRecord& run : data.runs) {
    table.rows.push_back(
        {escaped(fmt::format("{}, seed {}", run.mode, run.seed)), code(run.folder.string())});
  }
  page.words(table);
  page.note(
      "In each: config.toml (what it was told), scalars.json (losses and scores), timing.jsonl, "
      "events.jsonl (BatchNorm, devices, confusion matrices), env.json, run.log, ckpt/.");
}

}  // namespace

void add_runs(const ReportData& data, Page& page) {
  add_configurations(data, page);
  add_environment(data, page);
  add_files(data, page);
}

}  // namespace lockstep
