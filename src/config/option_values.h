#pragma once
// How a field of an options struct is read from TOML and written as TOML, by its type: `Codec<T>`.
//   expects(option)               what may be written: "a number >= 0"
//   parse(node, field, option)    stores the value; false, or ConfigError, where it is none
//   write(field, option)          the value in TOML; "" where there is none

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <ranges>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/words.h"
#include "lockstep/core/check.h"
#include "lockstep/core/options.h"
#include "lockstep/data/dataset.h"
#include "lockstep/nn/loss.h"

namespace lockstep {

using Words = std::vector<std::string>;

/// `text` as a TOML basic string.
inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

/// "expected a number, got -1"; what came may also be `"snc"` or `a table`.
inline std::string expected(const std::string& what, const toml::node& node) {
  std::ostringstream came;
  if (node.is_table()) {
    came << "a table";
  } else if (node.is_string()) {
    came << quoted(*node.value<std::string>());
  } else {
    node.visit([&](const auto& value) { came << value; });
  }
  return fmt::format("expected {}, got {}", what, came.str());
}

/// "local", "sync".
inline std::string quoted_list(const Words& words) {
  return joined(words | std::views::transform(quoted));
}

/// The number as the field has it. Throws ConfigError where it would be infinite, or 0 though it is
/// not.
template <std::floating_point T>
T narrowed(double value) {
  using Of = std::numeric_limits<T>;
  const double size = std::abs(value), least = static_cast<double>(Of::denorm_min());
  if (size == 0 || (size >= least && size <= static_cast<double>(Of::max())))
    return static_cast<T>(value);
  throw ConfigError(fmt::format("{:g} is beyond what is computed with: 0, or from {:.2g} to {:.2g}",
                                value, least, static_cast<double>(Of::max())));
}

/// Numbers of an array of `count` numbers (0: any) within `limits`; nullopt when it is not one.
inline std::optional<std::vector<double>> number_list(const toml::node& node, std::size_t count,
                                                      const Limits& limits) {
  const toml::array* array = node.as_array();
  if (array == nullptr || (count != 0 && array->size() != count)) return std::nullopt;
  std::vector<double> values;
  for (const toml::node& element : *array) {
    if (!element.is_number()) return std::nullopt;
    values.push_back(*element.value<double>());
    if (!contains(limits, values.back())) return std::nullopt;
  }
  return values;
}

template <typename T>
struct Codec;

template <>
struct Codec<bool> {
  static std::string expects(const Option&) { return "true or false"; }
  static bool parse(const toml::node& node, bool& field, const Option&) {
    if (node.is_boolean()) field = *node.value<bool>();
    return node.is_boolean();
  }
  static std::string write(bool field, const Option&) { return field ? "true" : "false"; }
};

template <std::integral T>
struct Codec<T> {
  static std::string expects(const Option& option) {
    const std::vector<int>& among = option.among;
    if (among.empty()) return describe(option.in, "an integer");
    return fmt::format("{} or {}", fmt::join(among.begin(), among.end() - 1, ", "), among.back());
  }
  static bool parse(const toml::node& node, T& field, const Option& option) {
    const auto value = node.is_integer() ? node.value<std::int64_t>() : std::nullopt;
    if (!value || !contains(option.in, static_cast<double>(*value))) return false;
    const std::vector<int>& among = option.among;
    if (!among.empty() && std::ranges::find(among, *value) == among.end()) {
      return false;
    }
    field = static_cast<T>(*value);
    return true;
  }
  static std::string write(T field, const Option&) { return fmt::format("{}", field); }
};

/// Written in the shortest form that reads back to the same value.
template <std::floating_point T>
struct Codec<T> {
  static std::string expects(const Option& option) { return describe(option.in, "a number"); }
  static bool parse(const toml::node& node, T& field, const Option& option) {
    const auto value = node.is_number() ? node.value<double>() : std::nullopt;
    if (!value || !contains(option.in, *value)) return false;
    field = narrowed<T>(*value);
    return true;
  }
  static std::string write(T field, const Option&) { return fmt::format("{}", field); }
};

template <typename T>
concept Text = std::same_as<T, std::string> || std::same_as<T, std::filesystem::path>;

template <Text T>
struct Codec<T> {
  static std::string expects(const Option& option) {
    return *option.what == '\0' ? "a string" : option.what;
  }
  static bool parse(const toml::node& node, T& field, const Option&) {
    if (node.is_string()) field = *node.value<std::string>();
    return node.is_string();
  }
  static std::string write(const std::string& field, const Option& option) {
    return field.empty() && !option.even_empty ? "" : quoted(field);
  }
};

template <typename T>
requires std::is_enum_v<T>
struct Codec<T> {
  static Words words() {
    Words words;
    for (const Named<T>& named : names_of(T{})) words.emplace_back(named.name);
    return words;
  }
  static std::string expects(const Option&) { return "one of " + quoted_list(words()); }
  static bool parse(const toml::node& node, T& field, const Option&) {
    const std::string word = node.value_or(std::string());
    for (const Named<T>& named : names_of(T{})) {
      if (word.empty() || (word != named.name && word != named.former)) continue;
      field = named.value;
      return true;
    }
    return false;
  }
  static std::string write(T field, const Option&) { return quoted(to_string(field)); }
};

template <>
struct Codec<Size> {
  static constexpr int kMost = 65536;
  static std::string expects(const Option&) {
    return concat("[height, width] in pixels, each from 1 to ", kMost);
  }
  static bool parse(const toml::node& node, Size& field, const Option&) {
    const auto values = number_list(node, 2, {.lo = 1, .hi = kMost});
    if (!values || std::any_of(values->begin(), values->end(),
                               [](double value) { return std::floor(value) != value; })) {
      return false;
    }
    field = {static_cast<int>((*values)[0]), static_cast<int>((*values)[1])};
    return true;
  }
  static std::string write(const Size& field, const Option&) {
    return fmt::format("[{}, {}]", field.height, field.width);
  }
};

template <>
struct Codec<ExposureOptions> {
  static std::string expects(const Option&) {
    return "[lo, offset], lo > 0 and <= 1, offset >= 0 and <= 255";
  }
  static bool parse(const toml::node& node, ExposureOptions& field, const Option&) {
    const auto values = number_list(node, 2, {.lo = 0, .hi = 255});
    if (!values || (*values)[0] <= 0 || (*values)[0] > 1) return false;
    field = {narrowed<float>((*values)[0]), narrowed<float>((*values)[1])};
    return true;
  }
  static std::string write(const ExposureOptions& field, const Option&) {
    return fmt::format("[{}, {}]", field.lo, field.offset);
  }
};

/// A range of positive numbers.
template <>
struct Codec<std::array<float, 2>> {
  static std::string expects(const Option& option) {
    return fmt::format("[lo, hi], 0 < lo <= hi <= {}", option.in.hi);
  }
  static bool parse(const toml::node& node, std::array<float, 2>& field, const Option& option) {
    const auto values = number_list(node, 2, {.lo = 0, .hi = option.in.hi, .above = true});
    if (!values || (*values)[0] > (*values)[1]) return false;
    field = {narrowed<float>((*values)[0]), narrowed<float>((*values)[1])};
    return true;
  }
  static std::string write(const std::array<float, 2>& field, const Option&) {
    return fmt::format("[{}]", fmt::join(field, ", "));
  }
};

template <typename T>
requires std::is_arithmetic_v<T>
struct Codec<std::vector<T>> {
  static std::string expects(const Option& option) {
    return "a list, each " + describe(option.in, std::is_integral_v<T> ? "an integer" : "a number");
  }
  static bool parse(const toml::node& node, std::vector<T>& field, const Option& option) {
    const auto values = number_list(node, 0, option.in);
    const auto is_no_value = [](double value) {
      return std::is_integral_v<T> && std::floor(value) != value;
    };
    if (!values || std::any_of(values->begin(), values->end(), is_no_value)) return false;
    std::vector<T> read;
    for (const double value : *values) {
      if constexpr (std::is_integral_v<T>) {
        read.push_back(static_cast<T>(value));
      } else {
        read.push_back(narrowed<T>(value));
      }
    }
    field = std::move(read);
    return true;
  }
  static std::string write(const std::vector<T>& field, const Option&) {
    return field.empty() ? "" : fmt::format("[{}]", fmt::join(field, ", "));
  }
};

/// The numbers that "balanced" stands for follow the word once they are measured.
template <>
struct Codec<ClassWeights> {
  using Numbers = Codec<std::vector<float>>;
  static constexpr const char* kBalanced = "balanced";

