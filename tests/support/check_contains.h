#pragma once

#include <doctest/doctest.h>

#include <string>

namespace lockstep::test {

/// CHECKs that the text has this part, and shows both if not.
inline void check_contains(const std::string& text, const std::string& part) {
  INFO("in: ", text);
  INFO("expected: ", part);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
}

}  // namespace lockstep::test
