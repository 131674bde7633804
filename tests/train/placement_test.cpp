// Whole runs on other devices: the same files.

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "lockstep/core/check.h"
#include "train/runs.h"

namespace lockstep {
namespace {

using test::read_text;
using test::Runs;

/// But for what the state says of each device.
void check_same_training(const RunFolder& a, const RunFolder& b) {
  CHECK(read_text(a.scalars()) == read_text(b.scalars()));
  for (const char* name : {"last", "best", "iter_8", "iter_10"}) {
    CAPTURE(name);
    REQUIRE(std::filesystem::exists(a.checkpoint(name)));
    CHECK(read_text(a.checkpoint(name)) == read_text(b.checkpoint(name)));
    CHECK(load_checkpoint(a.checkpoint(name)).state.optimizer ==
          load_checkpoint(b.checkpoint(name)).state.optimizer);
  }
}

}  // namespace

TEST_CASE("a synchronized run leaves the same files on any devices") {
  const Runs runs;
  const std::vector<std::string> keys{"bn.mode=sync", "run.placement_invariant=true"};
  for (const char* devices : {"cpu:1", "cpu:3", "cpu:4", "cpu:8"}) {
    TrainRequest request = runs.request(devices, keys);
    request.devices = devices;
    train(request);
    check_same_training(runs.folder(devices), runs.folder("cpu:1"));
  }
}

TEST_CASE("the average of the weights has the same statistics on any devices, by any policy") {
  const Runs runs;
  std::set<std::string> files;
  for (const char* statistics : {"copy", "average", "precise"}) {
    CAPTURE(statistics);
    const std::vector<std::string> keys{"bn.mode=sync", "ema.decay=0.9", "bn.precise_iters=3",
                                        std::string("ema.bn=") + statistics};
    for (const char* devices : {"cpu:1", "cpu:3"}) {
      TrainRequest request = runs.request(std::string(statistics) + devices, keys);
      request.devices = devices;
      train(request);
    }
    const RunFolder one = runs.folder(std::string(statistics) + "cpu:1"),
                    other = runs.folder(std::string(statistics) + "cpu:3");
    check_same_training(one, other);
    for (const char* name : {"last_ema", "best_ema"}) {
      CHECK(read_text(one.checkpoint(name)) == read_text(other.checkpoint(name)));
    }
    CHECK(files.insert(read_text(one.checkpoint("last_ema"))).second);
  }
}

TEST_CASE("a synchronized run that goes on with other devices ends at the same files") {
  const Runs runs;
  train(runs.request("whole", {"bn.mode=sync"}));
  TrainRequest request = runs.request("cut", {"bn.mode=sync"});
  request.fault = "throw:rank=1,step=5";
  CHECK_THROWS_AS(train(request), ReplicaError);
  request.fault.clear();
  request.resume = "auto";
  request.devices = "cpu:3";
  train(request);
  check_same_training(runs.folder("whole"), runs.folder("cut"));
  CHECK(read_text(runs.folder("cut").log()).find("bit for bit") == std::string::npos);
}

TEST_CASE(
    "exact micro-batches leave the files of whole batches, resumed with other numbers of them") {
  const Runs runs;
  const std::vector<std::string> keys{"bn.mode=sync", "run.placement_invariant=true"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), keys.begin(), keys.end());
    return more;
  };
  train(runs.request("whole", keys));
  TrainRequest one = runs.request("one", with({"bn.accumulated=exact", "batch.accumulate=6"}));
  one.devices = "cpu:1";
  train(one);
  check_same_training(runs.folder("whole"), runs.folder("one"));
  train(runs.request("recompute", with({"memory.recompute=true"})));
  check_same_training(runs.folder("whole"), runs.folder("recompute"));
  TrainRequest cut = runs.request("cut", with({"bn.accumulated=exact", "batch.accumulate=4"}));
  cut.devices = "cpu:2";
  cut.fault = "throw:rank=1,step=5";
  CHECK_THROWS_AS(train(cut), ReplicaError);
  TrainRequest rest = runs.request("cut", with({"bn.accumulated=exact", "batch.accumulate=2"}));
  rest.resume = "auto";
  train(rest);
  check_same_training(runs.folder("whole"), runs.folder("cut"));
}

TEST_CASE("a run whose results depend on its devices is refused where that is not wanted") {
  const Runs runs;
  const auto refuses = [&](std::vector<std::string> keys, const char* reason) {
    keys.emplace_back("run.placement_invariant=true");
    CHECK_THROWS_WITH_AS(train(runs.request("refused", keys)), doctest::Contains(reason),
                         ConfigError);
  };
  refuses({"bn.mode=local"}, "BatchNorm is not synchronized (encoder.0.0.bn)");
  refuses({"bn.mode=virtual"}, "BatchNorm is not synchronized");
  refuses({"bn.mode=sync", "bn.sync_group=2"}, "in groups");
  refuses({"bn.mode=sync", "batch.accumulate=2"}, "micro-batches");
  refuses({"bn.mode=local"}, "run.placement_invariant = true asks");  // a key, not a C++ name
  refuses({"bn.mode=sync", "run.gradient_exchange=all_reduce"}, "not owner");
}

}  // namespace lockstep
