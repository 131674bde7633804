#include "app/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "app/files.h"
#include "config/config_schema.h"
#include "core/words.h"
#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

using Words = std::vector<std::string>;

Words split(const std::string& text, char separator) {
  Words parts{""};
  for (const char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// What precedes the current word.
struct Typed {
  const DeclaredCommand& command;
  std::vector<OptionShape> options = command.options->shapes();
  const OptionShape* waiting = nullptr;  // an option whose value comes next
  Words arguments = {};                  // values of positional options

  const OptionShape* find(const std::string& name) const {
    for (const OptionShape& option : options) {
      if (std::ranges::find(option.names, name) != option.names.end()) {
        return &option;
      }
    }
    return nullptr;
  }
  void read(std::span<const std::string> words);
  const OptionShape* next_argument() const;
};

void Typed::read(std::span<const std::string> words) {
  for (const std::string& word : words) {
    const bool option = word.starts_with('-') && word.size() > 1;
    if (waiting != nullptr && (waiting->needs_value || !option)) {
      waiting = nullptr;
    } else if (option) {
      const OptionShape* found = find(word);
      waiting = found != nullptr && found->takes_value ? found : nullptr;
    } else {
      arguments.push_back(word);
    }
  }
}

/// The positional option that the next word is a value of, if there is one.
const OptionShape* Typed::next_argument() const {
  const OptionShape* last = nullptr;
  std::size_t taken = 0;
  for (const OptionShape& option : options) {
    if (!option.positional) continue;
    if (taken++ == arguments.size()) return &option;
    last = &option;
  }
  return last != nullptr && last->repeats ? last : nullptr;
}

class Completer {
 public:
  Completer(std::string current, const Tables& tables)
      : current_(std::move(current)), tables_(tables) {}

  void add_subcommands(const CommandLine& line) {
    for (const DeclaredCommand& command : line.commands())
      add(command.command.name, command.command.says);
  }

  void add_options(std::span<const OptionShape> options) {
    for (const OptionShape& option : options) {
      for (const std::string& name : option.names) {
        if (name.starts_with("--")) add(name, option.says);
      }
    }
  }

  /// The values of `option`: what it takes.
  void add_values(const OptionShape& option, const Typed& typed) {
    std::string type = option.takes;
    std::erase_if(type, [](char c) { return c == '[' || c == ']'; });
    const bool list = type.ends_with(",...");
    if (list) type.resize(type.size() - 4);
    for (const std::string& kind : split(type, '|')) {
      if (kind.empty() || std::isupper(static_cast<unsigned char>(kind.front())) == 0) {
        add_word(kind, list);
      } else if (fits(kind, typed)) {
        add_kind(kind);
      }
    }
  }

  /// What follows is appended to `prefix`, a part of the current word.
  void put_before(const std::string& prefix) {
    for (Candidate& candidate : completion_.candidates) candidate.word.insert(0, prefix);
  }

  Completion take() { return std::move(completion_); }

 private:
  void add(const std::string& word, const std::string& says = "") {
    if (!word.empty() && word.starts_with(current_)) completion_.candidates.push_back({word, says});
  }

  void add_word(const std::string& word, bool list) {
    const std::size_t comma = list ? current_.rfind(',') : std::string::npos;
    const std::string before =
        comma == std::string::npos ? std::string() : current_.substr(0, comma + 1);
    const Words chosen = split(before, ',');
    if (std::ranges::find(chosen, word) == chosen.end()) add(before + word);
  }

  /// `config` takes a layout with init only, and nothing with schema.
  static bool fits(const std::string& kind, const Typed& typed) {
    if (typed.command.command.name != "config" || typed.arguments.empty()) return true;
    const std::string& action = typed.arguments.front();
    return action != "schema" && (action == "init") == (kind == "LAYOUT");
  }

  void add_kind(const std::string& kind) {
    if (kind == "FILE") add_files(FileKind::kAny);
    if (kind == "DIR" || kind == "RUN") add_files(FileKind::kFolders);
    if (kind == "CONFIG") add_configs();
    if (kind == "DEVICES") add_devices();
    if (kind == "KEY=VALUE") add_override();
    if (kind == "LAYOUT") add_layouts("");
    if (kind == "PAGE") add_pages();
  }

  void add_files(FileKind kind) { completion_.files = std::max(completion_.files, kind); }

  // Those that are here, too, the shell finds.
  void add_configs() {
    add_files(FileKind::kConfigs);
    if (current_.empty()) return;
    for (const std::string& config : shared_configs()) {
      if (!std::filesystem::exists(config)) add(config, "comes with Lockstep");
    }
  }

  void add_devices() {
    for (const int count : {1, 2, 4, 8}) {
      add(fmt::format("cpu:{}", count), count_of(count, "virtual device"));
    }
    const int gpus = cuda_device_count();
    if (gpus > 0) add("cuda:all", "every GPU");
    for (int gpu = 0; gpu < gpus; ++gpu) add(fmt::format("cuda:{}", gpu), "one GPU");
  }

  void add_override() {
    const std::size_t equals = current_.find('=');
    for (const ConfigKey& key : config_keys()) {
      if (equals == std::string::npos) add(key.path + "=", key.doc);
      if (equals == std::string::npos || current_.substr(0, equals) != key.path) continue;
      for (const std::string& word : key.words) add(key.path + "=" + word);
    }
    if (current_.starts_with("data.layout=")) add_layouts("data.layout=");
    if (current_.starts_with("model.arch=")) {
      for (const ModelEntry& model : tables_.models) add("model.arch=" + model.name);
    }
  }

  void add_layouts(const std::string& before) {
    for (const DataLayout& layout : tables_.layouts) add(before + layout.name);
  }

  void add_pages() {
    try {
      for (const DocsPage& page : docs_pages()) add(page.name, page.title);
    } catch (const ConfigError&) {  // not installed: there is none
    }
  }

  std::string current_;
  const Tables& tables_;
  Completion completion_;
};

const char* shell_word(FileKind kind) {
  switch (kind) {
    case FileKind::kNone:
      return "none";
    case FileKind::kFolders:
      return "folders";
    case FileKind::kConfigs:
      return "configs";
    case FileKind::kAny:
      return "files";
  }
  return "?";
}

}  // namespace

Completion complete(const CommandLine& line, std::span<const std::string> words,
                    const Tables& tables) {
  const std::string current = words.empty() ? "" : words.back();
  Completer completer(current, tables);
  if (words.size() < 2) {
    current.starts_with('-') ? completer.add_options(line.options())
                             : completer.add_subcommands(line);
    return completer.take();
  }
  const DeclaredCommand* command = line.find(words.front());
  if (command == nullptr) return {};
  Typed typed{*command};
  typed.read(words.subspan(1, words.size() - 2));
  if (typed.waiting != nullptr) {
    completer.add_values(*typed.waiting, typed);
  } else if (const std::size_t equals = current.find('=');
             current.starts_with("--") && equals != std::string::npos) {
    const OptionShape* option = typed.find(current.substr(0, equals));
    if (option == nullptr) return {};
    Completer value(current.substr(equals + 1), tables);
    value.add_values(*option, typed);
    value.put_before(current.substr(0, equals + 1));
    return value.take();
  } else if (current.starts_with('-')) {
    completer.add_options(typed.options);
  } else if (const OptionShape* argument = typed.next_argument()) {
    completer.add_values(*argument, typed);
  }
  return completer.take();
}

std::string to_text(const Completion& completion) {
  std::string text = fmt::format("{}\n", shell_word(completion.files));
  for (const auto& [word, says] : completion.candidates)
    text += fmt::format("{}\t{}\n", word, says);
  return text;
}

}  // namespace lockstep
