#pragma once
// Where every replica is: breadcrumbs that the watchdog and the error messages read.
// Each rank writes only its own entry; anyone may read.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace lockstep {

class Progress {
 public:
  /// Of ranks [first, first + ranks).
  explicit Progress(int ranks, int first = 0);

  /// Notes that `rank` now does `activity` in `place` (a layer, say); both must outlive the
  /// Progress (string literals, layer names). Cheap; no lock.
  void enter(int rank, const char* activity, const char* place);
  void set_step(int rank, std::int64_t step);

  int ranks() const { return ranks_; }
  /// "replica 2: backward in encoder.1.0.bn, step 812, for 61.0 s".
  std::string describe(int rank) const;

 private:
  struct Entry {
    std::atomic<const char*> activity{"starting"};
    std::atomic<const char*> place{""};
    std::atomic<std::int64_t> step{-1};
    std::atomic<std::int64_t> since_ns{0};
  };

  Entry& entry(int rank) const { return entries_[rank - first_]; }

  const int ranks_, first_;
  std::unique_ptr<Entry[]> entries_;
};

}  // namespace lockstep
