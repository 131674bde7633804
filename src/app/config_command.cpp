// lockstep config: what a configuration says, and how to begin one.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "app/command.h"
#include "config/config_schema.h"
#include "config/suggest.h"
#include "core/json.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct ConfigArguments {
  CommonArguments common;
  std::string action;                         // show, diff, init, schema
  std::vector<std::filesystem::path> inputs;  // configurations; init: a data layout
  bool markdown = false;                      // --markdown: schema as tables
};

/// The file itself, or that of a run folder.
fs::path config_file(const fs::path& input) {
  return fs::is_directory(input) ? input / "config.toml" : input;
}

std::vector<ConfigValue> values_of(const ConfigArguments& arguments, std::size_t input) {
  return explain_config(config_file(arguments.inputs[input]), arguments.common.overrides,
                        *arguments.common.tables);
}

void expect_inputs(const ConfigArguments& arguments, std::size_t count, const char* what) {
  if (arguments.inputs.size() == count) return;
  throw ConfigError(fmt::format("config {}: expected {}, got {} arguments", arguments.action, what,
                                arguments.inputs.size()));
}

void show(const ConfigArguments& arguments) {
  expect_inputs(arguments, 1, "one configuration or run folder");
  Json json = Json::array();
  std::string section;
  for (const ConfigValue& value : values_of(arguments, 0)) {
    const std::string origin = value.origin.empty() ? "default" : value.origin;
    if (arguments.common.json) {
      json.push_back({{"key", value.key}, {"value", value.value}, {"origin", origin}});
      continue;
    }
    if (section_of(value.key) != section) {
      section = section_of(value.key);
      fmt::print("{}\n", section_header(section));
    }
    fmt::print("{:<44}  # {}\n", fmt::format("{} = {}", name_of(value.key), value.value), origin);
  }
  if (arguments.common.json) fmt::print("{}\n", json_text(json, 2));
}

void diff(const ConfigArguments& arguments) {
  expect_inputs(arguments, 2, "two configurations or run folders");
  Json json = Json::array();
  for (const auto& [key, a, b, counts] :
       changed_values(values_of(arguments, 0), values_of(arguments, 1))) {
    if (arguments.common.json) {
      json.push_back({{"key", key}, {"values", {a, b}}, {"changes_results", counts}});
    } else {
      fmt::print("{}: {} -> {}{}\n", key, shown_value(a), shown_value(b),
                 counts ? "" : "  (results are the same)");
    }
  }
  if (arguments.common.json) {
    fmt::print("{}\n", json_text(json, 2));
  }
}

const DataLayout& layout_of(const ConfigArguments& arguments) {
  expect_inputs(arguments, 1, "a data layout");
  DataOptions options;
  options.layout = arguments.inputs[0].string();
  options.layouts = &arguments.common.tables->layouts;
  return find_layout(options);
}

/// Whether a key has a meaning for data of this layout.
bool applies(const std::string& key, const DataLayout& layout) {
  const bool of_generated =
      key == "data.size" || key == "data.train_images" || key == "data.val_images";
  const bool of_files = key == "data.root" || key == "data.train" || key == "data.val" ||
                        key == "data.skip_broken" || key == "data.mask_values" ||
                        key == "data.bands" || key == "data.channels" ||
                        key == "data.channel_files" || key == "data.nodata";
  if (key == "data.num_classes") return layout.classes.empty();
  return layout.generated ? !of_files : !of_generated;
}

/// A key of a configuration to begin with.
struct BeginningRow {
  const ConfigKey* key;
  std::string value;  // empty: there is no default
  bool said;          // else it is a comment
};

/// What must be said, what is mostly changed, the rest as comments.
std::vector<BeginningRow> beginning(const DataLayout& layout) {
  const bool classification = layout.task == Task::kClassification;
  Config config;
  config.run.epochs = 20;
  config.batch.global = 8;
  config.model.arch = classification ? "resnet18" : "unet";
  config.data.layout = layout.name;
  std::map<std::string, std::string> written{
      {"run.epochs", "20"},    {"data.layout", fmt::format("\"{}\"", layout.name)},
      {"batch.global", "8"},   {"model.arch", fmt::format("\"{}\"", config.model.arch)},
      {"bn.mode", "\"sync\""}, {"optim.lr", "0.05"}};
  if (layout.generated && !classification) written["data.size"] = "[176, 240]";
  if (!layout.generated) written["data.root"] = "\"PATH\"";
  if (!layout.generated && layout.classes.empty() && !layout.find_classes)
    written["data.num_classes"] = "2";
  if (!layout.generated && !classification) {
    written["data.augment.crop"] = "[256, 256]";
    written["data.augment.hflip"] = "0.5";
  }
  config.data.augment = AugmentOptions{.hflip = 0.5F};
  std::map<std::string, std::string> values;
  for (const ConfigValue& value : config_values(config)) values[value.key] = value.value;
  std::vector<BeginningRow> rows;
  for (const ConfigKey& key : config_keys()) {
    if (!applies(key.path, layout)) continue;
    const auto chosen = written.find(key.path);
    const bool said = chosen != written.end();
    rows.push_back({&key, said ? chosen->second : values[key.path], said});
  }
  return rows;
}

