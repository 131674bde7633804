// Whole runs of several processes (threads here) with replicas on a GPU of the fake runtime.

#include <doctest/doctest.h>

#include "cuda/fake_runtime.h"
#include "cuda/tf32_problems.h"
#include "cuda/tiny_run.h"
#include "support/thread_world.h"
#include "train/evaluator.h"

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

TEST_CASE("evaluations round to TF32 where run.tf32 says so, by views of the images, too") {
  fake_runtime::use({.devices = 1});
  const TemporaryFolder folder;
  train(request(folder, "run", {"run.tf32=false", "run.max_iters=1", "data.size=[24, 16]"}));
  const auto rounds = [&](const TestTimeAugmentation& augmentation, const char* tf32) {
    const std::int64_t before = tf32_problems();
    EvalRequest request;
    request.target = folder.path() / "run";
    request.overrides = {tf32};
    request.devices = "cuda:0";
    request.augmentation = augmentation;
    evaluate_checkpoint(request);
    return tf32_problems() > before;
  };
  for (const bool flip : {false, true}) {
    CAPTURE(flip);
    CHECK_FALSE(rounds(augmentation_of(flip, ""), "run.tf32=false"));
    CHECK(rounds(augmentation_of(flip, ""), "run.tf32=true"));
  }
}

}  // namespace
}  // namespace lockstep::test
