#include "sync/failure_detector.h"

#include <doctest/doctest.h>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "support/thread_world.h"

namespace lockstep {
namespace {

using test::run_world;

const std::vector<std::string> kOneMachine(2, "hosta");

/// What process 0 hears of why process 1 ends.
struct Heard {
  std::promise<std::string> text;
  int times = 0;

  std::string say(const std::string& heard) {
    ++times;
    text.set_value(heard);
    return heard + " (a test)";
  }
};

/// Process 0 does `listen`, once it has something to call, while process 1 says why it ends.
template <typename Listen>
int times_heard(const Listen& listen) {
  Heard heard;
  run_world(kOneMachine, [&](World& world) {
    FailureDetector detector(world);
    if (world.process() == 1) {
      world.broadcast("");
      return detector.announce("the disk is full");
    }
    detector.on_failure([&](const std::string& text) { return heard.say(text); });
    world.broadcast("go on");
    listen(detector, heard);
    detector.on_failure(nullptr);
  });
  return heard.times;
}

}  // namespace

TEST_CASE("what a process hears is said though none of its threads comes to say it") {
  CHECK(times_heard([](FailureDetector& detector, Heard& heard) {
          CHECK(heard.text.get_future().get() == "process 1 (hosta): the disk is full");
          CHECK(detector.failure() == "process 1 (hosta): the disk is full");
        }) == 1);
}

TEST_CASE("what a process hears is said once, also when its threads come to say it") {
  CHECK(times_heard([](FailureDetector& detector, Heard&) {
          while (!detector.failure()) std::this_thread::yield();
          detector.announce("heard of it");
        }) == 1);
}

// The third hears of the second by the first.
TEST_CASE("all processes hear that the others run") {
  run_world(std::vector<std::string>(3, "hosta"), [&](World& world) {
    FailureDetector detector(world);
    const auto start = std::chrono::steady_clock::now();
    for (int process = 0; process < 3; ++process) {
      // Shorter than it has waited: something was heard since it began.
      while (detector.silence_of(process) >= std::chrono::steady_clock::now() - start) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    world.broadcast("done");
    world.all_gather(Bytes(1));
  });
}

}  // namespace lockstep