void print_beginning(const std::vector<BeginningRow>& rows) {
  fmt::print("# lockstep train THIS_FILE -d cpu:4\n");
  std::string section;
  for (const auto& [key, value, said] : rows) {
    if (section_of(key->path) != section) {
      section = section_of(key->path);
      const bool needed = std::ranges::any_of(rows, [&](const BeginningRow& row) {
        return row.said && section_of(row.key->path) == section;
      });
      fmt::print("\n{}[{}]\n", section == "data.augment" && !needed ? "# " : "", section);
    }
    const std::string line = fmt::format("{}{} = {}", said ? "" : "# ", name_of(key->path),
                                         value.empty() ? "..." : value);
    fmt::print("{}\n", key->doc.empty() ? line : fmt::format("{:<40} # {}", line, key->doc));
  }
}

void init(const ConfigArguments& arguments) {
  const std::vector<BeginningRow> rows = beginning(layout_of(arguments));
  if (!arguments.common.json) {
    print_beginning(rows);
    return;
  }
  Json json = Json::array();
  for (const auto& [key, value, said] : rows)
    json.push_back({{"key", key->path}, {"value", value}, {"said", said}, {"doc", key->doc}});
  fmt::print("{}\n", json_text(json, 2));
}

/// The type of a value that is written in TOML.
Json type_of(const std::string& value) {
  if (value.empty()) return Json::object();
  if (value.front() == '"') return {{"type", "string"}};
  if (value.front() == '[') return {{"type", "array"}};
  if (value == "true" || value == "false") return {{"type", "boolean"}};
  return {{"type", "number"}};
}

void schema(bool markdown) {
  if (markdown) {
    fmt::print("{}", keys_as_markdown());
    return;
  }
  Json sections = Json::object();
  for (const ConfigKey& key : config_keys()) {
    Json entry = type_of(key.initial);
    const std::string type = entry.value("type", "");
    if (type == "string" && !key.words.empty()) {
      entry["enum"] = key.words;
      for (const std::string& former : key.former_words) entry["enum"].push_back(former);
    } else if (type == "number" && !key.words.empty()) {
      entry = {{"anyOf", {entry, {{"enum", key.words}}}}};
    }
    if (!key.doc.empty()) entry["description"] = key.doc;
    const std::string section = section_of(key.path);
    const std::string parent = section.substr(0, section.find('.'));
    Json* properties = &sections[parent];
    (*properties)["type"] = "object";
    (*properties)["additionalProperties"] = false;
    if (section != parent) {
      properties = &(*properties)["properties"][section.substr(parent.size() + 1)];
      (*properties)["type"] = "object";
      (*properties)["additionalProperties"] = false;
    }
    (*properties)["properties"][name_of(key.path)] = entry;
  }
  // A loss, or several.
  Json& loss = sections["loss"];
  loss = {{"anyOf", {loss, {{"type", "array"}, {"items", loss}, {"minItems", 1}}}}};
  const Json root{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                  {"title", "Lockstep configuration"},
                  {"type", "object"},
                  {"additionalProperties", false},
                  {"properties", sections}};
  fmt::print("{}\n", json_text(root, 2));
}

void declare_config(Options& options, ConfigArguments& arguments) {
  options
      .add("ACTION", arguments.action,
           "show CONFIG: every key that has a value, and who says so; diff CONFIG CONFIG; "
           "init LAYOUT: a commented beginning; schema: JSON Schema of the keys")
      .takes("show|diff|init|schema")
      .required();
  options.add_config("INPUT", arguments.inputs, "configurations (run folders, too), or a layout")
      .takes("CONFIG|RUN|LAYOUT")
      .goes_with({"show", "diff", "init"});
  options.add_flag("--markdown", arguments.markdown, "schema: tables of the keys in Markdown")
      .goes_with({"schema"});
  options.add_overrides().goes_with({"show", "diff"});
  options.add_json();
}

int run_config(const ConfigArguments& arguments) {
  const std::string& action = arguments.action;
  if (action == "show") {
    show(arguments);
  } else if (action == "diff") {
    diff(arguments);
  } else if (action == "init") {
    init(arguments);
  } else {
    schema(arguments.markdown);
  }
  return kExitDone;
}

}  // namespace

Command config_command() {
  return {.name = "config",
          .says = "Show, compare and begin configurations",
          .page = "plan",
          .examples = {{"lockstep config show data/configs/quickstart.toml -s bn.mode=sync",
                        "every key that has a value, and who says so"},
                       {"lockstep config diff data/configs/quickstart.toml runs/first",
                        "what a run did differently"},
                       {"lockstep config init folder > mine.toml",
                        "a commented beginning, for images of yours"},
                       {"lockstep config schema > lockstep.schema.json", "for an editor"}},
          .declare = declares(declare_config, run_config)};
}

}  // namespace lockstep
