#pragma once
// The learnable parameters and BatchNorm states of one replica, by name, in one flat allocation
// each, so that replicas are mirrored, exchanged and updated as plain ranges. Replicas built from
// one configuration have equal layouts. Used by the replica's thread; other threads only between
// steps.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/backend/backend.h"
#include "lockstep/io/weights.h"

namespace lockstep {

/// What a parameter is to the optimizer, which gives kNorm a weight decay of its own
/// (norm_weight_decay) and the others weight_decay; and what it is initially where nothing else is
/// said: kBias 0; kNorm 1 if its name ends in ".weight", else 0; kWeight as Initial::kaiming_normal
/// of its fan-in.
enum class ParameterKind : std::uint8_t { kWeight, kBias, kNorm };

/// The elements of a parameter before anything is loaded or learned. Random ones depend on the
/// seed, the parameter's name and the element alone.
class Initial {
 public:
  /// All alike.
  static Initial constant(float value);
  /// Of mean 0 and this standard deviation (torch.nn.init.normal_).
  static Initial normal(float std);
  /// torch.nn.init.kaiming_normal_ (He et al. 2015, eq. 10): std = sqrt(2 / fan_in).
  static Initial kaiming_normal(std::int64_t fan_in);
  /// torch.nn.init.xavier_normal_ (Glorot and Bengio 2010, eq. 12): std = sqrt(2 / (fan_in +
  /// fan_out)).
  static Initial xavier_normal(std::int64_t fan_in, std::int64_t fan_out);
  /// What the function says of an element's index, in PyTorch's order. It is called on the threads
  /// of replicas.
  static Initial of(std::function<float(std::int64_t index)> element);

  /// [elements] of the parameter of this name. Throws Error naming it where one is not finite.
  std::vector<float> values(const std::string& name, std::int64_t elements,
                            std::uint64_t seed) const;

 private:
  float constant_ = 0;
  float std_ = 0;  // 0: not random
  std::function<float(std::int64_t index)> element_;
};

/// A learnable parameter. Values and gradients are device memory in PyTorch's element order.
struct Parameter {
  std::string name;  // "encoder.0.0.conv.weight"
  Shape shape;       // in PyTorch's order, e.g. [out, in, kh, kw]
  ParameterKind kind = ParameterKind::kWeight;
  Initial initial = {};
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
  /// Of a shard's later slices: the state of the first one, which alone is the model's. They begin
  /// as it does, and no file of weights has them.
  const BatchNormState* slice_of = nullptr;
};

class ParameterStore {
 public:
  /// Returns the parameter of that name. Its first mention declares it, with the initial values of
  /// its kind. `fan_in`: of a kWeight; 0: that of the shape as PyTorch takes it, the product of the
  /// extents behind the first. A shape of one extent has none, and the values are 0. Throws Error
  /// when it exists with another shape or kind, when an extent is not positive, or after
  /// `allocate`, when it does not exist.
  Parameter& parameter(const std::string& name, const Shape& shape, ParameterKind kind,
                       std::int64_t fan_in = 0);
  /// The same with other initial values; those of the first mention count.
  Parameter& parameter(const std::string& name, const Shape& shape, ParameterKind kind,
                       const Initial& initial);
  BatchNormState& batch_norm(const std::string& name, std::int64_t channels);
  /// Returns a state for every slice of a shard: "bn", "bn.slice1", ... Throws as `batch_norm`.
  std::vector<BatchNormState*> batch_norm_slices(const std::string& name, std::int64_t channels,
                                                 int slices);

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
  /// Returns the gradients of a part of the batch (GradientPart): those of the first one are in
  /// `grads`, others have memory of their own. Null where there is none yet.
  float* grads_of_part(std::size_t part) const;
  /// Takes the memory for so many parts, where it is not there yet.
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

/// All parameters and BatchNorm states under PyTorch's names (running_mean, running_var,
/// num_batches_tracked [I64 scalar]).
TensorMap state_dict(const ParameterStore& store, Backend& backend);

/// What `load_state_dict` did.
struct ImportSummary {
  int loaded = 0;
  std::vector<std::string>
      skipped;  // "head.weight: [21, 16, 1, 1] in the file, [11, 16, 1, 1] here"
  std::vector<std::string> missing;     // tensors of the network that the file lacks
  std::vector<std::string> unexpected;  // of the file that the network lacks, passed over or not
  /// "module." + NAME in the file was `network_prefix` + NAME here; both empty: the same names.
  std::string file_prefix, network_prefix;
};

/// For people, in one paragraph: "318 of the network's 320 tensors loaded (\"NAME\" in the file is
/// \"backbone.NAME\" here); 2 skipped: ...".
std::string describe_import(const ImportSummary& summary);

/// Returns the tensors whose names begin with `prefix`, where there are some; else all.
TensorMap select_prefix(TensorMap tensors, const std::string& prefix);

/// Copies tensors by name. Parameters and running statistics may be F32, or F16, BF16 and F64,
/// which become fp32; the file may lack num_batches_tracked, or have it in any type of numbers.
/// What has another shape, as a head for other classes has, is skipped. What the network lacks and
/// no weight can be (integers, types that nothing here computes with, n_averaged) is passed over.
///
/// One of the two may have a wrapper's name in front: "module.conv.weight" or
/// "backbone.conv.weight" for "conv.weight". Tried are the names as they are; names of the file
/// without a prefix that it has in common; with a prefix that the network has in common; and both.
/// A prefix ends in a dot, has at most 8 dots, and stands before at least half as many names as
/// the file or the network has, whichever has fewer (num_batches_tracked never counts); a change
/// must give as many tensors of the network their names. The one that finds most tensors of the
/// same name and shape is taken; among equals the one that finds most names; then the names as they
/// are before one prefix before two. Names of the file without the prefix that is taken off stay as
/// they are.
///
/// Throws DataError, before anything is copied: where two prefixes are equal in all of this
/// (select_prefix chooses); for names of a ResNet that is nearly torchvision's (v1c, v1d,
/// detectron2's); and if `strict`, when a tensor is skipped, missing (num_batches_tracked excepted)
/// or unexpected and not passed over.
ImportSummary load_state_dict(const TensorMap& tensors, ParameterStore& store, Backend& backend,
                              bool strict);

}  // namespace lockstep
