#pragma once
// Rows of the configuration's schema by type of value. `Get` is a generic lambda from a Config to
// the field.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/config_schema.h"
#include "lockstep/core/check.h"

namespace lockstep::schema {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Bounds of a number; the upper one is exclusive when `below` is set.
struct Range {
  double lo = -kInfinity, hi = kInfinity;
  bool above = false, below = false;
};

/// "a number >= 0 and < 1".
std::string describe(const Range& range, const char* kind);
bool contains(const Range& range, double value);
/// "8, 16 or 32".
std::string alternatives(const std::vector<int>& values);
/// What `node` is, for messages: `-1`, `"snc"`, `a table`.
std::string show(const toml::node& node);
/// `text` as a TOML basic string.
std::string quoted(const std::string& text);
std::string expected(const std::string& what, const toml::node& node);
/// "one of local, sync, virtual", with the nearest one if `node` is a misspelt string.
std::string expected_choice(const std::vector<std::string>& names, const toml::node& node);

/// Numbers of an array of `count` numbers (0: any) within `range`; nullopt when it is not one.
std::optional<std::vector<double>> number_list(const toml::node& node, std::size_t count,
                                               const Range& range);
/// nullopt unless it is two whole numbers from 1 to kMostExtent.
std::optional<Size> size_pair(const toml::node& node);
inline constexpr int kMostExtent = 65536;

/// `value` as TOML; numbers in the shortest form that reads back to the same value.
std::string to_value(bool value);
std::string to_value(int value);
std::string to_value(std::int64_t value);
std::string to_value(std::uint64_t value);
std::string to_value(float value);
std::string to_value(double value);
std::string to_value(const std::string& value);
std::string to_value(const Size& value);
template <typename T>
std::string to_value(const std::optional<T>& value) {
  return value ? to_value(*value) : "";
}
template <typename T>
std::string to_list(const T& values) {
  std::string text;
  for (const auto& value : values) text += (text.empty() ? "" : ", ") + to_value(value);
  return "[" + text + "]";
}

template <typename Get>
ConfigKey integer(std::string path, Get get, Range range, std::string doc) {
  auto read = [get, range](ConfigDraft& draft, const toml::node& node) -> std::string {
    const auto value = node.is_integer() ? node.value<std::int64_t>() : std::nullopt;
    if (!value || !contains(range, static_cast<double>(*value))) {
      return expected(describe(range, "an integer"), node);
    }
    using Field = std::remove_reference_t<decltype(get(draft.config))>;
    if constexpr (std::is_integral_v<Field>) {
      get(draft.config) = static_cast<Field>(*value);
    } else {
      get(draft.config) = static_cast<typename Field::value_type>(*value);
    }
    return "";
  };
  return {std::move(path), std::move(doc), read,
          [get](const Config& c) { return to_value(get(c)); }};
}

/// One of a few integers.
template <typename Get>
ConfigKey one_integer_of(std::string path, Get get, std::vector<int> values, std::string doc) {
  auto read = [get, values](ConfigDraft& draft, const toml::node& node) -> std::string {
    const auto value = node.is_integer() ? node.value<std::int64_t>() : std::nullopt;
    const auto found = std::find(values.begin(), values.end(), value);
    if (found == values.end()) return expected(alternatives(values), node);
    get(draft.config) = *found;
    return "";
  };
  return {std::move(path), std::move(doc), read,
          [get](const Config& c) { return to_value(get(c)); }};
}

template <typename Get>
ConfigKey real(std::string path, Get get, Range range, std::string doc) {
  auto read = [get, range](ConfigDraft& draft, const toml::node& node) -> std::string {
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value || !contains(range, *value)) return expected(describe(range, "a number"), node);
    using Field = std::remove_reference_t<decltype(get(draft.config))>;
    get(draft.config) = static_cast<Field>(*value);
    return "";
  };
  return {std::move(path), std::move(doc), read,
          [get](const Config& c) { return to_value(get(c)); }};
}

