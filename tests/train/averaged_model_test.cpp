// The average of the weights in place of them: while some work is done, and no longer.

#include "train/averaged_model.h"

#include <doctest/doctest.h>

#include "train/replica_readings.h"
#include "train/runs.h"
#include "train/training.h"

namespace lockstep {

TEST_CASE("the average: replicas get their weights and statistics back, also from what throws") {
  const test::Runs runs;
  for (const char* statistics : {"ema.bn=copy", "ema.bn=average", "ema.bn=precise"}) {
    CAPTURE(std::string(statistics));
    const Config config =
        runs.request("averaged", {"ema.decay=0.5", statistics, "batch.global=4"}).config;
    // Each device has running statistics of its own.
    const auto replicas =
        make_replicas(config, parse_devices("cpu:2", 0), 4, config.data.size, nullptr);
    TrainLoader batches(config.data, {.batch = 4, .drop_last = true, .seed = config.run.seed});
    for (int step = 0; step < 2; ++step) replicas->train_step(batches.next(), step, 0.1F);
    const TensorMap weights = replicas->state_dict();
    const std::vector<ReplicaStatistics> before = read_running_statistics(*replicas);
    REQUIRE_FALSE((before[0] == before[1]));

    AveragedModel average(config, *replicas);
    const auto look = [&] { CHECK_FALSE((weights == replicas->state_dict())); };
    const auto fail = [&] {
      look();
      throw DataError("an image of its own");
    };
    CHECK_THROWS_WITH_AS(average.with(2, fail), "an image of its own", DataError);
    for (const bool again : {false, true}) {
      if (again) average.with(2, look);
      CHECK((weights == replicas->state_dict()));
      CHECK((read_running_statistics(*replicas) == before));
    }
  }
}

}  // namespace lockstep
