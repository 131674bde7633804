#pragma once
// What becomes of the gradients: the loss scale, clipping, the optimizer's step and averaged
// weights.

#include <array>
#include <cstdint>
#include <limits>
#include <span>

#include "lockstep/core/device.h"
#include "lockstep/core/tensor.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep {

/// A loss scale that follows the gradients (PyTorch's GradScaler): the gradient of the loss is
/// multiplied by `scale`, which brings small gradients into fp16's range, and the optimizer divides
/// the parameters' gradients by it. Lies in device memory; formulas.h has the rule.
struct LossScaleState {
  float scale = 1;    // a power of two, so that it changes no bit but by over- or underflow
  float inverse = 1;  // 1 / scale
  std::int64_t good_steps = 0;  // in a row with this scale
  std::int64_t skipped = 0;     // steps, because their gradients were not finite

  bool operator==(const LossScaleState&) const = default;
};

/// Whether a rank's gradients can be used.
struct GradientCheck {
  const float* grads = nullptr;
  std::int64_t elements = 0;
  const double* loss = nullptr;  // of the rank
  /// Unchanged when loss and gradients are finite; NaN when the loss is not; infinity when only
  /// gradients are not.
  double* guard = nullptr;
};

/// A range of flat parameters that are updated alike.
struct ParameterRange {
  std::int64_t begin = 0, end = 0;
  float weight_decay = 0;
  float lr_scale = 1;  // the range's learning rate is that of the shard times this
};

/// How many updates there have been, this one too: steps that were begun, without those that were
/// left out.
struct UpdateCount {
  DeviceScalar<std::int64_t> begun = 1;
  const std::int64_t* skipped = nullptr;  // device memory; null: none

  /// At least 1. On the device that owns the memory.
  LOCKSTEP_HOST_DEVICE std::int64_t get() const {
    const std::int64_t done = begun.get() - (skipped == nullptr ? 0 : *skipped);
    return done < 1 ? 1 : done;
  }
};

/// Elements of the flat parameters whose squares are summed together (OptimizerShard).
constexpr std::int64_t kNormBlock = 512;

/// One owner's share of the optimizer step, over every replica's parameters: g = grad_scale * sum
/// of grads[part][i]; `optimizer` makes the new w and the new state of it; the new w goes to
/// weights[rank][i] of every rank, for all elements i of `ranges`. Nothing is changed, and nothing
/// added, when one of the losses is not finite.
struct OptimizerShard {
  std::span<const float* const> grads;  // [part] of the global batch
  /// In which order the parts are added: once part p is there, the two youngest sums become one,
  /// joins[p] times; one sum is left after the last part. Empty: each part is added to the sum of
  /// those before it. Not empty only with Backend::sums_by_image().
  std::span<const int> joins = {};
  std::span<float* const> weights;  // [rank], equal; the first are read, so the caller's own
  std::array<float*, kMaxSlots> state = {};     // [Optimizer's kSlots]
  std::span<const ParameterRange> ranges = {};  // in all of the above; ascending, without overlap
  DeviceScalar<float> lr = 0.0F;
  Optimizer optimizer = Sgd{};  // its lr and weight decays do not matter: `lr` and `ranges` do
  UpdateCount updates = {};
  /// One double each, of every rank, however many `grads` there are; empty: not looked at. With a
  /// loss scale they are the ranks' guards (GradientCheck).
  std::span<const double* const> losses = {};
  /// Device memory of one double: += sum of g^2 over the ranges, in double, where g is the sum over
  /// the ranks before the weight decay; null: not wanted. Its bits depend on the ranges and on the
  /// alignment of the memory, never on threads or on the size of the device.
  double* squared_norm = nullptr;
  /// Device memory of a double for each kNormBlock elements, from element 0 on: += the squares of
  /// the block's elements. Null: not wanted; must be null without Backend::sums_by_image().
  double* block_squares = nullptr;
  DeviceScalar<float> grad_scale = 1.0F;
  /// What the optimizer then gets of g: clip * g, brought to [-most, most]; NaN stays.
  DeviceScalar<float> clip = 1.0F;
  float most = std::numeric_limits<float>::infinity();
};

/// Sums of squares that a rank has of the gradient: of consecutive blocks of kNormBlock elements,
/// of which the first has this number among all. Device memory.
struct GradientSquares {
  const double* blocks = nullptr;  // [count]; null: not known, left out
  std::int64_t first = 0, count = 0;
};

/// What bounds the gradient's norm: factor = min(1, max_norm / (norm + 1e-6)), where norm is the
/// root of all squares. They are added in an order that depends on the blocks' numbers alone. A
/// norm that is no number makes the factor one, too.
struct ClipFactor {
  std::span<const GradientSquares> squares;  // [rank]
  float max_norm = 0;
  float* factor = nullptr;  // device memory
};

/// An exponential moving average of weights: a += share * (w - a) for each element, or a = w in the
/// first update. Nothing is changed when one of the losses is not finite.
struct WeightAverage {
  const float* weights = nullptr;
  float* average = nullptr;
  std::int64_t elements = 0;
  float share = 1;  // of the new weights
  UpdateCount updates = {};
  std::span<const double* const> losses = {};  // as OptimizerShard::losses
};

/// The next step's loss scale, from what all ranks' gradients have come to. Every rank has a state
/// of its own, and all are equal.
struct LossScaleUpdate {
  std::span<const double* const> guards;  // one double each, of every rank
  LossScaleState* state = nullptr;        // of this rank
  std::int64_t growth_interval = 2000;    // good steps until the scale is doubled
};

/// What a replica's device does in the optimizer's step. Backend says what all operations have in
/// common.
class OptimizerOperations {
 public:
  virtual ~OptimizerOperations() = default;

  /// Looks whether a rank's loss and gradients are finite, and notes it in the guard.
  virtual void check_gradients(const GradientCheck& check) = 0;
  /// Adds up the gradients of all parts, updates the owner's ranges, and writes the new weights to
  /// every rank's memory.
  virtual void optimizer_update(const OptimizerShard& shard) = 0;
  /// squares [block] = the sum of g^2 over the block's elements that are in the shard's ranges, in
  /// double, for the blocks of kNormBlock elements up to the last range's end, from element 0 on;
  /// g as in optimizer_update, before any clipping. Of the shard, `grads`, `joins`, `ranges`,
  /// `weights` and `grad_scale` are read.
  virtual void gradient_squares(const OptimizerShard& shard, double* squares) = 0;
  virtual void clip_factor(const ClipFactor& clip) = 0;
  virtual void average_weights(const WeightAverage& average) = 0;
  virtual void update_loss_scale(const LossScaleUpdate& update) = 0;
};

}  // namespace lockstep
