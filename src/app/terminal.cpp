#include "app/terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "app/command.h"
#include "run/report_text.h"

namespace lockstep {
namespace {

/// One less than there are: a line that fills the last column may wrap.
std::size_t columns_of(std::FILE* terminal) {
  winsize size{};
  const bool known = ioctl(fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col - 1U : 79U;
}

/// The end of a pipe that nobody reads: what wrote to it may not have kept its errno.
bool reader_has_gone() {
  pollfd out{STDOUT_FILENO, 0, 0};
  return poll(&out, 1, 0) > 0 && (out.revents & POLLERR) != 0;
}

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free,
              "a signal handler may touch lock-free atomics only");

// The default action comes back with the first signal, so the second one ends the process.
void request_stop(int signal) {
  stop_requested = true;
  std::signal(signal, SIG_DFL);
}

// Schedulers may repeat it while the last step and the checkpoint take their time.
void request_stop_kindly(int /*signal*/) { stop_requested = true; }

}  // namespace

ProgressLine::ProgressLine(std::FILE* terminal, Clock clock)
    : terminal_(terminal), clock_(std::move(clock)) {}

void ProgressLine::show(const WorkProgress& progress) {
  constexpr auto kInterval = std::chrono::milliseconds(100);
  const TimePoint now = clock_();
  const bool other = progress.what != what_ || progress.done < done_;
  done_ = progress.done;
  if (other) {
    what_ = progress.what;
    begun_ = now;
    first_ = progress.done;
  }
  if (visible_ && !other && now - drawn_ < kInterval) return;
  drawn_ = now;
  visible_ = true;
  fmt::print(terminal_, "\r\033[K{}", line_of(progress, now).substr(0, columns_of(terminal_)));
  std::fflush(terminal_);
}

std::string ProgressLine::line_of(const WorkProgress& progress, TimePoint now) const {
  std::string line = fmt::format("{}: {}", progress.what, progress.done);
  if (progress.all > 0) line += fmt::format("/{}", progress.all);
  line += " " + progress.unit;
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  const auto done = static_cast<double>(progress.done - first_);
  // Earlier, a rate says little.
  if (seconds >= 1 && done > 0) {
    line += fmt::format(", {:.1f} per s", done / seconds);
    const auto left = static_cast<double>(progress.all - progress.done);
    if (left > 0) line += fmt::format(", {} left", format_duration(left * seconds / done));
  }
  return progress.note.empty() ? line : line + ", " + progress.note;
}

void ProgressLine::clear() {
  if (!visible_) return;
  visible_ = false;
  fmt::print(terminal_, "\r\033[K");
  std::fflush(terminal_);
}

ShownProgress::ShownProgress() : line_(stderr), shown_(isatty(STDERR_FILENO) == 1) {
  if (shown_) before_ = set_progress_observer(&line_);
}

ShownProgress::~ShownProgress() {
  if (shown_) set_progress_observer(before_);
}

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

StopSignals::StopSignals() {
  stop_requested = false;
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  std::signal(SIGUSR1, request_stop_kindly);
  hang_up_ = std::signal(SIGHUP, request_stop_kindly);
  if (hang_up_ == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // nohup: it is to go on
  broken_pipe_ = std::signal(SIGPIPE, SIG_IGN);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGUSR1, SIG_DFL);
  std::signal(SIGHUP, hang_up_);
  std::signal(SIGPIPE, broken_pipe_);
}

const std::atomic<bool>& StopSignals::requested() const { return stop_requested; }

}  // namespace lockstep
