#pragma once
// A training that must come to the same bytes however its batches are spread over devices.

#include <cstdint>
#include <vector>

#include "step/toy_training.h"

namespace lockstep::test {

/// Everything that a training comes to.
struct Placed {
  Outcome outcome;
  std::vector<double> norms;
  friend bool operator==(const Placed&, const Placed&) = default;
};

/// On virtual devices of the CPU: a trunk with dropout, a residual, pooling, a grouped and a
/// transposed convolution, a squeeze-and-excite block and PReLU, and two heads with a bias, one of
/// them after upsampling.
DataParallelOptions placed_options(int ranks, const Optimizer& optimizer);

/// The same with bounds of the gradient that are reached, the first parameters frozen, and an
/// average of the weights and of the running statistics.
DataParallelOptions clipped_options(int ranks, const Optimizer& optimizer);

/// Of steps of 8, 8, 5, 7 and 8 images.
Placed train_steps(DataParallel& run, std::int64_t begin = 0, std::int64_t end = 5);

/// All of them.
Placed trained_in_steps(const DataParallelOptions& options);

}  // namespace lockstep::test
