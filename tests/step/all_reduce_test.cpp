// NetworkBuilder::all_reduce inside of trainings: any number of devices is one device.

#include <doctest/doctest.h>

#include "core/rng.h"
#include "step/toy_training.h"

namespace lockstep::test {
namespace {

/// Every sample sees what all samples have in common, twice.
Outputs sees_all(NetworkBuilder& net, Value* x, const NormLayer&) {
  Value* own = net.relu(net.linear(x, "own", 6));
  Value* all = net.linear(net.all_reduce(own), "all", 6);
  x = net.relu(net.add(net.linear(own, "mine", 6), all));
  return {{"out", net.linear(net.add(x, net.all_reduce(x)), "head", 2)}};
}

Batch random_rows(std::int64_t count, int step) {
  Batch batch;
  Rng rng(5, RngPurpose::kTest, static_cast<std::uint64_t>(step));
  std::vector<float>& targets = batch.targets["out"];
  for (std::int64_t n = 0; n < count; ++n) {
    batch.samples.push_back(n);
    for (int i = 0; i < 3; ++i) batch.images.push_back(rng.normal());
    for (int i = 0; i < 2; ++i) targets.push_back(rng.normal());
  }
  return batch;
}

Outcome trained_on(int ranks) {
  DataParallelOptions options;
  options.devices = cpus(ranks);
  options.model = sees_all;
  options.input = {7, 3};
  options.losses = {{"out", MeanSquaredErrorLoss{}}};
  options.optimizer = Sgd{.weight_decay = 0};
  DataParallel run(options);
  std::vector<double> losses;
  for (int step = 0; step < 4; ++step) {
    losses.push_back(run.train_step(random_rows(step % 2 == 0 ? 7 : 5, step), step, 1e-4F).loss);
  }
  CHECK(parameters(run, ranks - 1) == parameters(run, 0));
  return outcome_of(run, losses);
}

}  // namespace

TEST_CASE("all_reduce in a training: on any number of devices as on one") {
  const Outcome one = trained_on(1);
  for (const int ranks : {2, 3, 4}) {  // 5 over 4: the last one has no samples
    CHECK(trained_on(ranks) == one);   // bit for bit
  }
}

TEST_CASE("all_reduce: a replica that leaves one out is named") {
  DataParallelOptions options;
  options.devices = cpus(3);
  options.model = sees_all;
  options.input = {7, 3};
  options.losses = {{"out", MeanSquaredErrorLoss{}}};
  options.communicator.hook = [](int rank, const SyncCall& call) {
    return rank != 1 || call.direction != Direction::kBackward;
  };
  DataParallel run(options);
  CHECK_THROWS_WITH_AS(run.train_step(random_rows(7, 0), 0, 0.1F), doctest::Contains("all_reduce_"),
                       ReplicaError);
}

}  // namespace lockstep::test
