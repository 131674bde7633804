#include <fmt/format.h>
#include <xxhash.h>

#include <map>
#include <utility>
#include <vector>

#include "config/config.h"
#include "config/config_schema.h"
#include "core/utf8.h"
#include "core/words.h"
#include "lockstep/core/check.h"

namespace lockstep {

std::string current_mode_name(const std::string& name) {
  for (const Named<BatchNormMode>& mode : names_of(BatchNormMode{})) {
    if (name == mode.former) return mode.name;
  }
  return name;
}

std::string to_toml(const Config& config) {
  std::string text, section;
  for (const ConfigValue& value : config_values(config)) {
    if (section_of(value.key) != section) {
      section = section_of(value.key);
      text += (text.empty() ? "" : "\n") + section_header(section) + "\n";
    }
    const std::string line = fmt::format("{} = {}", name_of(value.key), value.value);
    text += value.doc.empty() ? line + "\n" : fmt::format("{:<36}  # {}\n", line, value.doc);
  }
  return text;
}

std::string keys_as_markdown() {
  std::string text, section;
  for (const ConfigKey& key : config_keys()) {
    if (section_of(key.path) != section) {
      section = section_of(key.path);
      text += fmt::format("{}### [{}]\n\n| key | value | default | meaning |\n|:--|:--|:--|:--|\n",
                          text.empty() ? "" : "\n", section);
    }
    std::string initial = key.initial.empty() ? "" : fmt::format("`{}`", key.initial);
    for (const auto& [name, value] : key.initials) {
      if (value != key.initial) initial += fmt::format(", {}: `{}`", name, value);
    }
    text += fmt::format("| `{}` | {} | {} | {}{} |\n", name_of(key.path), key.expects, initial,
                        key.doc, key.counts ? "" : " ¹");
  }
  return text + "\n¹ It changes no result: runs that differ in it have the same hash.\n";
}

namespace {

// Run folders lie in run.work_dir, and nowhere else.
void check_name(const std::string& name) {
  if (!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos) return;
  throw ConfigError(concat("run.name = \"", name, "\": expected a name without a /, as that of a ",
                           "file; run.work_dir and -o say where runs lie"));
}

}  // namespace

void check_can_be_written(const Config& config) {
  check_name(config.run.name);
  for (const ConfigValue& value : config_values(config)) {
    if (is_utf8(value.value)) continue;
    throw ConfigError(concat(value.key, " = ", value.value,
                             ": not UTF-8, so that the run's config.toml could not be read again; ",
                             "rename the file or folder, or give a symbolic link to it"));
  }
}

std::string config_hash(const Config& config) {
  const std::string text = hashed_text(config);
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

std::vector<ChangedValue> changed_values(const std::vector<ConfigValue>& a,
                                         const std::vector<ConfigValue>& b) {
  std::map<std::string, std::size_t> places;
  std::vector<ChangedValue> changed;
  const auto add = [&](const std::vector<ConfigValue>& values, std::string ChangedValue::*side) {
    for (const ConfigValue& value : values) {
      const auto [place, is_new] = places.try_emplace(value.key, changed.size());
      if (is_new) changed.push_back({.key = value.key});
      changed[place->second].*side = value.value;
      changed[place->second].counts |= value.counts;
    }
  };
  add(a, &ChangedValue::a);
  add(b, &ChangedValue::b);
  std::erase_if(changed, [](const ChangedValue& value) { return value.a == value.b; });
  return changed;
}

std::string config_difference(const Config& there, const Config& here) {
  std::vector<std::string> differing;
  for (const ChangedValue& value : changed_values(config_values(there), config_values(here))) {
    if (!value.counts) continue;
    differing.push_back(fmt::format("{} ({} there, {} here)", value.key, shown_value(value.a),
                                    shown_value(value.b)));
  }
  return joined(differing, 3);
}

std::string devices_or_default(const std::string& asked) {
  if (!asked.empty()) return asked;
  return cuda_device_count() > 0 ? "cuda:all" : "cpu:1";
}

}  // namespace lockstep
