#include "cli/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace lockstep {

using Clock = std::chrono::steady_clock;

ProgressLine::ProgressLine(const std::string& of)
    : prefix_(of.empty() ? "" : of + ": "),
      shown_(isatty(STDERR_FILENO) == 1),
      first_(Clock::now()) {}

void ProgressLine::show(std::int64_t done, std::int64_t all) {
  constexpr auto kInterval = std::chrono::milliseconds(100);
  if (done == 1) first_ = Clock::now();
  if (!shown_ || Clock::now() - drawn_ < kInterval) return;
  drawn_ = Clock::now();
  const double seconds = std::chrono::duration<double>(drawn_ - first_).count();
  fmt::print(stderr, "\r\033[K{}{}/{} images, {:.1f} images/s", prefix_, done, all,
             static_cast<double>(done - 1) / std::max(seconds, 1e-9));
  std::fflush(stderr);
}

void ProgressLine::clear() const {
  if (shown_) fmt::print(stderr, "\r\033[K");
}

}  // namespace lockstep
