#pragma once
// Errors and preconditions. Everything below `main` reports failure by throwing; only `main` turns
// an exception into an exit code. A message says what was expected, what came and what to do.

#include <sstream>
#include <stdexcept>
#include <string>

namespace lockstep {

/// Any failure. Exit code 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The command line or the configuration is wrong. Exit code 2.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A data set, an image, a label or a weight file is wrong. Exit code 3.
class DataError : public Error {
 public:
  using Error::Error;
};

/// The loss or a gradient is not finite. Exit code 4.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// A replica failed, stalled or broke the synchronization protocol. Exit code 5.
class ReplicaError : public Error {
 public:
  using Error::Error;
};

/// A replica did not come to where the others waited for it.
class StalledError : public ReplicaError {
 public:
  using ReplicaError::ReplicaError;
};

/// Thrown to a rank that waits when another rank has failed; never the root cause.
class PeerAborted : public ReplicaError {
 public:
  using ReplicaError::ReplicaError;
};

/// The arguments written one after another, as `<<` prints them.
template <typename... Args>
std::string concat(const Args&... args) {
  std::ostringstream text;
  (text << ... << args);
  return text.str();
}

namespace detail {
[[noreturn]] void throw_check_failure(const char* condition, const char* file, int line,
                                      const std::string& message);
}  // namespace detail

/// Throws `Error` with the message (streamed arguments), the condition and file:line unless
/// `condition` holds.
#define LOCKSTEP_CHECK(condition, ...)                                          \
  do {                                                                          \
    if (!(condition)) {                                                         \
      ::lockstep::detail::throw_check_failure(#condition, __FILE__, __LINE__,   \
                                              ::lockstep::concat(__VA_ARGS__)); \
    }                                                                           \
  } while (false)

}  // namespace lockstep
