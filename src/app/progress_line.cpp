#include "app/progress_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <utility>

#include "run/report_text.h"

namespace lockstep {
namespace {

/// One less than there are: a line that fills the last column may wrap.
std::size_t columns_of(std::FILE* terminal) {
  winsize size{};
  const bool known = ioctl(fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col - 1U : 79U;
}

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

}  // namespace lockstep
