#include "app/stdout_check.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "app/command.h"

namespace lockstep {
namespace {

/// The end of a pipe that nobody reads: what wrote to it may not have kept its errno.
bool reader_has_gone() {
  pollfd out{STDOUT_FILENO, 0, 0};
  return poll(&out, 1, 0) > 0 && (out.revents & POLLERR) != 0;
}

}  // namespace

int finish_stdout(int exit_code, int earlier) {
  const bool failed_before = std::ferror(stdout) != 0;
  const int last = std::fflush(stdout) == 0 ? 0 : errno;
  const int reason = last != 0 ? last : earlier;
  if (reason == 0 && !failed_before) return exit_code;
  if (reason == EPIPE || reader_has_gone()) return exit_code;
  fmt::print(stderr, "lockstep: error: standard output cannot be written: {}\n",
             reason != 0 ? std::strerror(reason) : "a part of it is missing");
  return exit_code == kExitDone ? kExitFailure : exit_code;
}

int stdout_failure(const std::exception& error) {
  const auto* failure = dynamic_cast<const std::system_error*>(&error);
  return failure != nullptr && std::ferror(stdout) != 0 ? failure->code().value() : 0;
}

}  // namespace lockstep
