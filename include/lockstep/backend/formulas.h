#pragma once
// Element formulas, written once and used by the CPU and the GPU code. No state, no includes of a
// device.

#include <cmath>
#include <cstdint>

#include "lockstep/backend/backend.h"

#if defined(__CUDACC__)
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif

namespace lockstep {

/// Count, mean and sum of squared deviations of one channel.
struct ChannelMoments {
  std::int64_t count = 0;
  double mean = 0;
  double m2 = 0;
};

/// Chan, Golub and LeVeque (1979), eq. 2.1: moments of the union of two disjoint sets. Exact in
/// counts; a set without samples changes nothing.
LOCKSTEP_HOST_DEVICE inline ChannelMoments merge(const ChannelMoments& a, const ChannelMoments& b) {
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  const auto na = static_cast<double>(a.count);
  const auto nb = static_cast<double>(b.count);
  const double delta = b.mean - a.mean;
  const double share = nb / (na + nb);
  return {a.count + b.count, a.mean + delta * share, a.m2 + b.m2 + delta * delta * na * share};
}

/// Inverse standard deviation from the biased variance.
LOCKSTEP_HOST_DEVICE inline double inverse_std(double var, double eps, EpsMode mode) {
  if (mode == EpsMode::kAdd) return 1.0 / std::sqrt(var + eps);
  return 1.0 / std::sqrt(var > eps ? var : eps);
}

/// Whether the gradient flows through the variance: `clamp` stops it where eps replaced the
/// variance.
LOCKSTEP_HOST_DEVICE inline bool variance_has_gradient(double var, double eps, EpsMode mode) {
  return mode == EpsMode::kAdd || var > eps;
}

/// (x - mean) * scale + shift, scale = gamma * invstd. Not x * scale + shift': that cancels when
/// |mean| is much larger than the standard deviation. The backward pass recomputes the ReLU mask by
/// this expression.
LOCKSTEP_HOST_DEVICE inline float normalize(float x, float mean, float scale, float shift) {
  return (x - mean) * scale + shift;
}

/// running = (1 - momentum) * running + momentum * value.
LOCKSTEP_HOST_DEVICE inline float update_running(float running, double value, double momentum) {
  return static_cast<float>((1.0 - momentum) * static_cast<double>(running) + momentum * value);
}

/// One element of PyTorch's SGD; returns the new weight and updates the velocity.
LOCKSTEP_HOST_DEVICE inline float sgd_element(float weight, float grad, float& velocity, float lr,
                                              float momentum, float weight_decay) {
  velocity = momentum * velocity + (grad + weight_decay * weight);
  return weight - lr * velocity;
}

}  // namespace lockstep
