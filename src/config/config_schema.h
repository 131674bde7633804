#pragma once
// The configuration's keys, gathered from the structs that hold them (core/options.h). Reading,
// unknown-key errors, overrides, the resolved file, the hash, completion and documentation all work
// from this list.

#include <string>
#include <utility>
#include <vector>

#include "config/config.h"

namespace lockstep {

class ConfigSource;
class Diagnostics;

struct ConfigKey {
  std::string path;     // "bn.mode"
  std::string doc;      // a comment for the resolved file; may be empty
  std::string expects;  // what may be written: "a number >= 0 and < 1"
  std::string initial;  // its value, in TOML, where nobody gives one; empty: none
  bool counts = true;   // the value can change the trained weights or the final metrics
  bool text = false;    // any string may be written for it
  /// The words that may be written for it; empty where it is a number or any text.
  std::vector<std::string> words = {};
  /// Names that such a word had before; they are still read.
  std::vector<std::string> former_words = {};
  /// Of a key that several alternatives have: the name of each, and its initial value.
  std::vector<std::pair<std::string, std::string>> initials = {};
};

/// In the order of the resolved file.
const std::vector<ConfigKey>& config_keys();

/// All of them as tables in Markdown, one for each section: the documentation's.
std::string keys_as_markdown();

/// A key of a list of sections, "loss[1].type", as the list of keys has it: "loss.type". Others
/// stay.
std::string without_index(const std::string& path);
/// The sections of a list of so many: "loss" of one, else "loss[0]", "loss[1]".
std::string section_in_list(const std::string& name, std::size_t index, std::size_t size);

/// "[bn]", or "[[loss]]" of a section in a list.
std::string section_header(const std::string& section);

/// "bn" of "bn.mode", "data.augment" of "data.augment.crop".
std::string section_of(const std::string& path);
/// "mode" of "bn.mode".
std::string name_of(const std::string& path);

/// A key of an alternative that the configuration has not chosen.
struct MisplacedKey {
  std::string path, message, hint;
};

struct ReadOptions {
  bool good = true;  // no value was wrong
  std::vector<MisplacedKey> misplaced;
};

/// Stores every value that `source` has. What is wrong with one goes to `diagnostics`.
ReadOptions read_options(const ConfigSource& source, Config& config, Diagnostics& diagnostics);

/// What enters the hash, a line for each key that is not at its default: runs from before a key
/// existed keep their hash.
std::string hashed_text(const Config& config);

}  // namespace lockstep
