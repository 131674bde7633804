#pragma once
// Element losses of a device that has no kernel for their formula: the host computes them.

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/backend/backend.h"

namespace lockstep {

/// Owned by a loss node and used by its thread.
class HostElementLosses {
 public:
  /// `largest`: the output that will come; a larger one takes more memory when it comes.
  HostElementLosses(Backend& device, const Shape& largest);

  /// LossOperations::element_losses with the bits of CPU devices for the same values; a gradient
  /// that is narrower than fp32 is rounded on the device. Waits until the device has all that it
  /// reads.
  void compute(const ElementLosses& arguments);

 private:
  void reserve(std::int64_t elements);
  /// Both wait for nothing.
  void read(void* host, const void* device, std::size_t bytes);
  void write(void* device, const void* host, std::size_t bytes);
  template <typename T>
  T* fetch(std::vector<T>& host, const T* device, std::int64_t count);
  template <typename T>
  DeviceScalar<T> fetch(std::vector<T>& host, const DeviceScalar<T>& scalar);

  Backend& device_;
  const std::unique_ptr<Backend> host_;
  Storage staged_;  // a dense fp32 tensor on the device: the output, then its gradient
  std::vector<float> output_, target_, gradient_, sample_weights_, grad_scale_;
  std::vector<double> normalizer_, loss_, image_losses_;
};

}  // namespace lockstep
