#pragma once
// How a field of an options struct is read from TOML and written as TOML, by its type: `Codec<T>`.
//   expects(option)              what may be written: "a number >= 0"
//   read(node, field, option)    stores the value; returns "" or what is wrong with it
//   write(field, option)         the value in TOML; "" where there is none
//   words(), formers()           the words that may be written for it, and those of before

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/options.h"
#include "lockstep/data/dataset.h"

namespace lockstep {

using Words = std::vector<std::string>;

/// "a number >= 0 and < 1".
std::string describe(const Limits& limits, const char* kind);
bool contains(const Limits& limits, double value);
/// "8, 16 or 32".
std::string alternatives(const std::vector<int>& values);
/// `text` as a TOML basic string.
std::string quoted(const std::string& text);
/// "expected WHAT, got -1".
std::string expected(const std::string& what, const toml::node& node);
/// "one of "local", "sync"".
std::string one_of(const Words& names);
/// The same with what came, and the nearest name if `node` is a misspelt string.
std::string expected_choice(const Words& names, const toml::node& node);
/// A number in the shortest form that reads back to the same value.
std::string to_value(std::int64_t value);
std::string to_value(std::uint64_t value);
std::string to_value(float value);
std::string to_value(double value);
/// Numbers of an array of `count` numbers (0: any) within `limits`; nullopt when it is not one.
std::optional<std::vector<double>> number_list(const toml::node& node, std::size_t count,
                                               const Limits& limits);

/// What most types of values have in common.
struct PlainCodec {
  static Words words(const Option&) { return {}; }
  static Words formers() { return {}; }
};

template <typename T>
struct Codec;

template <>
struct Codec<bool> : PlainCodec {
  static std::string expects(const Option&) { return "true or false"; }
  static std::string read(const toml::node& node, bool& field, const Option& option) {
    if (!node.is_boolean()) return expected(expects(option), node);
    field = *node.value<bool>();
    return "";
  }
  static std::string write(bool field, const Option&) { return field ? "true" : "false"; }
  static Words words(const Option&) { return {"true", "false"}; }
};

template <std::integral T>
struct Codec<T> : PlainCodec {
  static std::string expects(const Option& option) {
    return option.among.empty() ? describe(option.in, "an integer") : alternatives(option.among);
  }
  static std::string read(const toml::node& node, T& field, const Option& option) {
    const auto value = node.is_integer() ? node.value<std::int64_t>() : std::nullopt;
    const std::vector<int>& among = option.among;
    if (!value || !contains(option.in, static_cast<double>(*value)) ||
        (!among.empty() && std::find(among.begin(), among.end(), *value) == among.end())) {
      return expected(expects(option), node);
    }
    field = static_cast<T>(*value);
    return "";
  }
  static std::string write(T field, const Option&) {
    using Widest = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
    return to_value(static_cast<Widest>(field));
  }
};

template <std::floating_point T>
struct Codec<T> : PlainCodec {
  static std::string expects(const Option& option) { return describe(option.in, "a number"); }
  static std::string read(const toml::node& node, T& field, const Option& option) {
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value || !contains(option.in, *value)) return expected(expects(option), node);
    field = static_cast<T>(*value);
    return "";
  }
  static std::string write(T field, const Option&) { return to_value(field); }
};

/// Of std::string and std::filesystem::path.
template <typename T>
struct TextCodec : PlainCodec {
  static std::string expects(const Option& option) {
    return *option.what == '\0' ? "a string" : option.what;
  }
  static std::string read(const toml::node& node, T& field, const Option& option) {
    if (!node.is_string()) return expected(expects(option), node);
    field = *node.value<std::string>();
    return "";
  }
  static std::string write(const std::string& field, const Option& option) {
    return field.empty() && !option.even_empty ? "" : quoted(field);
  }
};
template <>
struct Codec<std::string> : TextCodec<std::string> {};
template <>
struct Codec<std::filesystem::path> : TextCodec<std::filesystem::path> {};

