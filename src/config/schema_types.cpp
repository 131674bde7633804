#include "config/schema_types.h"

#include <fmt/format.h>

#include <sstream>

#include "config/suggest.h"

namespace lockstep::schema {

std::string describe(const Range& range, const char* kind) {
  std::string text = kind;
  if (range.lo > -kInfinity) text += fmt::format(" {} {}", range.above ? ">" : ">=", range.lo);
  if (range.hi < kInfinity) {
    text += fmt::format("{} {} {}", range.lo > -kInfinity ? " and" : "",
                        range.below ? "<" : "<=", range.hi);
  }
  return text;
}

bool contains(const Range& range, double value) {
  if (!std::isfinite(value)) return false;
  const bool low = range.above ? value > range.lo : value >= range.lo;
  const bool high = range.below ? value < range.hi : value <= range.hi;
  return low && high;
}

std::string alternatives(const std::vector<int>& values) {
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == values.size() ? " or " : ", ", values[i]);
  }
  return text;
}

std::string show(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_string()) return quoted(*node.value<std::string>());
  std::ostringstream text;
  node.visit([&](const auto& value) { text << value; });
  return text.str();
}

std::string quoted(const std::string& text) {
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

std::string to_value(bool value) { return value ? "true" : "false"; }
std::string to_value(int value) { return fmt::format("{}", value); }
std::string to_value(std::int64_t value) { return fmt::format("{}", value); }
std::string to_value(std::uint64_t value) { return fmt::format("{}", value); }
std::string to_value(float value) { return fmt::format("{}", value); }
std::string to_value(double value) { return fmt::format("{}", value); }
std::string to_value(const std::string& value) { return quoted(value); }
std::string to_value(const Size& value) {
  return fmt::format("[{}, {}]", value.height, value.width);
}

std::string expected(const std::string& what, const toml::node& node) {
  return fmt::format("expected {}, got {}", what, show(node));
}

std::string expected_choice(const std::vector<std::string>& names, const toml::node& node) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + quoted(name);
  std::string message = expected("one of " + list, node);
  if (node.is_string()) {
    const auto nearest = nearest_word(*node.value<std::string>(), names);
    if (nearest) message += fmt::format("; did you mean {}?", quoted(*nearest));
  }
  return message;
}

std::optional<std::vector<double>> number_list(const toml::node& node, std::size_t count,
                                               const Range& range) {
  const toml::array* array = node.as_array();
  if (array == nullptr || (count != 0 && array->size() != count)) return std::nullopt;
  std::vector<double> values;
  for (const toml::node& element : *array) {
    if (!element.is_number()) return std::nullopt;
    values.push_back(*element.value<double>());
    if (!contains(range, values.back())) return std::nullopt;
  }
  return values;
}

std::optional<Size> size_pair(const toml::node& node) {
  const auto values = number_list(node, 2, {.lo = 1, .hi = kMostExtent});
  if (!values || std::floor((*values)[0]) != (*values)[0] ||
      std::floor((*values)[1]) != (*values)[1]) {
    return std::nullopt;
  }
  return Size{static_cast<int>((*values)[0]), static_cast<int>((*values)[1])};
}

}  // namespace lockstep::schema
