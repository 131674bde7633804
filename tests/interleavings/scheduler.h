#pragma once
// Goes through all interleavings of a few threads. They are fibres of one thread, of which one runs
// at a time; at each operation of a mutex, a condition or an atomic it stops, and the scheduler
// decides who goes on. A program runs again and again, with other decisions each time (depth
// first), until there are none left. Memory is sequentially consistent.
//
// Decisions that lead to a state which was there before are followed once: what comes after depends
// on the state alone. A state is all that lies on the threads' stacks and in what they have
// allocated, who waits where for what, and the time. Globals of the program are none of it.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lockstep::test {

class Scheduler {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr TimePoint kNever = TimePoint::max();

  /// How often in one interleaving something happens that may happen at any point.
  struct Whims {
    int wake_ups = 0;  // of a thread that waits for a condition, without a cause
    int stalls = 0;    // nobody gets any further until someone's time has come
  };
  struct Result {
    double interleavings = 0;  // from the beginning to the end of the program
    std::int64_t states = 0;   // in which there is something to decide
    std::int64_t runs = 0;     // of the program
    std::string problem;       // "": none; else what went wrong in which interleaving
  };

  Scheduler();
  ~Scheduler();

  /// All interleavings of `program`, which starts threads and joins them, or those until one in
  /// which `fail` is called, every thread waits for another, or there is no end. `program` depends
  /// on nothing but the decisions and has no data races.
  Result explore(const Whims& whims, const std::function<void()>& program);

  // --- for the program
  /// An operation that has no effect.
  void yield();
  /// Waits until nobody else gets any further: the time that a sleeper takes.
  void sleep(std::chrono::nanoseconds time);
  void join(int thread);
  void fail(const std::string& problem);

  // --- for lockstep/sync/threading.h
  struct Lock {
    int owner = -1;
  };
  void lock(Lock& lock);
  void unlock(Lock& lock);
  /// A condition is known by its address. Returns with the lock when notified, or at `end`.
  void wait(const void* condition, Lock& lock, TimePoint end = kNever);
  void notify_one(const void* condition);
  void notify_all(const void* condition);
  /// An operation of an atomic; afterwards what it has shown.
  void access(const void* atomic);
  int start(std::function<void()> body);
  TimePoint now() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The one of this program.
Scheduler& scheduler();

}  // namespace lockstep::test
