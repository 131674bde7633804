#pragma once
// A rank on a GPU whose process trains with others: what they exchange of gradients and weights
// goes through the host, which does not read a GPU's memory.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/nn/parameter_store.h"

namespace lockstep {

/// Used by its rank's thread; what lies on the host is read by others while the ranks of the
/// process wait for each other.
class WorldStaging {
 public:
  /// [begin, end): elements of the flat parameters that the rank owns. losses: of the rank, or its
  /// guard. Backend and store outlive the object.
  WorldStaging(Backend& backend, const ParameterStore& store, std::span<const double* const> losses,
               std::int64_t begin, std::int64_t end);

  /// Brings the gradients of so many parts, and the losses, to the host, and waits for them.
  void fetch_gradients(std::size_t parts);
  /// On the host, of all parameters, as fetched last.
  const float* grads_of_part(std::size_t part) const { return grads_[part].host; }
  /// 0 where the losses fetched last are finite, otherwise a number that is not: with a guard, its.
  double losses() const { return losses_sum_; }

  /// Takes the memory for so many sums of other processes, if it is not there.
  void reserve_sums(std::size_t count);
  /// Brings one to the device, of which the elements that the rank owns are at `values`.
  void bring_sum(std::size_t i, const float* values);
  /// In device memory: of sum i the elements from `begin` on, some of the rank's.
  const float* sum(std::size_t i, std::int64_t begin) const;
  /// Brings a number there that says whether the losses of the other processes are finite.
  void bring_losses(double others);
  const double* other_losses() const { return static_cast<const double*>(other_losses_.data()); }

  /// Copies the rank's owned weights to `to`, on the host, and waits for them.
  void fetch_weights(float* to);
  /// Brings weights [begin, begin + values.size()) to the device.
  void bring_weights(std::int64_t begin, std::span<const float> values);

 private:
  struct Fetched {
    std::unique_ptr<Readback> readback;
    const float* host = nullptr;
  };

  std::int64_t elements() const { return end_ - begin_; }
  std::int64_t stride() const;
  float* row(std::size_t i) const;

  Backend& backend_;
  const ParameterStore& store_;
  const std::int64_t begin_, end_;
  std::vector<Fetched> grads_;                     // [part]
  std::vector<std::unique_ptr<Readback>> losses_;  // one double each
  double losses_sum_ = 0;
  std::unique_ptr<Readback> weights_;  // null where the rank owns none
  std::size_t rows_ = 0;
  Storage sums_;  // [rows, owned elements], each row from a multiple of 64 floats on
  std::vector<Storage> outgrown_;  // kept: the device may still read the last step's
  Storage other_losses_;           // one double
};

}  // namespace lockstep
