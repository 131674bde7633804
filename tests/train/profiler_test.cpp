// What a profiler is told of a training.

#include "core/profiler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "train/runs.h"

namespace lockstep {
namespace {

/// Notes what it is told; the process's for its life time.
class RecordingProfiler final : public Profiler {
 public:
  struct Range {
    std::string name, outer;
    std::int64_t number = 0;
    bool looked_at = false;
  };

  RecordingProfiler() : before_(set_profiler(this)) {}
  ~RecordingProfiler() override { set_profiler(before_); }

  void begin_range(const char* name, std::int64_t number) override {
    const std::lock_guard lock(mutex_);
    std::vector<std::string>& open = open_[std::this_thread::get_id()];
    ranges_.push_back({name, open.empty() ? "" : open.back(), number, looks_});
    open.emplace_back(name);
  }
  void end_range() override {
    const std::lock_guard lock(mutex_);
    std::vector<std::string>& open = open_[std::this_thread::get_id()];
    ends_without_begin_ += open.empty() ? 1 : 0;
    if (!open.empty()) open.pop_back();
  }
  void start() override { looks_ = true, ++starts_; }
  void stop() override { looks_ = false, ++stops_; }

  std::vector<Range> named(const std::string& name) const {
    std::vector<Range> found;
    std::copy_if(ranges_.begin(), ranges_.end(), std::back_inserter(found),
                 [&](const Range& range) { return range.name == name; });
    return found;
  }
  bool all_ended() const {
    return ends_without_begin_ == 0 && std::all_of(open_.begin(), open_.end(), [](const auto& own) {
             return own.second.empty();
           });
  }
  int starts() const { return starts_; }
  int stops() const { return stops_; }

 private:
  Profiler* const before_;
  std::mutex mutex_;
  std::map<std::thread::id, std::vector<std::string>> open_;
  std::vector<Range> ranges_;
  bool looks_ = false;
  int starts_ = 0, stops_ = 0, ends_without_begin_ = 0;
};

TEST_CASE("a profiler is told of every step, layer and exchange, and looks at the chosen steps") {
  const test::Runs runs;
  RecordingProfiler profiler;
  train(runs.request("a", {"bn.mode=sync", "run.profile_at=3", "run.profile_steps=2"}));
  CHECK(profiler.all_ended());
  CHECK(profiler.starts() == 1);
  CHECK(profiler.stops() == 1);
  std::set<std::int64_t> looked_at;
  const auto steps = profiler.named("step");
  for (const auto& step : steps) {
    CHECK(step.outer == "");
    if (step.looked_at) looked_at.insert(step.number);
  }
  CHECK(looked_at == std::set<std::int64_t>{3, 4});
  const auto exchanges = profiler.named("exchange");
  REQUIRE(!exchanges.empty());
  for (const auto& exchange : exchanges) CHECK(!exchange.outer.empty());
  CHECK(profiler.named("gradients and update").size() == steps.size());
  // A layer's two passes in a step of a replica, and one in an evaluation.
  CHECK(profiler.named(exchanges.front().outer).size() >= 2 * steps.size());
}

TEST_CASE("without run.profile_at a profiler hears of no start, and the run folder says nothing") {
  const test::Runs runs;
  RecordingProfiler profiler;
  train(runs.request("a", {}));
  CHECK(profiler.starts() == 0);
  CHECK(profiler.stops() == 0);
  CHECK(!profiler.named("step").empty());
}

}  // namespace
}  // namespace lockstep
