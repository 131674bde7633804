#include "lockstep/core/check.h"

#include <doctest/doctest.h>

#include <string>

namespace lockstep {

TEST_CASE("a failed check says what came, the condition and where") {
  const int got = 3;
  std::string message;
  try {
    LOCKSTEP_CHECK(got == 4, "expected 4 channels, got ", got);
  } catch (const Error& error) {
    message = error.what();
  }
  CHECK(message.find("expected 4 channels, got 3") == 0);
  CHECK(message.find("got == 4") != std::string::npos);
  CHECK(message.find("check_test.cpp:") != std::string::npos);
}

TEST_CASE("a check that holds does not evaluate its message") {
  int evaluated = 0;
  LOCKSTEP_CHECK(true, ++evaluated);
  CHECK(evaluated == 0);
}

}  // namespace lockstep
