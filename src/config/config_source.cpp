#include "config/config_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/config_schema.h"
#include "config/removed_keys.h"
#include "config/suggest.h"
#include "core/utf8.h"
#include "io/file_bytes.h"
#include "lockstep/core/check.h"

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
  return std::ranges::find(config_keys(), without_index(path), &ConfigKey::path) !=
         config_keys().end();
}

/// Whether any string may be written for the key.
bool takes_text(const std::string& path) {
  return std::ranges::any_of(config_keys(), [&](const ConfigKey& key) {
    return key.text && key.path == without_index(path);
  });
}

/// Sections that may be lists of them.
bool may_be_list(const std::string& path) { return path == "loss"; }

/// Every section, "data" and "data.augment" alike.
std::vector<std::string> known_sections() {
  std::vector<std::string> sections;
  for (const ConfigKey& key : config_keys()) {
    const std::string section = section_of(key.path);
    if (std::ranges::find(sections, section) == sections.end()) {
      sections.push_back(section);
    }
  }
  return sections;
}

bool known_section(const std::string& path) {
  const std::vector<std::string> sections = known_sections();
  return std::ranges::find(sections, path) != sections.end();
}

}  // namespace

ConfigSource::ConfigSource(std::filesystem::path path, const std::vector<std::string>& overrides,
                           Diagnostics& diagnostics)
    : path_(std::move(path)), diagnostics_(diagnostics) {
  read_file();
  for (const std::string& text : overrides) read_override(text);
}

bool ConfigSource::is_of_run() const {
  std::error_code ignored;
  return path_.filename() == "config.toml" &&
         std::filesystem::is_directory(std::filesystem::absolute(path_).parent_path() / "ckpt",
                                       ignored);
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
  std::string text, why_not = why_unreadable(path_);
  try {
    if (why_not.empty()) text = plain_text(text_of_file(path_));
  } catch (const DataError& error) {
    why_not = error.what();
  }
  sources_.push_back(make_source(path_.string(), text));
  const SourceText& source = sources_.back();
  if (!why_not.empty()) {
    const std::filesystem::path own = path_ / "config.toml";
    const bool of_run = why_unreadable(own).empty();
    diagnostics_.error({&source}, "cannot read this configuration file: " + why_not,
                       of_run ? "a run's is " + own.string() : "");
    diagnostics_.throw_if_errors();
  }
  try {
    tables_.push_back(toml::parse(text, path_.string()));
  } catch (const toml::parse_error& error) {
    diagnostics_.error(region_span(source, error.source()), std::string(error.description()));
    diagnostics_.throw_if_errors();
  }
  flatten(tables_.back(), "", source);
}

// The value is TOML; what is not (a bare word, a path) is taken as a string, and so is a number for
// a key that takes any string: a shell takes the quotes of data.val="2024".
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
  const toml::node& read = *tables_.back().get("value");
  if (read.is_value() && !read.is_string() && takes_text(path))
    tables_.back() = toml::table{{"value", value}};
  if (may_be_list(path)) return read_list(*tables_.back().get("value"), path, source);
  if (!known_key(path)) {
    unknown_key(path, {&source});
    return;
  }
  if (!is_in_list(path)) {
    const std::string section = without_index(section_of(path));
    diagnostics_.error(
        {&source},
        fmt::format("there is no {} among {} of [[{}]]", path, list_size(section), section),
        fmt::format("say which: {}[0].{}", section, name_of(path)));
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
    if (may_be_list(path) && node.is_array()) {
      read_list(node, path, source);
    } else if (known_section(path)) {
      if (!node.is_table()) {
        diagnostics_.error(where, fmt::format("`{}` is a section: write [{}]", path, path));
        continue;
      }
      if (path == "data.augment") augment_section_ = true;
      flatten(*node.as_table(), path, source);
    } else if (known_key(path) && is_in_list(path)) {
      entries_[path] = {&node, region_span(source, node.source())};
    } else if (node.is_table()) {
      unknown_section(path, where);
    } else {
      unknown_key(path, where);
    }
  }
}

