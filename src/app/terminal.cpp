#include "app/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>
#include <utility>

#include "app/command.h"
#include "core/system_text.h"
#include "run/report_text.h"

namespace lockstep {
namespace {

/// One less than there are: a line that fills the last column may wrap. PrintedOutput's streams
/// have no descriptor.
std::size_t columns_of(std::FILE* terminal) {
  winsize size{};
  const int descriptor = terminal == stderr ? STDERR_FILENO : fileno(terminal);
  const bool known = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col - 1U : 79U;
}

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free,
              "a signal handler may touch lock-free atomics only");

// The default action comes back with the first signal, so the second one ends the process. What is
// under way may be a long validation: that it ends first is said at once.
void request_stop(int signal) {
  constexpr std::string_view kSaid =
      "\nstopping: what is under way ends first (a step, a validation); once more ends at once\n";
  const int before = errno;
  stop_requested = true;
  std::signal(signal, SIG_DFL);
  static_cast<void>(::write(STDERR_FILENO, kSaid.data(), kSaid.size()) < 0);
  errno = before;
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

// --- stdout and stderr ---

// Of glibc: stdout and stderr are variables, and a stream may have a function of its own for
// writing. A library that is loaded while a command runs, as cuDNN loads NVRTC, may keep what they
// are then and flush it when the process ends: the stream outlives the command, and what it writes
// to as well.
PrintedOutput::Stream::Stream(std::FILE*& stream, int descriptor, int buffering)
    : stream_(stream), before_(stream), sink_(*new Sink{descriptor}) {
  std::fflush(before_);
  std::FILE* const own = fopencookie(&sink_, "w", {nullptr, Sink::write, nullptr, nullptr});
  if (own == nullptr) return;
  std::setvbuf(own, nullptr, buffering, BUFSIZ);
  stream_ = own;
}

PrintedOutput::Stream::~Stream() {
  std::fflush(stream_);
  stream_ = before_;
}

int PrintedOutput::Stream::failure() {
  std::fflush(stream_);
  return sink_.failure == EPIPE ? 0 : sink_.failure.load();
}

ssize_t PrintedOutput::Stream::Sink::write(void* self, const char* bytes, std::size_t count) {
  auto& sink = *static_cast<Sink*>(self);
  for (std::size_t done = 0; done < count;) {
    const ssize_t written = ::write(sink.descriptor, bytes + done, count - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      int none = 0;
      sink.failure.compare_exchange_strong(none, errno);
      break;
    }
    done += static_cast<std::size_t>(written);
  }
  return static_cast<ssize_t>(count);
}

void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest number that is free is the stream's own: those below it are open.
    if (fcntl(stream, F_GETFD) < 0) static_cast<void>(open("/dev/null", O_RDWR));
  }
}

PrintedOutput::PrintedOutput()
    : file_too_large_(std::signal(SIGXFSZ, SIG_IGN)),
      out_(stdout, STDOUT_FILENO, isatty(STDOUT_FILENO) == 1 ? _IOLBF : _IOFBF),
      err_(stderr, STDERR_FILENO, _IONBF) {}

PrintedOutput::~PrintedOutput() { std::signal(SIGXFSZ, file_too_large_); }

int PrintedOutput::finish(int exit_code) {
  const int out = out_.failure();
  if (out != 0) {
    fmt::print(stderr, "lockstep: error: standard output cannot be written: {}\n",
               system_text(out));
  }
  const bool failed = out != 0 || err_.failure() != 0;
  return failed && exit_code == kExitDone ? kExitFailure : exit_code;
}

// --- signals ---

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
