#pragma once
// What is said in Python, words and dictionaries with the keys of a configuration, as options of
// the library. All of it is called with the interpreter's lock held.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/norm_layer.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::python {

namespace nb = nanobind;

/// "'snc'", "[1, 2]": as Python shows it.
std::string shown(nb::handle value);

/// A dictionary of options, such as a table of a configuration. It visits structs of options
/// (core/options.h), which take their keys from it.
class Table {
 public:
  /// `name`: for messages, "bn". `given`: a dictionary; a word, which stands for {`key`: word}; or
  /// None, for an empty one. Throws ConfigError for anything else.
  Table(std::string name, nb::handle given, const char* key);

  /// Takes a key, where it is there. Throws ConfigError for a value of another type or out of
  /// range.
  template <typename Field>
  void operator()(const char* key, Field& field, const char* = "", const Option& option = {}) {
    known_ += (known_.empty() ? "" : ", ") + std::string(key);
    if (!values_.contains(key)) return;
    taken_.insert(key);
    const nb::object value = nb::borrow(values_[key]);
    if (!parse(value, field, option)) fail(key, expects(field, option), value);
  }
  bool contains(const char* key) const { return values_.contains(key); }
  /// Throws ConfigError for a key that nobody has taken.
  void finish() const;
  [[noreturn]] void fail(const std::string& key, const std::string& expected,
                         nb::handle value) const;

 private:
  static bool parse(nb::handle value, bool& field, const Option&) {
    if (!nb::isinstance<nb::bool_>(value)) return false;
    field = nb::cast<bool>(value);
    return true;
  }
  template <std::integral Number>
  static bool parse(nb::handle value, Number& field, const Option& option) {
    std::int64_t number = 0;
    if (nb::isinstance<nb::bool_>(value) || !nb::try_cast(value, number)) return false;
    const std::vector<int>& among = option.among;
    if (!contains(option.in, number) ||
        (!among.empty() && std::find(among.begin(), among.end(), number) == among.end())) {
      return false;
    }
    field = static_cast<Number>(number);
    return true;
  }
  template <std::floating_point Number>
  static bool parse(nb::handle value, Number& field, const Option& option) {
    double number = 0;
    if (nb::isinstance<nb::bool_>(value) || !nb::try_cast(value, number)) return false;
    if (!contains(option.in, number)) return false;
    field = static_cast<Number>(number);
    return true;
  }
  static bool parse(nb::handle value, std::string& field, const Option&) {
    return nb::try_cast(value, field);
  }
  template <typename Word>
  requires std::is_enum_v<Word>
  static bool parse(nb::handle value, Word& field, const Option&) {
    std::string text;
    if (!nb::try_cast(value, text)) return false;
    for (const Named<Word>& named : names_of(Word{})) {
      if (text != named.name && (text.empty() || text != named.former)) continue;
      field = named.value;
      return true;
    }
    return false;
  }
  template <typename Value>
  static bool parse(nb::handle value, std::optional<Value>& field, const Option& option) {
    std::string word;
    if (value.is_none() ||
        (*option.none != '\0' && nb::try_cast(value, word) && word == option.none)) {
      field.reset();
      return true;
    }
    Value inner{};
    if (!parse(value, inner, option)) return false;
    field = std::move(inner);
    return true;
  }
  template <typename Value>
  static bool parse(nb::handle value, std::vector<Value>& field, const Option& option) {
    if (!nb::isinstance<nb::sequence>(value) || nb::isinstance<nb::str>(value)) return false;
    field.clear();
    for (const nb::handle element : nb::borrow<nb::sequence>(value)) {
      Value inner{};
      if (!parse(element, inner, option)) return false;
      field.push_back(std::move(inner));
    }
    return true;
  }
  static bool contains(const Limits& limits, auto number) {
    return lockstep::contains(limits, static_cast<double>(number));
  }

  static std::string expects(bool, const Option&) { return "True or False"; }
  template <std::integral Number>
  static std::string expects(Number, const Option& option) {
    return number_of("an integer", option);
  }
  template <std::floating_point Number>
  static std::string expects(Number, const Option& option) {
    return number_of("a number", option);
  }
  static std::string expects(const std::string&, const Option&) { return "a text"; }
  template <typename Word>
  requires std::is_enum_v<Word>
  static std::string expects(Word, const Option&) {
    std::string words = "one of ";
    for (const char* comma = ""; const Named<Word>& named : names_of(Word{})) {
      words += concat(comma, "'", named.name, "'");
      comma = ", ";
    }
    return words;
  }
  template <typename Value>
  static std::string expects(const std::optional<Value>&, const Option& option) {
    const std::string what = expects(Value{}, option);
    return *option.none == '\0' ? what + " or None" : concat(what, " or '", option.none, "'");
  }
  template <typename Value>
  static std::string expects(const std::vector<Value>&, const Option& option) {
    return "a list, each " + expects(Value{}, option);
  }
  static std::string number_of(const char* kind, const Option& option);

  const std::string name_;
  nb::dict values_;
  std::set<std::string> taken_;
  std::string known_;  // keys that were asked for
};

/// The architecture of that name. Throws ConfigError for one that there is not, and for options
/// that mean nothing to it.
Architecture architecture_of(const std::string& arch, std::int64_t num_classes, nb::handle model);

/// "sync", or the keys of a configuration's [bn]: those of BatchNormOptions, sync_layers, and
/// sync_group, which divides `ranks`.
NormLayer norm_of(nb::handle bn, int ranks);

/// "sgd", or the keys of its struct with its `type`.
Optimizer optimizer_of(nb::handle optimizer);

/// "cross_entropy", or the keys of a loss against labels with its `type`, `weight` and `output`; or
/// a list of these.
std::vector<NamedLoss> losses_of(nb::handle losses, int ignore_index);

}  // namespace lockstep::python
