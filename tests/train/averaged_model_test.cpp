// The average of the weights in place of them: while some work is done, and no longer.

#include "train/averaged_model.h"

#include <doctest/doctest.h>

#include "support/temporary_folder.h"
#include "train/replica_readings.h"
#include "train/training.h"

namespace lockstep {
namespace {

const char* const kAveragedConfig = R"([data]
layout = "streets"
size = [16, 16]
train_images = 8
val_images = 1
[batch]
global = 4
[model]
width = 3
depth = 2
[optim]
lr = 0.1
[ema]
decay = 0.5
)";

bool same_statistics(const ReplicaStatistics& a, const ReplicaStatistics& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].mean != b[i].mean || a[i].var != b[i].var) return false;
    if (a[i].num_batches_tracked != b[i].num_batches_tracked) return false;
  }
  return true;
}

bool same_weights(const TensorMap& a, const TensorMap& b) {
  for (const auto& [name, tensor] : a) {
    if (tensor.data != b.at(name).data) return false;
  }
  return a.size() == b.size();
}

}  // namespace

TEST_CASE("the average: replicas get their weights and statistics back, also from what throws") {
  const test::TemporaryFolder folder;
  for (const char* statistics : {"ema.bn=copy", "ema.bn=average", "ema.bn=precise"}) {
    CAPTURE(std::string(statistics));
    const Config config = load_config(folder.write("averaged.toml", kAveragedConfig), {statistics});
    // Each device has running statistics of its own.
    const auto replicas =
        make_replicas(config, parse_devices("cpu:2", 0), 4, config.data.size, nullptr);
    TrainLoader batches(config.data, {.batch = 4, .drop_last = true, .seed = config.run.seed});
    for (int step = 0; step < 2; ++step) replicas->train_step(batches.next(), step, 0.1F);
    const TensorMap weights = replicas->state_dict();
    const std::vector<ReplicaStatistics> before = read_running_statistics(*replicas);
    REQUIRE_FALSE(same_statistics(before[0], before[1]));

    AveragedModel average(config, *replicas);
    const auto look = [&] { CHECK_FALSE(same_weights(weights, replicas->state_dict())); };
    const auto fail = [&] {
      look();
      throw DataError("an image of its own");
    };
    CHECK_THROWS_WITH_AS(average.with(2, fail), "an image of its own", DataError);
    for (const bool again : {false, true}) {
      if (again) average.with(2, look);
      CHECK(same_weights(weights, replicas->state_dict()));
      const std::vector<ReplicaStatistics> after = read_running_statistics(*replicas);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        CHECK(same_statistics(after[rank], before[rank]));
      }
    }
  }
}

}  // namespace lockstep
