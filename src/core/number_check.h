#pragma once
// Options that a program gives, held to the ranges that a configuration's keys have.

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/options.h"

namespace lockstep {

/// A visitor of options (core/options.h), by value: `visit_options` of a copy. Throws ConfigError
/// for a number, or one of a list, that is out of its range.
struct NumberCheck {
  std::string whose;  // what stands before the key in the message: "DataOptions::"

  template <typename Value>
  void operator()(const char* key, const Value& value, const char*, const Option& option = {}) {
    if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>) {
      check_number(whose + key, static_cast<double>(value), option.in);
    }
  }
  template <typename Value>
  void operator()(const char* key, const std::vector<Value>& values, const char* says,
                  const Option& option = {}) {
    for (const Value& value : values) (*this)(key, value, says, option);
  }
  template <typename Value>
  void operator()(const char* key, const std::optional<Value>& value, const char* says,
                  const Option& option = {}) {
    if (value) (*this)(key, *value, says, option);
  }
  template <typename Value>
  void section(const char*, const Value&) {}
};

}  // namespace lockstep
