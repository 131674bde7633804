#pragma once
// The configuration's keys, one row each: how to read, write and explain it. Reading, unknown-key
// errors, overrides, the resolved file and the hash all work from this list, so a key is added in
// one place.

#include <toml++/toml.h>

#include <functional>
#include <string>
#include <vector>

#include "config/config.h"

namespace lockstep {

/// A configuration while it is read.
struct ConfigDraft {
  Config config;
  bool keras_momentum = false;  // bn.momentum_convention: convert when everything is read
};

struct ConfigKey {
  std::string path;  // "bn.mode"
  std::string doc;   // a comment for the resolved file
  /// Stores the value; returns "" or what is wrong ("expected a number >= 0, got -1").
  std::function<std::string(ConfigDraft&, const toml::node&)> read;
  /// The value in TOML; "" when it is not set.
  std::function<std::string(const Config&)> write;
  /// Whether the value can change the trained weights or the final metrics.
  bool counts = true;
  /// The words that may be written for it; empty where it is a number or any text.
  std::vector<std::string> words = {};
  /// Names that such a word had before; they are still read.
  std::vector<std::string> former_words = {};
  /// What enters the configuration's hash; null: as `write`. A value that was renamed keeps the
  /// name it had, so that runs from before go on.
  std::function<std::string(const Config&)> hashed = nullptr;
};

/// In the order of the resolved file.
const std::vector<ConfigKey>& config_keys();

/// "bn" of "bn.mode", "data.augment" of "data.augment.crop".
std::string section_of(const std::string& path);
/// "mode" of "bn.mode".
std::string name_of(const std::string& path);

}  // namespace lockstep
