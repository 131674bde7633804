#pragma once
// A configuration's training on random images that lie in memory: no loader, no logs. The time does
// not depend on what the images show.

#include <cstdint>
#include <memory>
#include <vector>

#include "app/bench/bench.h"
#include "config/config.h"
#include "train/training.h"

namespace lockstep {

/// Steps before the timed ones.
inline constexpr int kWarmupSteps = 3;

struct BenchTraining {
  Config config;
  std::vector<Device> devices;  // of this process
  Size size;                    // of images
  std::unique_ptr<DataParallel> replicas;
  Batch batch;  // the global batch of every step; a single image for an evaluation

  /// Begins step `index`; GPUs get the next batch while they work on this one.
  void begin_step(std::int64_t index);
  /// The whole step, and no other beside it.
  StepResult step(std::int64_t index);
  /// Evaluates the batch, which is a single image then, with the confusion matrix and the loss.
  /// Copies it once, in place of a loader.
  void evaluate();
};

/// Reads the configuration and builds the replicas, beside those of other processes. Throws
/// ConfigError, also when the configuration does not tell the size of the images.
BenchTraining bench_training(const BenchArguments& arguments);

}  // namespace lockstep
