#include <fmt/format.h>
#include <xxhash.h>

#include <utility>

#include "config/config.h"
#include "config/config_schema.h"
#include "core/utf8.h"
#include "lockstep/core/check.h"

namespace lockstep {

const char* to_string(BatchNormMode mode) {
  switch (mode) {
    case BatchNormMode::kLocal:
      return "local";
    case BatchNormMode::kSync:
      return "sync";
    case BatchNormMode::kGhost:
      return "ghost";
  }
  return "?";
}

std::string current_mode_name(const std::string& name) {
  return name == "virtual" ? to_string(BatchNormMode::kGhost) : name;
}

const char* to_string(EvalStats stats) {
  switch (stats) {
    case EvalStats::kDevice0:
      return "device0";
    case EvalStats::kMean:
      return "mean";
    case EvalStats::kPooled:
      return "pooled";
    case EvalStats::kPrecise:
      return "precise";
  }
  return "?";
}

std::vector<ConfigValue> config_values(const Config& config) {
  std::vector<ConfigValue> values;
  for (const ConfigKey& key : config_keys()) {
    std::string value = key.write(config);
    if (!value.empty()) values.push_back({key.path, std::move(value), key.doc, "", key.counts});
  }
  return values;
}

std::string to_toml(const Config& config) {
  std::string text, section;
  for (const ConfigValue& value : config_values(config)) {
    if (section_of(value.key) != section) {
      section = section_of(value.key);
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section);
    }
    const std::string line = fmt::format("{} = {}", name_of(value.key), value.value);
    text += value.doc.empty() ? line + "\n" : fmt::format("{:<36}  # {}\n", line, value.doc);
  }
  return text;
}

void check_can_be_written(const Config& config) {
  for (const ConfigValue& value : config_values(config)) {
    if (is_utf8(value.value)) continue;
    throw ConfigError(concat(value.key, " = ", value.value,
                             ": not UTF-8, so that the run's config.toml could not be read again; ",
                             "rename the file or folder, or give a symbolic link to it"));
  }
}

// A key at its default does not enter, so that runs from before it existed keep their hash.
std::string config_hash(const Config& config) {
  const Config defaults;
  std::string text;
  for (const ConfigKey& key : config_keys()) {
    const auto& written = key.hashed ? key.hashed : key.write;
    const std::string value = written(config);
    if (key.counts && value != written(defaults)) text += fmt::format("{}={}\n", key.path, value);
  }
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

std::string default_devices() { return cuda_device_count() > 0 ? "cuda:all" : "cpu:1"; }

}  // namespace lockstep
