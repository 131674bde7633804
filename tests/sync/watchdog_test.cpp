#include "sync/watchdog.h"

#include <doctest/doctest.h>

#include <atomic>
#include <exception>
#include <future>
#include <string>
#include <thread>

#include "lockstep/core/check.h"
#include "support/errors.h"

namespace lockstep {
namespace {

using test::is_a;
using test::text_of;

using std::chrono::milliseconds;
constexpr milliseconds kTimeout{80};

/// A barrier that somebody has waited in since the test began. What looks at it may sleep.
class LongWait {
 public:
  AnyBarrier::Wait look(milliseconds sleep) {
    ++looks_;
    std::this_thread::sleep_for(sleep);
    const auto waited = std::chrono::steady_clock::now() - began_;
    return {.longest = waited, .report = "replica 0 waits"};
  }
  int looks() const { return looks_; }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::atomic<int> looks_ = 0;
};

}  // namespace

TEST_CASE("a wait that lasts too long is a stall") {
  LongWait wait;
  std::promise<std::string> stall;
  const Watchdog watchdog(
      kTimeout, [&] { return wait.look(milliseconds(0)); },
      [&](const std::exception_ptr& error) {
        stall.set_value(is_a<StalledError>(error) ? text_of(error) : "");
      });
  CHECK(stall.get_future().get().find("replica 0 waits") != std::string::npos);
}

// The watchdog's own thread sleeps as long as a stopped process would.
TEST_CASE("the time for which the process was stopped is nobody's wait") {
  LongWait wait;
  std::promise<int> looks;
  const Watchdog watchdog(
      kTimeout, [&] { return wait.look(wait.looks() == 0 ? 4 * kTimeout : milliseconds(0)); },
      [&](const std::exception_ptr&) { looks.set_value(wait.looks()); });
  CHECK(looks.get_future().get() > 1);  // it is still seen, a timeout later
}

}  // namespace lockstep
