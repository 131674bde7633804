// Precise statistics against PyTorch's own definition of running statistics: with momentum 1 they
// are those of the last batch.

#include <doctest/doctest.h>

#include "support/temporary_folder.h"
#include "train/replica_readings.h"
#include "train/training.h"

namespace lockstep {
namespace {

const char* const kOneBatchConfig = R"([data]
layout = "streets"
size = [16, 16]
train_images = 8
val_images = 1
[batch]
global = 4
[model]
width = 3
depth = 2
[bn]
mode = "sync"
momentum = 1.0
[optim]
lr = 0
)";

LoaderOptions loader_options(const Config& config) {
  return {.batch = 4, .drop_last = true, .seed = config.run.seed, .prefetch = 1, .first_batch = 0};
}

}  // namespace

TEST_CASE(
    "precise statistics of one batch are what momentum 1 records of it, on any number of devices") {
  const test::TemporaryFolder folder;
  const Config config = load_config(folder.write("tiny.toml", kOneBatchConfig), {});
  const auto one = make_replicas(config, parse_devices("cpu:1", 0), 4, config.data.size, nullptr);
  TrainLoader batches(config.data, loader_options(config));
  one->train_step(batches.next(), 0, 0.0F);
  const ReplicaStatistics expected = read_running_statistics(*one).front();

  for (const char* devices : {"cpu:1", "cpu:3"}) {
    CAPTURE(devices);
    const auto replicas =
        make_replicas(config, parse_devices(devices, 0), 4, config.data.size, nullptr);
    const auto before = read_running_statistics(*replicas);
    TrainLoader again(config.data, loader_options(config));
    const ReplicaStatistics precise = precise_statistics(*replicas, again, 1);
    REQUIRE(precise.size() == expected.size());
    for (std::size_t layer = 0; layer < precise.size(); ++layer) {
      for (std::size_t c = 0; c < precise[layer].mean.size(); ++c) {
        CHECK(precise[layer].mean[c] == doctest::Approx(expected[layer].mean[c]).epsilon(1e-5));
        CHECK(precise[layer].var[c] == doctest::Approx(expected[layer].var[c]).epsilon(1e-5));
      }
    }
    const auto after = read_running_statistics(*replicas);
    for (std::size_t rank = 0; rank < after.size(); ++rank) {
      CHECK(after[rank][0].mean == before[rank][0].mean);
      CHECK(after[rank][0].num_batches_tracked == 0);
    }
  }
}

}  // namespace lockstep