template <typename Get>
ConfigKey boolean(std::string path, Get get, std::string doc) {
  auto read = [get](ConfigDraft& draft, const toml::node& node) -> std::string {
    if (!node.is_boolean()) return expected("true or false", node);
    get(draft.config) = *node.value<bool>();
    return "";
  };
  return {std::move(path),
          std::move(doc),
          read,
          [get](const Config& c) { return to_value(get(c)); },
          true,
          {"true", "false"}};
}

/// A string, a path or anything else that is made from a string.
template <typename Get>
ConfigKey text(std::string path, Get get, std::string doc) {
  auto read = [get](ConfigDraft& draft, const toml::node& node) -> std::string {
    if (!node.is_string()) return expected("a string", node);
    get(draft.config) = *node.value<std::string>();
    return "";
  };
  auto write = [get](const Config& c) -> std::string {
    const std::string value = get(c);
    return value.empty() ? "" : quoted(value);
  };
  return {std::move(path), std::move(doc), read, write};
}

/// The value of a field that `Get` leads to.
template <typename Get>
using FieldOf = std::remove_cvref_t<std::invoke_result_t<Get, Config&>>;

/// `former`: names that are read, too, and by which configurations are hashed: those of a value
/// that has been renamed since runs were written.
template <typename Get>
using NamesOf = std::vector<std::pair<std::string, FieldOf<Get>>>;
template <typename Get>
ConfigKey choice(std::string path, Get get, NamesOf<Get> names, std::string doc,
                 NamesOf<Get> former = {}) {
  std::vector<std::string> words;
  for (const auto& [name, value] : names) words.push_back(name);
  auto read = [get, names, former, words](ConfigDraft& draft,
                                          const toml::node& node) -> std::string {
    for (const auto* known : {&names, &former}) {
      for (const auto& [name, value] : *known) {
        if (node.is_string() && *node.value<std::string>() == name) {
          get(draft.config) = value;
          return "";
        }
      }
    }
    return expected_choice(words, node);
  };
  auto write = [get, names](const Config& c) -> std::string {
    for (const auto& [name, value] : names) {
      if (get(c) == value) return quoted(name);
    }
    return "";
  };
  auto hashed = [get, former, write](const Config& c) -> std::string {
    for (const auto& [name, value] : former) {
      if (get(c) == value) return quoted(name);
    }
    return write(c);
  };
  ConfigKey key{std::move(path), std::move(doc), read, write, true, words};
  if (former.empty()) return key;
  for (const auto& [name, value] : former) key.former_words.push_back(name);
  key.hashed = hashed;
  return key;
}

/// [height, width].
template <typename Get>
ConfigKey size(std::string path, Get get, std::string doc) {
  auto read = [get](ConfigDraft& draft, const toml::node& node) -> std::string {
    const std::optional<Size> value = size_pair(node);
    if (!value) {
      return expected(concat("[height, width] in pixels, each from 1 to ", kMostExtent), node);
    }
    get(draft.config) = *value;
    return "";
  };
  return {std::move(path), std::move(doc), read,
          [get](const Config& c) { return to_value(get(c)); }};
}

/// A list of numbers of any length, all within `range`.
template <typename Get>
ConfigKey numbers(std::string path, Get get, Range range, std::string doc) {
  auto read = [get, range](ConfigDraft& draft, const toml::node& node) -> std::string {
    const auto values = number_list(node, 0, range);
    if (!values) return expected("a list, each " + describe(range, "a number"), node);
    auto& field = get(draft.config);
    field.clear();
    using Element = typename std::remove_reference_t<decltype(field)>::value_type;
    for (const double value : *values) field.push_back(static_cast<Element>(value));
    return "";
  };
  auto write = [get](const Config& c) { return get(c).empty() ? std::string() : to_list(get(c)); };
  return {std::move(path), std::move(doc), read, write};
}

}  // namespace lockstep::schema
