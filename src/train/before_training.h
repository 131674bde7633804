#pragma once
// What is said of a configuration and its data before anything is trained. `data check`, `plan` and
// `train` all say it by these functions, so that none lets pass what another refuses.

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/data_check.h"
#include "lockstep/data/loader.h"
#include "lockstep/sync/world.h"

namespace lockstep {

/// Training batches as the loader will make them.
struct TrainingShape {
  Size size;
  std::int64_t images = 0;  // of an epoch
  std::int64_t steps_per_epoch = 0;
};

/// Throws ConfigError for values that no person can mean, for options and sizes that the network,
/// its norm layers or the devices do not take, for a run too long. Returns what is odd. After
/// begin_computing.
std::vector<std::string> check_training(const Config& config, const std::vector<Device>& devices,
                                        World& world, const TrainingShape& shape);

/// What a look at some of the samples tells, of each split.
std::vector<std::string> look_at_data(const Config& config, const Dataset& train,
                                      const Dataset& val);

/// Throws ConfigError where validation images are normalised together and are of several sizes, or
/// each by itself and a layer sees one value of it.
/// `ranks`: of all processes.
void check_evaluated_sizes(const Config& config, int ranks, const ValLoader& loader);

/// All that `data check` finds.
struct DataReport {
  DataOptions options;
  std::vector<std::string> classes;
  SplitReport train, val;
  std::vector<double> weights;          // [class]
  std::vector<std::string> duplicates;  // "training image = validation image"
  std::vector<std::string> warnings;
  std::exception_ptr refusal;  // why it would not be trained; null: it would
};

/// Looks at `count` samples of each split, evenly chosen; 0: at all. `devices`: that would train.
/// Throws where there is no data set to look at.
DataReport check_data(const Config& config, const std::vector<Device>& devices, std::int64_t count);

}  // namespace lockstep
