#pragma once
// How far long work is.

#include <chrono>
#include <cstdint>
#include <string>

namespace lockstep {

/// "val: 12/367 images, 25.1 images/s" in place on stderr; nothing where that is no terminal. Used
/// by one thread at a time.
class ProgressLine {
 public:
  /// `of`: what the images are of; may be empty.
  explicit ProgressLine(const std::string& of = "");
  ~ProgressLine() { clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Ten times a second at most.
  void show(std::int64_t done, std::int64_t all);
  void clear() const;

 private:
  std::string prefix_;
  bool shown_;
  std::chrono::steady_clock::time_point first_, drawn_;
};

}  // namespace lockstep