template <typename T>
requires std::is_enum_v<T>
struct Codec<T> {
  static std::string expects(const Option& option) { return one_of(words(option)); }
  static std::string read(const toml::node& node, T& field, const Option& option) {
    const std::string word = node.value_or(std::string());
    for (const Named<T>& named : names_of(T{})) {
      if (word.empty() || (word != named.name && word != named.former)) continue;
      field = named.value;
      return "";
    }
    return expected_choice(words(option), node);
  }
  static std::string write(T field, const Option&) { return quoted(to_string(field)); }
  static Words words(const Option&) {
    Words words;
    for (const Named<T>& named : names_of(T{})) words.emplace_back(named.name);
    return words;
  }
  static Words formers() {
    Words words;
    for (const Named<T>& named : names_of(T{})) {
      if (*named.former != '\0') words.emplace_back(named.former);
    }
    return words;
  }
};

template <>
struct Codec<Size> : PlainCodec {
  static std::string expects(const Option&);
  static std::string read(const toml::node& node, Size& field, const Option& option);
  static std::string write(const Size& field, const Option&);
};

template <>
struct Codec<ExposureOptions> : PlainCodec {
  static std::string expects(const Option&);
  static std::string read(const toml::node& node, ExposureOptions& field, const Option& option);
  static std::string write(const ExposureOptions& field, const Option&);
};

/// [lo, hi] above 0.
template <>
struct Codec<std::array<float, 2>> : PlainCodec {
  static std::string expects(const Option& option);
  static std::string read(const toml::node& node, std::array<float, 2>& field,
                          const Option& option);
  static std::string write(const std::array<float, 2>& field, const Option&);
};

/// [r, g, b].
template <>
struct Codec<std::array<float, 3>> : PlainCodec {
  static std::string expects(const Option& option);
  static std::string read(const toml::node& node, std::array<float, 3>& field,
                          const Option& option);
  static std::string write(const std::array<float, 3>& field, const Option&);
};

template <>
struct Codec<std::vector<std::string>> : PlainCodec {
  static std::string expects(const Option& option);
  static std::string read(const toml::node& node, std::vector<std::string>& field,
                          const Option& option);
  static std::string write(const std::vector<std::string>& field, const Option&);
};

template <std::floating_point T>
struct Codec<std::vector<T>> : PlainCodec {
  static std::string expects(const Option& option) {
    return "a list, each " + describe(option.in, "a number");
  }
  static std::string read(const toml::node& node, std::vector<T>& field, const Option& option) {
    const auto values = number_list(node, 0, option.in);
    if (!values) return expected(expects(option), node);
    field.clear();
    for (const double value : *values) field.push_back(static_cast<T>(value));
    return "";
  }
  static std::string write(const std::vector<T>& field, const Option&) {
    std::string text;
    for (const T value : field) text += (text.empty() ? "" : ", ") + to_value(value);
    return text.empty() ? "" : "[" + text + "]";
  }
};

template <typename T>
struct Codec<std::optional<T>> : PlainCodec {
  static std::string expects(const Option& option) {
    const std::string value = Codec<T>::expects(option);
    return has_word(option) ? value + ", or " + quoted(option.none) : value;
  }
  static std::string read(const toml::node& node, std::optional<T>& field, const Option& option) {
    if (has_word(option) && node.value_or(std::string()) == option.none) {
      field.reset();
      return "";
    }
    T value{};
    const std::string wrong = Codec<T>::read(node, value, option);
    if (!wrong.empty()) return expected(expects(option), node);
    field = value;
    return "";
  }
  static std::string write(const std::optional<T>& field, const Option& option) {
    if (field) return Codec<T>::write(*field, option);
    return has_word(option) ? quoted(option.none) : "";
  }
  static Words words(const Option& option) {
    return has_word(option) ? Words{option.none} : Codec<T>::words(option);
  }

 private:
  static bool has_word(const Option& option) { return *option.none != '\0'; }
};

}  // namespace lockstep
