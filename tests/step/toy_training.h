#pragma once
// A tiny U-Net, random batches with uneven ignored pixels, and ways to look at all replicas of a
// run.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "step/replica.h"
#include "support/devices.h"

namespace lockstep::test {

constexpr int kClasses = 3;
constexpr Size kSize{16, 16};

/// `ranks` virtual devices; whole batch at most `batch`.
DataParallelOptions toy_options(int ranks, BatchNormMode mode, std::int64_t batch = 5);

/// Sums gradients by three all-reduces per step, beside the backward pass from the second step of
/// a size on.
DataParallelOptions all_reduced(DataParallelOptions options);

/// A run whose gamma, beta and running statistics are far from their initial values.
std::unique_ptr<DataParallel> make_toy(const DataParallelOptions& options);

/// `count` random images; the more pixels are ignored the higher an image's number, all of the last
/// one.
Batch toy_batch(std::int64_t count, std::int64_t step, Size size = kSize);

/// All parameters, the gradients of a rank's images, or all running statistics of a rank.
std::vector<float> parameters(DataParallel& run, int rank);
std::vector<float> gradients(DataParallel& run, int rank);
std::vector<float> statistics(DataParallel& run, int rank);

/// Gives all of `to` the parameters and running statistics of rank 0 of `from`.
void copy_parameters(DataParallel& from, DataParallel& to);

/// Gives all elements of a parameter this value, on all ranks.
void set_parameter(DataParallel& run, const std::string& name, float value);

/// A step for each batch of so many images; the losses.
std::vector<double> train(DataParallel& run, const std::vector<std::int64_t>& batches = {5, 5, 3});

/// What a run has come to, as the first rank of the process has it; `losses`: of the steps that led
/// there.
struct Outcome {
  std::vector<float> parameters, statistics;
  OptimizerState optimizer;
  std::vector<double> losses;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};
Outcome outcome_of(DataParallel& run, std::vector<double> losses);

/// Largest |a - b|.
double distance(const std::vector<float>& a, const std::vector<float>& b);

/// CHECKs that they are a few roundings of fp32 apart: summation in another order is all that may
/// differ.
void check_close(const Outcome& got, const Outcome& expected);

}  // namespace lockstep::test
