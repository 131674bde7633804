#pragma once
// What a profiler is told while the program runs: named ranges of a thread's work, and which steps
// it should look at. A build with CUDA tells NVIDIA's tools (kernels/device/nvtx_profiler.h).

#include <cstdint>

namespace lockstep {

/// Any thread may call; ranges of a thread are nested.
class Profiler {
 public:
  virtual ~Profiler() = default;
  /// `name` is valid during the call only; `number` is the step's, the layer's channels and so on.
  virtual void begin_range(const char* name, std::int64_t number) = 0;
  virtual void end_range() = 0;
  /// A profiler that waits to be told looks at what comes between these.
  virtual void start() = 0;
  virtual void stop() = 0;
};

/// Makes `profiler` the process's (null: none), which outlives every range, and returns the one
/// before. Before replicas are made.
Profiler* set_profiler(Profiler* profiler);
/// The process's; null: none.
Profiler* profiler();

/// A range for the life time of the object. Where there is no profiler it costs a load.
class ProfiledRange {
 public:
  explicit ProfiledRange(const char* name, std::int64_t number = 0) : profiler_(profiler()) {
    if (profiler_ != nullptr) profiler_->begin_range(name, number);
  }
  ~ProfiledRange() {
    if (profiler_ != nullptr) profiler_->end_range();
  }
  ProfiledRange(const ProfiledRange&) = delete;
  ProfiledRange& operator=(const ProfiledRange&) = delete;

 private:
  Profiler* const profiler_;
};

/// Tells the profiler, if there is one, to look from now on, or no longer.
void start_profiler();
void stop_profiler();

}  // namespace lockstep
