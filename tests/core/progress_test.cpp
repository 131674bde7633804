#include "lockstep/core/progress.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

namespace lockstep {
namespace {

/// Keeps what it is told; the process's observer as long as it lives.
class Recorder final : public ProgressObserver {
 public:
  Recorder() : before_(set_progress_observer(this)) {}
  ~Recorder() override { set_progress_observer(before_); }
  void show(const WorkProgress& progress) override { told.push_back(progress); }
  void clear() override { ++cleared; }

  std::vector<WorkProgress> told;
  int cleared = 0;

 private:
  ProgressObserver* before_;
};

TEST_CASE("long work is told of when it begins, with every part and when it ends") {
  Recorder recorder;
  {
    LongWork work("reading", "files", 7);
    work.advance();
    work.advance(3);
    CHECK(recorder.cleared == 0);
  }
  REQUIRE(recorder.told.size() == 3);
  CHECK(recorder.told[0].what == "reading");
  CHECK(recorder.told[0].unit == "files");
  CHECK(recorder.told[0].done == 0);
  CHECK(recorder.told[1].done == 1);
  CHECK(recorder.told[2].done == 4);
  CHECK(recorder.told[2].all == 7);
  CHECK(recorder.cleared == 1);
}

TEST_CASE("many threads advance, and what is done never goes back") {
  constexpr int kThreads = 4, kParts = 500;
  Recorder recorder;
  LongWork work("reading", "files", kThreads * kParts);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int part = 0; part < kParts; ++part) work.advance();
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(recorder.told.size() == kThreads * kParts + 1);
  for (std::size_t i = 0; i < recorder.told.size(); ++i)
    REQUIRE(recorder.told[i].done == static_cast<std::int64_t>(i));
}

TEST_CASE("nobody is told where nobody asks, and the observer before comes back") {
  Recorder outer;
  {
    Recorder inner;
    show_progress({"a", "b", 1, 2});
    CHECK(inner.told.size() == 1);
  }
  CHECK(outer.told.empty());
  show_progress({"a", "b", 1, 2});
  CHECK(outer.told.size() == 1);
  ProgressObserver* const own = set_progress_observer(nullptr);
  CHECK(own == &outer);
  { LongWork work("a", "b", 1); }
  CHECK(outer.told.size() == 1);
  CHECK(outer.cleared == 0);
  set_progress_observer(own);
}

}  // namespace
}  // namespace lockstep
