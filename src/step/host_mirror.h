#pragma once
// What the host has of a rank's memory while processes exchange gradients and weights. The memory
// of a CPU device is the host's own; a GPU's passes through copies.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/nn/parameter_store.h"
#include "step/parameter_ranges.h"

namespace lockstep {

/// The form for CPU devices: everything stays where it is. Used by its rank's thread; what lies on
/// the host is read by others while the ranks of the process wait for each other.
class HostMirror {
 public:
  /// `indicators`: of the rank (LossScaler::add_indicators). The store outlives the object.
  HostMirror(const ParameterStore& store, std::vector<const double*> indicators)
      : store_(store), indicators_(std::move(indicators)) {}
  HostMirror(const HostMirror&) = delete;
  HostMirror& operator=(const HostMirror&) = delete;
  virtual ~HostMirror() = default;

  /// Brings the gradients of so many parts, and the indicators, to the host, and waits for them.
  virtual void fetch_gradients(std::size_t parts);
  /// The gradients of all parameters for a part, on the host, as fetched last.
  virtual const float* grads_of_part(std::size_t part) const { return store_.grads_of_part(part); }
  /// 0 where the indicators fetched last are finite, otherwise a number that is not.
  double indicator() const { return indicator_; }

  /// Brings sums of other processes to the device. sums[i]: where a sum lies on the host, which is
  /// replaced by where it lies on the device.
  virtual void bring_sums(std::span<const float*> sums, std::int64_t elements);
  /// Brings a number there that says whether the indicators of the other processes are finite.
  virtual void bring_indicator(double others) { others_ = others; }
  virtual const double* others_indicator() const { return &others_; }

  /// Brings weights to the host, and waits for them.
  virtual const float* fetch_weights(const ElementRange& range);
  /// Brings weights from element `begin` on to the device.
  virtual void bring_weights(std::int64_t begin, std::span<const float> values);

 protected:
  void add_indicator(double value);
  void clear_indicator() { indicator_ = 0; }

  const ParameterStore& store_;
  const std::vector<const double*> indicators_;

 private:
  double indicator_ = 0;
  double others_ = 0;
};

/// The mirror of a rank on this backend, which outlives it.
std::unique_ptr<HostMirror> make_host_mirror(Backend& backend, const ParameterStore& store,
                                             std::vector<const double*> indicators);

}  // namespace lockstep
