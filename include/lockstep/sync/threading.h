#pragma once
// What the barriers, the failure and the watchdog are made of. They use these names alone, so that
// a test can compile them with a scheduler of its own behind the names and go through every
// interleaving (tests/interleavings/).

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace lockstep::threading {

using Mutex = std::mutex;
using Condition = std::condition_variable;
template <typename Value>
using Atomic = std::atomic<Value>;
using Thread = std::thread;
using Clock = std::chrono::steady_clock;

}  // namespace lockstep::threading
