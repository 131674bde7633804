#pragma once
// Words of sentences for people.

#include <cstdint>
#include <limits>
#include <ranges>
#include <string>

#include "lockstep/core/check.h"

namespace lockstep {

/// "1 seed", "2 seeds".
inline std::string count_of(std::int64_t count, const char* noun) {
  return concat(count, " ", noun, count == 1 ? "" : "s");
}

/// "a, b, c"; of more than `most` "a, b and 4 more". The range is gone through once.
template <std::ranges::input_range Range>
std::string joined(Range&& range, std::size_t most = std::numeric_limits<std::size_t>::max()) {
  std::string text;
  std::size_t all = 0;
  for (const auto& item : range) {
    if (all++ < most) text += concat(text.empty() ? "" : ", ", item);
  }
  return all > most ? concat(text, " and ", all - most, " more") : text;
}

/// "a", "a and b", "a, b and c".
template <std::ranges::sized_range Range>
std::string enumerated(const Range& range) {
  std::string text;
  std::size_t left = std::ranges::size(range);
  for (const auto& item : range) {
    text += concat(text.empty() ? "" : left == 1 ? " and " : ", ", item);
    --left;
  }
  return text;
}

}  // namespace lockstep
