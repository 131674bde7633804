#include "sync/lifeline.h"

#include <doctest/doctest.h>

#include <future>
#include <memory>
#include <optional>
#include <string>

#include "support/thread_fleet.h"

namespace lockstep {
namespace {

using test::run_fleet;

const std::vector<std::string> kOneMachine(2, "hosta");

/// What process 0 says on behalf of its threads, which do not ask why process 1 ends until it has.
struct Stuck {
  std::promise<std::string> heard;
  int times = 0;

  std::string say(const std::string& failure) {
    ++times;
    heard.set_value(failure);
    return failure + " (a test)";
  }
};

}  // namespace

TEST_CASE("what a process has heard is said though its threads are stuck, once") {
  Stuck stuck;
  std::promise<void> done;
  run_fleet(kOneMachine, [&](Fleet& fleet) {
    Lifeline lifeline(fleet);
    if (fleet.process() == 1) {
      lifeline.say_last_words("the disk is full");
      return;
    }
    lifeline.on_stuck([&](const std::string& failure) { return stuck.say(failure); });
    CHECK(stuck.heard.get_future().get() == "process 1 (hosta): the disk is full");
    CHECK(lifeline.failure() == "process 1 (hosta): the disk is full");
    CHECK(lifeline.spoken());
    lifeline.on_stuck(nullptr);
  });
  CHECK(stuck.times == 1);
}

TEST_CASE("threads that say it themselves leave nothing to say") {
  int times = 0;
  run_fleet(kOneMachine, [&](Fleet& fleet) {
    Lifeline lifeline(fleet);
    if (fleet.process() == 1) {
      lifeline.say_last_words("the disk is full");
      return;
    }
    lifeline.on_stuck([&](const std::string& failure) {
      ++times;
      return failure;
    });
    while (!lifeline.failure()) std::this_thread::yield();
    lifeline.say_last_words("heard of it");  // and ends the thread that would speak
  });
  CHECK(times == 0);
}

}  // namespace lockstep
