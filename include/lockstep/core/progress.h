#pragma once
// How far long work is, for whoever shows it: the library tells, and prints nothing.

#include <atomic>
#include <cstdint>
#include <string>

namespace lockstep {

/// "reading val: 12 of 367 images".
struct WorkProgress {
  std::string what;  // the work
  std::string unit;  // of its parts, in the plural
  std::int64_t done = 0;
  std::int64_t all = 0;   // 0: nobody knows
  std::string note = {};  // what more there is to say; may be empty
};

/// Is told by one thread at a time, of a work inside another one, too.
class ProgressObserver {
 public:
  virtual ~ProgressObserver() = default;
  virtual void show(const WorkProgress& progress) = 0;
  /// The work is over, or something else is to be printed.
  virtual void clear() = 0;
};

/// Makes `observer` (null: nobody) the one that the process tells, and returns the one before. It
/// is told nothing any more when this returns. Safe from any thread.
ProgressObserver* set_progress_observer(ProgressObserver* observer);

/// Tell the observer; nothing, at next to no cost, where there is none. Safe from any thread.
void show_progress(const WorkProgress& progress);
void clear_progress();

/// Work of `all` parts (0: nobody knows how many), told of when it begins, with each part that is
/// done, and when it ends. Safe from several threads.
class LongWork {
 public:
  LongWork(std::string what, std::string unit, std::int64_t all);
  ~LongWork() { clear_progress(); }
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

  void advance(std::int64_t parts = 1);

 private:
  const std::string what_, unit_;
  const std::int64_t all_;
  std::atomic<std::int64_t> done_{0};
};

}  // namespace lockstep
