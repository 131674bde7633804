#pragma once
// In place of include/lockstep/sync/threading.h: what threads meet by, under a scheduler that goes
// through every interleaving. As in a program without data races, nothing happens between two of
// these operations that other threads could notice.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "interleavings/scheduler.h"

namespace lockstep::threading {

class Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() { test::scheduler().lock(lock_); }
  void unlock() { test::scheduler().unlock(lock_); }

 private:
  friend class Condition;
  test::Scheduler::Lock lock_;
};

class Condition {
 public:
  Condition() = default;
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  void notify_one() { test::scheduler().notify_one(this); }
  void notify_all() { test::scheduler().notify_all(this); }
  void wait(std::unique_lock<Mutex>& lock) { test::scheduler().wait(this, lock.mutex()->lock_); }
  template <typename Done>
  void wait(std::unique_lock<Mutex>& lock, Done done) {
    while (!done()) wait(lock);
  }
  template <typename Duration, typename Done>
  bool wait_for(std::unique_lock<Mutex>& lock, Duration duration, Done done) {
    const auto end = test::scheduler().now() + duration;
    while (!done()) {
      if (test::scheduler().now() >= end) return false;
      test::scheduler().wait(this, lock.mutex()->lock_, end);
    }
    return true;
  }
};

/// Sequentially consistent, whatever order is asked for.
template <typename Value>
class Atomic {
 public:
  Atomic(Value value) : value_(value) {}
  Atomic(const Atomic&) = delete;

  Value load(std::memory_order = std::memory_order_seq_cst) const {
    test::scheduler().access(this);
    return value_;
  }
  void store(Value value, std::memory_order = std::memory_order_seq_cst) {
    test::scheduler().access(this);
    value_ = value;
  }
  operator Value() const { return load(); }
  Atomic& operator=(Value value) {
    store(value);
    return *this;
  }
  Value operator++() {
    test::scheduler().access(this);
    return ++value_;
  }

 private:
  Value value_;
};

class Thread {
 public:
  Thread() = default;
  explicit Thread(std::function<void()> body) : id_(test::scheduler().start(std::move(body))) {}
  bool joinable() const { return id_ != kNone; }
  void join() { test::scheduler().join(std::exchange(id_, kNone)); }

 private:
  static constexpr int kNone = -1;
  int id_ = kNone;
};

struct Clock : std::chrono::steady_clock {
  static time_point now() { return test::scheduler().now(); }
};

}  // namespace lockstep::threading