std::size_t ConfigSource::list_size(const std::string& name) const {
  const auto found = list_sizes_.find(name);
  return found == list_sizes_.end() ? 0 : found->second;
}

// Whether the path is written as the list says: without a place in one that has one element.
bool ConfigSource::is_in_list(const std::string& path) const {
  const std::string section = section_of(path), name = without_index(section);
  if (!may_be_list(name)) return section == name;
  const std::size_t size = std::max<std::size_t>(1, list_size(name));
  for (std::size_t i = 0; i < size; ++i) {
    if (section == section_in_list(name, i, size)) return true;
  }
  return false;
}

// It takes the place of one that was read before.
void ConfigSource::read_list(const toml::node& node, const std::string& name,
                             const SourceText& source) {
  const bool in_file = tables_.size() == 1;
  const SourceSpan where = in_file ? region_span(source, node.source()) : SourceSpan{&source};
  const toml::array* list = node.as_array();
  const bool tables = list != nullptr && !list->empty() &&
                      std::all_of(list->begin(), list->end(),
                                  [](const toml::node& element) { return element.is_table(); });
  if (!tables) {
    diagnostics_.error(where, fmt::format("`{}` is a section, or a list of tables", name),
                       fmt::format("write [{}], or {} = [{{type = \"...\"}}]", name, name));
    return;
  }
  std::erase_if(entries_,
                [&](const auto& entry) { return without_index(section_of(entry.first)) == name; });
  list_sizes_[name] = list->size();
  for (std::size_t i = 0; i < list->size(); ++i) {
    flatten(*(*list)[i].as_table(), section_in_list(name, i, list->size()), source);
  }
  if (in_file) return;
  for (auto& [path, entry] : entries_) {
    if (without_index(section_of(path)) == name) entry.value = where;
  }
}

void ConfigSource::unknown_section(const std::string& path, const SourceSpan& where) {
  const auto nearest = nearest_word(path, known_sections());
  diagnostics_.error(where, fmt::format("unknown section [{}]", path),
                     nearest ? fmt::format("did you mean [{}]?", *nearest) : "");
}

// A run's own is not used any more, which who resumes it may want to know.
void ConfigSource::removed_key(const RemovedKey& key, const SourceSpan& where) {
  if (where.line > 0 && is_of_run()) {
    diagnostics_.warning(where, fmt::format("`{}` is ignored: it was removed", key.path));
  } else {
    diagnostics_.error(where, fmt::format("`{}` was removed", key.path), std::string(key.instead));
  }
}

// The nearest key of the same section, else the same or the nearest name of another one.
void ConfigSource::unknown_key(const std::string& path, const SourceSpan& where) {
  if (const RemovedKey* removed = lockstep::removed_key(path)) return removed_key(*removed, where);
  const bool dotted = path.find('.') != std::string::npos;
  const std::string section = dotted ? without_index(section_of(path)) : "";
  const bool in_list = dotted && section != section_of(path);
  std::vector<std::string> here, paths, names;
  for (const ConfigKey& key : config_keys()) {
    if (section_of(key.path) == section) here.push_back(name_of(key.path));
    paths.push_back(key.path);
    names.push_back(name_of(key.path));
  }
  std::string hint;
  const auto same = std::ranges::find(names, name_of(path));
  if (const auto near = nearest_word(name_of(path), here)) {
    hint = fmt::format("did you mean `{}`?", *near);
  } else if (same != names.end()) {
    hint = fmt::format("did you mean `{}`?", paths[static_cast<std::size_t>(same - names.begin())]);
  } else if (const auto nearest = nearest_word(without_index(path), paths)) {
    hint = fmt::format("did you mean `{}`?", *nearest);
  }
  const std::string place = section.empty() ? "outside of any section"
                            : in_list       ? "in [[" + section + "]]"
                                            : "in [" + section + "]";
  diagnostics_.error(where, fmt::format("unknown key `{}` {}", name_of(path), place), hint);
}

}  // namespace lockstep
