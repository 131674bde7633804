#pragma once
// A configuration as written: the file and the `-s key=value` overrides flattened into one list of
// keys, each with where it came from. Knows which keys exist, not what they mean.

#include <toml++/toml.h>

#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "config/diagnostics.h"

namespace lockstep {

struct RemovedKey;

class ConfigSource {
 public:
  /// Reads the file, then the overrides. Throws ConfigError for an unreadable file or a syntax
  /// error; unknown keys go to `diagnostics`, which outlives the source.
  ConfigSource(std::filesystem::path path, const std::vector<std::string>& overrides,
               Diagnostics& diagnostics);
  // Spans and nodes point into it.
  ConfigSource(const ConfigSource&) = delete;
  ConfigSource& operator=(const ConfigSource&) = delete;

  const std::filesystem::path& path() const { return path_; }
  bool has(const std::string& key) const { return entries_.contains(key); }
  /// The value of a key; null when it is not set.
  const toml::node* find(const std::string& key) const;
  /// Where the key's value stands; the file as a whole when it is not set.
  SourceSpan span(const std::string& key) const;
  /// Whether a run has written the file, beside its checkpoints: nobody can be asked to mend that.
  bool is_of_run() const;
  /// Whether [data.augment] is there, empty or not.
  bool has_augment_section() const { return augment_section_; }
  /// Elements of a list of sections, [[loss]]; 0 where it is none.
  std::size_t list_size(const std::string& name) const;

 private:
  struct Entry {
    const toml::node* node = nullptr;
    SourceSpan value;
  };

  void read_file();
  void read_override(const std::string& text);
  void flatten(const toml::table& table, const std::string& prefix, const SourceText& source);
  void read_list(const toml::node& node, const std::string& name, const SourceText& source);
  bool is_in_list(const std::string& path) const;
  void unknown_section(const std::string& path, const SourceSpan& where);
  void removed_key(const RemovedKey& key, const SourceSpan& where);
  void unknown_key(const std::string& path, const SourceSpan& where);

  std::filesystem::path path_;
  Diagnostics& diagnostics_;
  std::deque<SourceText> sources_;
  std::deque<toml::table> tables_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::size_t> list_sizes_;
  bool augment_section_ = false;
};

}  // namespace lockstep
