// Whole runs of several processes (threads here) with replicas on a GPU of the fake runtime.

#include <doctest/doctest.h>

#include "cuda/fake_runtime.h"
#include "cuda/tiny_run.h"
#include "support/thread_world.h"

namespace lockstep::test {
namespace {

TEST_CASE("GPU world: a run leaves the files of one process, and goes on from them") {
  fake_runtime::use({.devices = 1});
  const TemporaryFolder folder;
  const auto in_two = [&](const TrainRequest& whole) {
    run_world(2, [&](World& world) {
      TrainRequest part = whole;
      part.devices = "cuda:0x2";
      part.world = world;
      train(part);
    });
  };
  TrainRequest one = request(folder, "one", {"bn.mode=sync", "run.checkpoint_every=3"});
  one.devices = "cuda:0x4";
  train(one);
  TrainRequest two = one;
  two.output = folder.path() / "two";
  in_two(two);
  TrainRequest rest = one;
  rest.output = folder.path() / "rest";
  rest.resume = (folder.path() / "one/ckpt/iter_3.safetensors").string();
  in_two(rest);
  const RunFolder whole{folder.path() / "one"}, spread{folder.path() / "two"};
  CHECK(read_text(spread.scalars()) == read_text(whole.scalars()));
  for (const char* run : {"two", "rest"}) {
    const RunFolder other{folder.path() / run};
    CHECK(read_text(other.checkpoint("last")) == read_text(whole.checkpoint("last")));
  }
  CHECK(read_text(spread.log()).find("transport host") != std::string::npos);
}

}  // namespace
}  // namespace lockstep::test
