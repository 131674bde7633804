#include "config/option_values.h"

#include <fmt/format.h>

#include <cmath>
#include <sstream>

#include "config/suggest.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

constexpr int kMostExtent = 65536;

/// What `node` is, for messages: `-1`, `"snc"`, `a table`.
std::string show(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_string()) return quoted(*node.value<std::string>());
  std::ostringstream text;
  node.visit([&](const auto& value) { text << value; });
  return text.str();
}

}  // namespace

std::string describe(const Limits& limits, const char* kind) {
  std::string text = kind;
  if (!std::isinf(limits.lo)) text += fmt::format(" {} {}", limits.above ? ">" : ">=", limits.lo);
  if (!std::isinf(limits.hi)) {
    text += fmt::format("{} {} {}", !std::isinf(limits.lo) ? " and" : "",
                        limits.below ? "<" : "<=", limits.hi);
  }
  return text;
}

bool contains(const Limits& limits, double value) {
  if (!std::isfinite(value)) return false;
  const bool low = limits.above ? value > limits.lo : value >= limits.lo;
  const bool high = limits.below ? value < limits.hi : value <= limits.hi;
  return low && high;
}

std::string alternatives(const std::vector<int>& values) {
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == values.size() ? " or " : ", ", values[i]);
  }
  return text;
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

std::string to_value(std::int64_t value) { return fmt::format("{}", value); }
std::string to_value(std::uint64_t value) { return fmt::format("{}", value); }
std::string to_value(float value) { return fmt::format("{}", value); }
std::string to_value(double value) { return fmt::format("{}", value); }

std::string expected(const std::string& what, const toml::node& node) {
  return fmt::format("expected {}, got {}", what, show(node));
}

std::string one_of(const Words& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + quoted(name);
  return "one of " + list;
}

std::string expected_choice(const Words& names, const toml::node& node) {
  std::string message = expected(one_of(names), node);
  if (node.is_string()) {
    const auto nearest = nearest_word(*node.value<std::string>(), names);
    if (nearest) message += fmt::format("; did you mean {}?", quoted(*nearest));
  }
  return message;
}

std::optional<std::vector<double>> number_list(const toml::node& node, std::size_t count,
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

std::string Codec<Size>::expects(const Option&) {
  return concat("[height, width] in pixels, each from 1 to ", kMostExtent);
}

std::string Codec<Size>::read(const toml::node& node, Size& field, const Option& option) {
  const auto values = number_list(node, 2, {.lo = 1, .hi = kMostExtent});
  if (!values || std::floor((*values)[0]) != (*values)[0] ||
      std::floor((*values)[1]) != (*values)[1]) {
    return expected(expects(option), node);
  }
  field = {static_cast<int>((*values)[0]), static_cast<int>((*values)[1])};
  return "";
}

std::string Codec<Size>::write(const Size& field, const Option&) {
  return fmt::format("[{}, {}]", field.height, field.width);
}

std::string Codec<ExposureOptions>::expects(const Option&) {
  return "[lo, offset], lo > 0 and <= 1, offset >= 0 and <= 255";
}

std::string Codec<ExposureOptions>::read(const toml::node& node, ExposureOptions& field,
                                         const Option& option) {
  const auto values = number_list(node, 2, {.lo = 0, .hi = 255});
  if (!values || (*values)[0] <= 0 || (*values)[0] > 1) return expected(expects(option), node);
  field = {static_cast<float>((*values)[0]), static_cast<float>((*values)[1])};
  return "";
}

std::string Codec<ExposureOptions>::write(const ExposureOptions& field, const Option&) {
  return fmt::format("[{}, {}]", field.lo, field.offset);
}

using Pair = std::array<float, 2>;

std::string Codec<Pair>::expects(const Option& option) {
  return fmt::format("[lo, hi], 0 < lo <= hi <= {}", option.in.hi);
}

std::string Codec<Pair>::read(const toml::node& node, Pair& field, const Option& option) {
  const auto values = number_list(node, 2, {.lo = 0, .hi = option.in.hi, .above = true});
  if (!values || (*values)[0] > (*values)[1]) return expected(expects(option), node);
  field = {static_cast<float>((*values)[0]), static_cast<float>((*values)[1])};
  return "";
}

std::string Codec<Pair>::write(const Pair& field, const Option&) {
  return fmt::format("[{}, {}]", field[0], field[1]);
}

using Triple = std::array<float, 3>;

std::string Codec<Triple>::expects(const Option& option) {
  return "[r, g, b], each " + describe(option.in, "a number");
}

std::string Codec<Triple>::read(const toml::node& node, Triple& field, const Option& option) {
  const auto values = number_list(node, 3, option.in);
  if (!values) return expected(expects(option), node);
  for (std::size_t i = 0; i < 3; ++i) field[i] = static_cast<float>((*values)[i]);
  return "";
}

std::string Codec<Triple>::write(const Triple& field, const Option&) {
  return fmt::format("[{}, {}, {}]", field[0], field[1], field[2]);
}

using Texts = std::vector<std::string>;

std::string Codec<Texts>::expects(const Option& option) {
  return concat("a list of ", option.what);
}

std::string Codec<Texts>::read(const toml::node& node, Texts& field, const Option& option) {
  const toml::array* texts = node.as_array();
  if (texts == nullptr) return expected(expects(option), node);
  field.clear();
  for (const toml::node& text : *texts) {
    if (!text.is_string()) return expected(expects(option), text);
    field.push_back(*text.value<std::string>());
    try {
      if (option.check != nullptr) option.check(field.back());
    } catch (const ConfigError& error) {
      return error.what();
    }
  }
  return "";
}

std::string Codec<Texts>::write(const Texts& field, const Option&) {
  std::string text;
  for (const std::string& value : field) text += (text.empty() ? "" : ", ") + quoted(value);
  return text.empty() ? "" : "[" + text + "]";
}

}  // namespace lockstep
