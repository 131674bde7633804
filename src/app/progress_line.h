#pragma once
// How far long work is, in the last line of a terminal.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include "lockstep/core/progress.h"

namespace lockstep {

/// "evaluating: 12/367 images, 25.1 per s, 0:00:14 left", written over itself ten times a second at
/// most and as long as the terminal is wide. Used by one thread at a time.
class ProgressLine final : public ProgressObserver {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Clock = std::function<TimePoint()>;

  explicit ProgressLine(std::FILE* terminal, Clock clock = std::chrono::steady_clock::now);
  ~ProgressLine() override { clear(); }

  void show(const WorkProgress& progress) override;
  void clear() override;

 private:
  std::string line_of(const WorkProgress& progress, TimePoint now) const;

  std::FILE* const terminal_;
  const Clock clock_;
  std::string what_;         // the work that is shown
  TimePoint begun_, drawn_;  // when it was first told of; when the line was last written
  std::int64_t first_ = 0;   // what was done by then
  std::int64_t done_ = 0;
  bool visible_ = false;
};

/// Shows the process's progress on stderr, where that is a terminal, as long as it lives.
class ShownProgress {
 public:
  ShownProgress();
  ~ShownProgress();
  ShownProgress(const ShownProgress&) = delete;
  ShownProgress& operator=(const ShownProgress&) = delete;

 private:
  ProgressLine line_;
  const bool shown_;
  ProgressObserver* before_ = nullptr;
};

}  // namespace lockstep
