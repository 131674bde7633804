#pragma once
// How far long work is. The library reports it to an observer, which may show it, and prints
// nothing itself.

#include <atomic>
#include <cstdint>
#include <string>

namespace lockstep {

/// A report, such as "reading val: 12 of 367 images".
struct WorkProgress {
  std::string what;       // the work
  std::string unit;       // what is counted, in the plural: "images"
  std::int64_t done = 0;  // how many are done
  std::int64_t all = 0;   // how many there are; 0: unknown
  std::string note = {};  // shown after the numbers; may be empty
};

/// Receives reports, from one thread at a time. A piece of work inside another one reports, too.
class ProgressObserver {
 public:
  virtual ~ProgressObserver() = default;
  /// `progress` is valid during the call only.
  virtual void show(const WorkProgress& progress) = 0;
  /// The work is over, or something else is to be printed.
  virtual void clear() = 0;
};

/// Makes `observer` the process's observer (null: none), and returns the one before, which gets no
/// report any more once this has returned. Safe from any thread.
ProgressObserver* set_progress_observer(ProgressObserver* observer);

/// Reports to the observer. Where there is none, these do nothing and cost next to nothing. Safe
/// from any thread.
void show_progress(const WorkProgress& progress);
void clear_progress();

/// Work on `all` units (0: unknown). It is reported when the object is made, whenever units are
/// done, and as ended when the object goes. Safe from several threads.
class LongWork {
 public:
  LongWork(std::string what, std::string unit, std::int64_t all);
  ~LongWork() { clear_progress(); }
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

  /// Says that so many more units are done.
  void advance(std::int64_t parts = 1);

 private:
  const std::string what_, unit_;
  const std::int64_t all_;
  std::atomic<std::int64_t> done_{0};
};

}  // namespace lockstep
