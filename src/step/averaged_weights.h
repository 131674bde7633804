#pragma once
// A rank's share of the moving average of the weights (DataParallelOptions::average_decay), for the
// elements that it owns; or the average of its running statistics. Without a decay there is none,
// and every call does nothing.

#include <span>

#include "lockstep/backend/backend.h"

namespace lockstep {

/// The name that the average has in OptimizerState.
inline constexpr const char* kAverageSlot = "ema";
/// The name of the average of the running statistics: rank 0's, in their flat order.
inline constexpr const char* kAveragedStatisticsSlot = "ema_statistics";

/// Owned by its rank's WeightUpdate, used by the rank's thread.
class AveragedWeights {
 public:
  /// `weights`: [elements], of the rank's own store. All outlive the object.
  AveragedWeights(double decay, const float* weights, std::int64_t elements, Backend& backend);

  /// Takes the new weights, after an update, with its count and losses.
  void follow(const OptimizerShard& update);

  bool any() const { return average_.data() != nullptr; }
  /// Copy the average to and from the host, [elements].
  void save(float* average) const;
  void restore(const float* average);
  /// Begins the average anew, with the weights as they are.
  void restart();

 private:
  Tensor tensor(const void* memory) const;

  const float* weights_;
  const std::int64_t elements_;
  const float share_;
  Backend& backend_;
  Storage average_;
};

}  // namespace lockstep
