#pragma once
// The [bn] section: everything that may be chosen about BatchNorm, for a whole network.

#include <cstdint>
#include <optional>

#include "lockstep/backend/backend.h"

namespace lockstep {

enum class BatchNormMode : std::uint8_t {
  kLocal,    // every device normalises by its own part of the batch
  kSync,     // all devices (of a sync group) normalise by their common batch
  kVirtual,  // every device's part is split into slices that are normalised apart and share gamma
             // and beta
};

/// Which statistics an evaluation uses when the devices' running statistics differ.
enum class EvalStats : std::uint8_t {
  kDevice0,  // device 0's, as DataParallel keeps them
  kMean,     // mean over devices of running_mean and of running_var
  kPooled,   // as kMean, plus the variance of the devices' means
  kPrecise,  // recomputed from training images with the final weights
};

struct BatchNormOptions {
  BatchNormMode mode = BatchNormMode::kLocal;
  int virtual_devices = 8;
  int sync_group = 0;  // devices per group, 0: all
  float eps = 1e-5F;
  EpsMode eps_mode = EpsMode::kAdd;
  /// Weight of the new value (PyTorch's convention); nullopt: cumulative, 1 / num_batches_tracked.
  std::optional<double> momentum = 0.1;
  bool affine = true;
  bool track_running_stats = true;
  EvalStats eval_stats = EvalStats::kDevice0;
  std::int64_t precise_iters = 50;  // kPrecise: training batches behind the statistics
};

}  // namespace lockstep