  static std::string expects(const Option& option) {
    return concat(Numbers::expects(option), ", or ", quoted(kBalanced));
  }
  static bool parse(const toml::node& node, ClassWeights& field, const Option& option) {
    const toml::array* list = node.as_array();
    const toml::node& first = list != nullptr && !list->empty() ? list->front() : node;
    const bool balanced = first.value_or(std::string()) == kBalanced;
    std::vector<float> numbers;
    if (list != nullptr) {
      toml::array rest = *list;
      if (balanced) rest.erase(rest.begin());
      if (!Numbers::parse(rest, numbers, option)) return false;
    }
    field = std::move(numbers);
    field.balanced = balanced;
    return list != nullptr || balanced;
  }
  static std::string write(const ClassWeights& field, const Option& option) {
    if (!field.balanced) return Numbers::write(field, option);
    if (field.empty()) return quoted(kBalanced);
    return fmt::format("[{}, {}]", quoted(kBalanced), fmt::join(field, ", "));
  }
};

template <>
struct Codec<Words> {
  static std::string expects(const Option& option) { return concat("a list of ", option.what); }
  static bool parse(const toml::node& node, Words& field, const Option& option) {
    const toml::array* texts = node.as_array();
    if (texts == nullptr) {
      field = {node.value_or(std::string())};
      return node.is_string() && option.alone != nullptr && option.alone(field.front());
    }
    field.clear();
    for (const toml::node& text : *texts) {
      if (!text.is_string()) throw ConfigError(expected(expects(option), text));
      field.push_back(*text.value<std::string>());
      if (option.check != nullptr) option.check(field.back());
    }
    return true;
  }
  static std::string write(const Words& field, const Option&) {
    return field.empty() ? "" : "[" + quoted_list(field) + "]";
  }
};

/// Empty: not set, or the word `option.none`.
template <typename T>
struct Codec<std::optional<T>> {
  static std::string expects(const Option& option) {
    const std::string value = Codec<T>::expects(option);
    return *option.none == '\0' ? value : value + ", or " + quoted(option.none);
  }
  static bool parse(const toml::node& node, std::optional<T>& field, const Option& option) {
    if (*option.none != '\0' && node.value_or(std::string()) == option.none) {
      field.reset();
      return true;
    }
    T value{};
    if (!Codec<T>::parse(node, value, option)) return false;
    field = value;
    return true;
  }
  static std::string write(const std::optional<T>& field, const Option& option) {
    if (field) return Codec<T>::write(*field, option);
    return *option.none == '\0' ? "" : quoted(option.none);
  }
};

}  // namespace lockstep
