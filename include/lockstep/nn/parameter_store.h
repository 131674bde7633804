#pragma once
// The learnable parameters and BatchNorm states of one replica, by name, in one flat allocation
// each, so that replicas are mirrored, exchanged and updated as plain ranges. Replicas built from
// one configuration have equal layouts. Used by the replica's thread; other threads only between
// steps.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/backend/backend.h"

namespace lockstep {

enum class ParameterKind : std::uint8_t { kWeight, kBias, kNorm };

/// A learnable parameter. Values and gradients are device memory in PyTorch's element order.
struct Parameter {
  std::string name;  // "encoder.0.0.conv.weight"
  Shape shape;       // in PyTorch's order, e.g. [out, in, kh, kw]
  ParameterKind kind = ParameterKind::kWeight;
  std::int64_t fan_in = 0;  // for Kaiming initialisation; 0 for biases and norm parameters
  std::int64_t offset = 0;  // in the flat values and grads
  std::int64_t elements = 0;
  float* value = nullptr;
  float* grad = nullptr;
};

/// Running statistics of one BatchNorm layer.
struct BatchNormState {
  std::string name;  // "encoder.0.0.bn"
  std::int64_t channels = 0;
  float* running_mean = nullptr;  // [C], device memory, initially 0
  float* running_var = nullptr;   // [C], initially 1
  std::int64_t num_batches_tracked = 0;
};

class ParameterStore {
 public:
  /// The parameter of that name, declared at its first mention.
  /// Throws Error when it exists with another shape or kind, or after `allocate`, when it does not
  /// exist.
  Parameter& parameter(const std::string& name, const Shape& shape, ParameterKind kind,
                       std::int64_t fan_in = 0);
  BatchNormState& batch_norm(const std::string& name, std::int64_t channels);

  /// Allocates values, gradients and states and sets them to their constant initial values (weights
  /// and biases 0, gamma 1, beta 0, running_mean 0, running_var 1). Once, after the first network
  /// was declared.
  void allocate(Backend& backend);
  bool allocated() const { return allocated_; }

  /// In the order of declaration.
  std::span<const std::unique_ptr<Parameter>> parameters() const { return parameters_; }
  std::span<const std::unique_ptr<BatchNormState>> batch_norms() const { return batch_norms_; }
  Parameter* find(std::string_view name) const;

  /// Flat device memory of all parameters, `elements()` floats each. Every parameter starts at a
  /// multiple of 16 elements; the gaps are zero and stay zero.
  float* values() const { return values_; }
  float* grads() const { return grads_; }
  /// Gradients of the first part of the batch are in `grads`, those of others in memory of their
  /// own (GradientPart). Null where there is none yet.
  float* grads_of_part(std::size_t part) const;
  /// Takes the memory for so many parts, if they are not there.
  void reserve_gradient_parts(Backend& backend, std::size_t parts);
  std::int64_t elements() const { return elements_; }
  /// Flat device memory of all running statistics.
  float* statistics() const { return statistics_; }
  std::int64_t statistics_elements() const { return statistics_elements_; }

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::unique_ptr<BatchNormState>> batch_norms_;
  Storage storage_;
  float* values_ = nullptr;
  float* grads_ = nullptr;
  std::vector<Storage> other_grads_;  // [part - 1]
  float* statistics_ = nullptr;
  std::int64_t elements_ = 0;
  std::int64_t statistics_elements_ = 0;
  bool allocated_ = false;
};

}  // namespace lockstep
