#pragma once
// What a file of weights holds, looked at tensor by tensor: contents, the health of BatchNorm's
// statistics, and how far two files lie apart. Builds no network.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/io/weights.h"

namespace lockstep {

struct TensorFacts {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::int64_t elements = 0;
  std::size_t bytes = 0;
  std::string hash = {};  // of its bytes, row by row: XXH3 of 64 bits, 16 hex digits
  std::optional<double> min = {}, max = {};  // of the finite values; none where there are none
  std::int64_t nans = 0, infinities = 0;
};

/// One for each tensor, in the order of their names. Types without a C++ number (F8_E4M3, ...) have
/// no min and max.
std::vector<TensorFacts> examine_tensors(const TensorMap& tensors);

/// 16 hex digits over names, types, shapes and bytes of all tensors (XXH3 of 64 bits): equal for
/// the same tensors in a safetensors and a .pth file.
std::string tensors_hash(const TensorMap& tensors);

/// A running variance below this is that of a channel that is always the same: a thousandth of the
/// usual eps, so that what the layer makes of it stays within 3 % of a constant.
inline constexpr double kFlatVariance = 1e-8;
/// A running variance above this is one of values that fp16 (at most 65504) can hardly hold.
inline constexpr double kHugeVariance = 1e8;
/// A channel with such a gamma is its beta, whatever goes in.
inline constexpr double kSmallGamma = 1e-5;

/// A BatchNorm layer as a file has it, known by NAME.running_var.
struct BatchNormHealth {
  std::string layer;
  std::int64_t channels = 0;
  std::optional<double> mean_min, mean_max, var_min, var_max;  // of the finite values
  std::optional<std::int64_t> num_batches_tracked;             // none: the file has none
  /// What is wrong, each a line for people: "3 of 16 channels (0, 4, 9) have a running variance
  /// below 1e-08: ...". Empty: sound.
  std::vector<std::string> problems;
};

/// Of every layer that has a running variance of floats, in the order of their names. In a training
/// state (replica.R.I.running_var) layers are called by the names that `metadata` gives them.
std::vector<BatchNormHealth> examine_batch_norms(const TensorMap& tensors,
                                                 const Metadata& metadata);

/// A tensor that two files have and that is not the same.
struct TensorDifference {
  std::string name, first_dtype, second_dtype;
  std::vector<std::int64_t> first_shape, second_shape;
  // The rest only where the shapes are equal and both types are numbers.
  std::int64_t elements = 0;
  std::int64_t differing = 0;   // elements with other bits, or where the types differ other values
  std::int64_t not_finite = 0;  // of them, where one of the two is no finite number
  std::optional<double> max_absolute = {};  // over pairs of finite numbers
  std::optional<double> max_relative = {};  // |a - b| / max(|a|, |b|)
  /// Steps from one representable number to the next, between the two that differ most; none for
  /// integers and where the types differ.
  std::optional<std::uint64_t> ulps = {};
};

struct WeightsDifference {
  std::vector<std::string> only_first, only_second;
  std::vector<TensorDifference> changed;
  std::int64_t equal = 0;  // tensors equal in type, shape and every byte

  bool none() const { return only_first.empty() && only_second.empty() && changed.empty(); }
};

WeightsDifference difference_of(const TensorMap& first, const TensorMap& second);

}  // namespace lockstep
