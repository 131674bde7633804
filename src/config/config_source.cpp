#include "config/config_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "config/config_schema.h"
#include "config/suggest.h"

namespace lockstep {
namespace {

SourceSpan region_span(const SourceText& source, const toml::source_region& region) {
  const int line = static_cast<int>(region.begin.line);
  const int column = static_cast<int>(region.begin.column);
  const bool one_line =
      region.end.line == region.begin.line && region.end.column > region.begin.column;
  return {&source, line, column,
          one_line ? static_cast<int>(region.end.column - region.begin.column) : 1};
}

bool known_key(const std::string& path) {
  return std::any_of(config_keys().begin(), config_keys().end(),
                     [&](const ConfigKey& key) { return key.path == path; });
}

/// Every section, "data" and "data.augment" alike.
std::vector<std::string> known_sections() {
  std::vector<std::string> sections;
  for (const ConfigKey& key : config_keys()) {
    const std::string section = section_of(key.path);
    if (std::find(sections.begin(), sections.end(), section) == sections.end()) {
      sections.push_back(section);
    }
  }
  return sections;
}

bool known_section(const std::string& path) {
  const std::vector<std::string> sections = known_sections();
  return std::find(sections.begin(), sections.end(), path) != sections.end();
}

}  // namespace

ConfigSource::ConfigSource(std::filesystem::path path, const std::vector<std::string>& overrides,
                           Diagnostics& diagnostics)
    : path_(std::move(path)), diagnostics_(diagnostics) {
  read_file();
  for (const std::string& text : overrides) read_override(text);
}

const toml::node* ConfigSource::find(const std::string& key) const {
  const auto entry = entries_.find(key);
  return entry == entries_.end() ? nullptr : entry->second.node;
}

SourceSpan ConfigSource::span(const std::string& key) const {
  const auto entry = entries_.find(key);
  return entry == entries_.end() ? SourceSpan{&sources_.front()} : entry->second.value;
}

void ConfigSource::read_file() {
  std::ifstream stream(path_, std::ios::binary);
  std::ostringstream text;
  if (stream && std::filesystem::is_regular_file(path_)) text << stream.rdbuf();
  sources_.push_back(make_source(path_.string(), text.str()));
  const SourceText& source = sources_.back();
  if (!stream || !std::filesystem::is_regular_file(path_)) {
    diagnostics_.error({&source}, "cannot read this configuration file");
    diagnostics_.throw_if_errors();
  }
  try {
    tables_.push_back(toml::parse(text.str(), path_.string()));
  } catch (const toml::parse_error& error) {
    diagnostics_.error(region_span(source, error.source()), std::string(error.description()));
    diagnostics_.throw_if_errors();
  }
  flatten(tables_.back(), "", source);
}

// The value is TOML; what is not (a bare word, a path) is taken as a string.
void ConfigSource::read_override(const std::string& text) {
  sources_.push_back({"-s " + text, {}});
  const SourceText& source = sources_.back();
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    diagnostics_.error({&source}, "expected key=value, for example bn.mode=sync");
    return;
  }
  const std::string path = text.substr(0, equals);
  const std::string value = text.substr(equals + 1);
  try {
    tables_.push_back(toml::parse("value = " + value));
  } catch (const toml::parse_error&) {
    tables_.push_back(toml::table{{"value", value}});
  }
  if (!known_key(path)) {
    unknown_key(path, {&source});
    return;
  }
  if (section_of(path) == "data.augment") augment_section_ = true;
  entries_[path] = {tables_.back().get("value"), {&source}};
  const std::map<std::string, std::string> exclusive{{"run.max_iters", "run.epochs"},
                                                     {"run.epochs", "run.max_iters"},
                                                     {"batch.global", "batch.per_device"},
                                                     {"batch.per_device", "batch.global"}};
  if (exclusive.contains(path)) entries_.erase(exclusive.at(path));
}

void ConfigSource::flatten(const toml::table& table, const std::string& prefix,
                           const SourceText& source) {
  for (const auto& [key, node] : table) {
    const std::string path =
        prefix.empty() ? std::string(key.str()) : prefix + "." + std::string(key.str());
    const SourceSpan where = region_span(source, key.source());
    if (known_section(path)) {
      if (!node.is_table()) {
        diagnostics_.error(where, fmt::format("`{}` is a section: write [{}]", path, path));
        continue;
      }
      if (path == "data.augment") augment_section_ = true;
      flatten(*node.as_table(), path, source);
    } else if (known_key(path)) {
      entries_[path] = {&node, region_span(source, node.source())};
    } else if (node.is_table()) {
      unknown_section(path, where);
    } else {
      unknown_key(path, where);
    }
  }
}

void ConfigSource::unknown_section(const std::string& path, const SourceSpan& where) {
  const auto nearest = nearest_word(path, known_sections());
  diagnostics_.error(where, fmt::format("unknown section [{}]", path),
                     nearest ? fmt::format("did you mean [{}]?", *nearest) : "");
}

// The nearest key of the same section, else the same or the nearest name of another one.
void ConfigSource::unknown_key(const std::string& path, const SourceSpan& where) {
  const bool dotted = path.find('.') != std::string::npos;
  const std::string section = dotted ? section_of(path) : "";
  std::vector<std::string> here, paths, names;
  for (const ConfigKey& key : config_keys()) {
    if (section_of(key.path) == section) here.push_back(name_of(key.path));
    paths.push_back(key.path);
    names.push_back(name_of(key.path));
  }
  std::string hint;
  const auto same = std::find(names.begin(), names.end(), name_of(path));
  if (const auto near = nearest_word(name_of(path), here)) {
    hint = fmt::format("did you mean `{}`?", *near);
  } else if (same != names.end()) {
    hint = fmt::format("did you mean `{}`?", paths[static_cast<std::size_t>(same - names.begin())]);
  } else if (const auto nearest = nearest_word(path, paths)) {
    hint = fmt::format("did you mean `{}`?", *nearest);
  }
  const std::string place = section.empty() ? "outside of any section" : "in [" + section + "]";
  diagnostics_.error(where, fmt::format("unknown key `{}` {}", name_of(path), place), hint);
}

}  // namespace lockstep
