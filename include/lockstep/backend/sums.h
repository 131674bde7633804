#pragma once
// Sums over the samples of a batch, and what is merged of several devices.

#include <cstdint>
#include <span>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// What one rank shows in an exchange: the statistics of consecutive parts of its shard, which have
/// equally many rows. In BatchNorm's forward pass they are [parts, 2, C] = (mean, M2), in its
/// backward pass (sum dy, sum dy*(x-mu)). `count` rows lie behind all of them; it may be 0.
struct StatSlot {
  std::int64_t count = 0;
  const float* data = nullptr;  // [parts, 2, C]
  std::int64_t parts = 1;
};

/// What a replica's device adds up. Backend says what all operations have in common.
class SumOperations {
 public:
  virtual ~SumOperations() = default;

  /// slot [2, E] = the sum over the samples of x of each of their E elements: the nearest float,
  /// and what is left of the sum in double; zeros when there are no samples.
  virtual void sum_over_batch(const Tensor& x, float* slot) = 0;
  /// Every sample of y = the sums of all slots and their parts, in their order and in double,
  /// rounded once. A slot has several parts only with Backend::sums_by_image().
  virtual void broadcast_sum(std::span<const StatSlot> slots, const Tensor& y, bool accumulate) = 0;

  /// sum [E] += the sum over the samples of x, fp32, of each of their E elements, in the tree of
  /// Backend::sums_by_image(), wherever that is kept.
  virtual void sum_over_images(const Tensor& x, float* sum) = 0;

  /// Each of `count` doubles in device memory becomes 0, but for those that are not finite, which
  /// stay: what has gone wrong in a step is not lost before the host has seen it.
  virtual void reset_sums(double* sums, int count) = 0;
};

}  // namespace lockstep
