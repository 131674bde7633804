#pragma once
// What every operation must be given, whatever the device: memory behind the operands that are not
// optional, rows that do not overlap, and sizes that count something. Each operation begins with
// its check, on every device.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "lockstep/backend/backend.h"
#include "lockstep/core/check.h"

namespace lockstep {

/// As `used`: an operand that need not be there.
inline constexpr std::int64_t kOptional = 0;

/// An operand that must be there: a tensor, unless it is of a shape without elements, or an array,
/// unless none of its elements is read or written (`used`: a number of those, or of rows that need
/// them). A tensor's rows must not overlap, whether it must be there or not.
struct RequiredOperand {
  RequiredOperand(const char* argument, const Tensor& of, std::int64_t used = 1)
      : name(argument),
        missing(of.data == nullptr && used != 0 &&
                (of.shape.rank() == 0 || of.shape.elements() > 0)),
        overlapping(of.data != nullptr && of.shape.rank() > 0 && of.shape.elements() > 0 &&
                    of.row_stride < of.shape.channels()),
        tensor(&of) {}
  RequiredOperand(const char* argument, const void* array, std::int64_t used = 1)
      : name(argument), missing(array == nullptr && used != 0) {}

  const char* name;
  bool missing;
  bool overlapping = false;
  const Tensor* tensor = nullptr;
};

/// A number of something, or what a division is by.
struct RequiredSize {
  const char* name;
  std::int64_t value;
  std::int64_t least = 0;
};

/// Throws Error unless all operands are there, and no tensor's rows overlap.
inline void check_present(const char* operation, std::initializer_list<RequiredOperand> operands) {
  for (const RequiredOperand& operand : operands) {
    LOCKSTEP_CHECK(!operand.missing, operation, ": expected device memory for '", operand.name, "'",
                   operand.tensor == nullptr ? "" : " of shape ",
                   operand.tensor == nullptr ? "" : to_string(operand.tensor->shape),
                   ", got a null pointer");
    LOCKSTEP_CHECK(!operand.overlapping, operation, ": expected a row stride of ",
                   operand.tensor->shape.channels(), " elements or more for '", operand.name,
                   "' of shape ", to_string(operand.tensor->shape), ", got ",
                   operand.tensor->row_stride);
  }
}

/// Throws Error unless each size is what it must be at least.
inline void check_sizes(const char* operation, std::initializer_list<RequiredSize> sizes) {
  for (const RequiredSize& size : sizes) {
    LOCKSTEP_CHECK(size.value >= size.least, operation, ": expected '", size.name, "' to be ",
                   size.least, " or more, got ", size.value);
  }
}

/// Throws Error unless every rank's or part's memory is there.
template <typename T>
void check_all_present(const char* operation, const char* name, std::span<T* const> arrays) {
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    LOCKSTEP_CHECK(arrays[i] != nullptr, operation, ": expected device memory for '", name, "[", i,
                   "]' of ", arrays.size(), ", got a null pointer");
  }
}

/// Throws Error unless the slots have counts and parts, and memory where they count rows.
inline void check_slots(const char* operation, std::span<const StatSlot> slots) {
  for (const StatSlot& slot : slots) {
    check_sizes(operation, {{"count", slot.count}, {"parts", slot.parts, 1}});
    check_present(operation, {{"slot", slot.data, slot.count}});
  }
}

/// The same. All that is in the slots is added up, whatever they count.
inline void check_added_slots(const char* operation, std::span<const StatSlot> slots) {
  for (const StatSlot& slot : slots) {
    check_sizes(operation, {{"parts", slot.parts, 1}});
    check_present(operation, {{"slot", slot.data}});
  }
}

// --- memory

inline void check_fill(const Tensor& tensor) { check_present("fill", {{"tensor", tensor}}); }

inline void check_copy(const Tensor& source, const Tensor& destination) {
  check_present("copy", {{"source", source}, {"destination", destination}});
}

// --- convolutions

inline void check_prepack_conv2d_weights(std::span<const ConvWeights> weights) {
  for (const ConvWeights& w : weights) {
    check_present("prepack_conv2d_weights", {{"weight", w.weight}});
  }
}

inline void check_conv2d_forward(const Tensor& x, const float* weight, const Tensor& y) {
  check_present("conv2d_forward", {{"x", x}, {"weight", weight, x.shape.batch()}, {"y", y}});
}

inline void check_conv2d_backward_data(const Tensor& grad_y, const float* weight,
                                       const Tensor& grad_x) {
  check_present("conv2d_backward_data",
                {{"grad_y", grad_y}, {"weight", weight, grad_x.shape.batch()}, {"grad_x", grad_x}});
}

inline void check_conv2d_backward_weights(const Tensor& x, const Tensor& grad_y,
                                          const float* grad_weight) {
  check_present("conv2d_backward_weights",
                {{"x", x}, {"grad_y", grad_y}, {"grad_weight", grad_weight, x.shape.batch()}});
}

inline void check_conv2d_inference(const Tensor& x, const float* weight,
                                   const BatchNormInference& n) {
  const std::int64_t images = x.shape.batch();
  check_present("conv2d_inference", {{"x", x},
                                     {"weight", weight, images},
                                     {"residual", n.residual, kOptional},
                                     {"y", n.y},
                                     {"mean", n.mean, images},
                                     {"var", n.var, images}});
}

// --- norms

inline void check_batch_norm_moments(const Tensor& x, const float* slots, std::int64_t parts) {
  check_present("batch_norm_moments", {{"x", x}, {"slots", slots}});
  check_sizes("batch_norm_moments", {{"parts", parts, 1}});
}

inline void check_operands(const BatchNormForward& a) {
  constexpr const char* kName = "batch_norm_forward";
  check_present(kName, {{"x", a.x},
                        {"residual", a.residual, kOptional},
                        {"y", a.y, a.x.shape.rows()},
                        {"saved", a.saved.data}});
  check_slots(kName, a.slots);
}

inline void check_operands(const BatchNormInference& a) {
  const std::int64_t rows = a.x.shape.rows();
  check_present("batch_norm_inference", {{"x", a.x},
                                         {"residual", a.residual, kOptional},
                                         {"y", a.y, rows},
                                         {"mean", a.mean, rows},
                                         {"var", a.var, rows}});
}

inline void check_operands(const BatchNormBackwardReduce& a) {
  constexpr const char* kName = "batch_norm_backward_reduce";
  check_present(kName, {{"x", a.x},
                        {"grad_y", a.grad_y},
                        {"y", a.y, kOptional},
                        {"saved", a.saved.data},
                        {"sums", a.sums}});
  check_sizes(kName, {{"parts", a.parts, 1}});
  if (a.grad_weight == nullptr && a.grad_bias == nullptr) return;
  check_present(kName, {{"grad_weight", a.grad_weight}, {"grad_bias", a.grad_bias}});
}

inline void check_operands(const BatchNormBackwardApply& a) {
  constexpr const char* kName = "batch_norm_backward_apply";
  check_present(kName, {{"x", a.x},
                        {"grad_y", a.grad_y},
                        {"y", a.y, kOptional},
                        {"grad_x", a.grad_x},
                        {"grad_residual", a.grad_residual, kOptional},
                        {"saved", a.saved.data, a.x.shape.rows()}});
  check_slots(kName, a.slots);
}

inline void check_operands(const GroupNormForward& a) {
  const std::int64_t rows = a.x.shape.rows();
  check_present("group_norm_forward", {{"x", a.x},
                                       {"residual", a.residual, kOptional},
                                       {"y", a.y},
                                       {"saved", a.saved, rows},
                                       {"work", a.work, rows}});
}

inline void check_operands(const GroupNormBackward& a) {
  constexpr const char* kName = "group_norm_backward";
  const std::int64_t rows = a.x.shape.rows();
  check_present(kName, {{"x", a.x},
                        {"grad_y", a.grad_y},
                        {"y", a.y, kOptional},
                        {"grad_x", a.grad_x, kOptional},
                        {"grad_residual", a.grad_residual, kOptional},
                        {"saved", a.saved, rows},
                        {"work", a.work, rows}});
  if (a.grad_weight == nullptr && a.grad_bias == nullptr) return;
  check_present(kName, {{"grad_weight", a.grad_weight}, {"grad_bias", a.grad_bias}});
}

inline void check_operands(const BatchRenormCorrection& a) {
  constexpr const char* kName = "batch_renorm_correction";
  check_sizes(kName, {{"channels", a.channels}});
  check_present(kName, {{"running_mean", a.running_mean, a.channels},
                        {"running_var", a.running_var, a.channels},
                        {"correction", a.correction, a.channels},
                        {"corrected", a.corrected, a.channels}});
  check_slots(kName, a.slots);
}

inline void check_operands(const BatchRenormGradient& a) {
  constexpr const char* kName = "batch_renorm_gradient";
  check_sizes(kName, {{"channels", a.channels}});
  check_present(kName, {{"corrected", a.corrected, a.channels},
                        {"correction", a.correction, a.channels},
                        {"grad_weight", a.grad_weight, a.channels},
                        {"grad_bias", a.grad_bias, a.channels}});
}

// --- activations

inline void check_activation_forward(const Tensor& x, const Tensor& y) {
  check_present("activation_forward", {{"x", x}, {"y", y}});
}

inline void check_activation_backward(const Tensor& saved, const Tensor& grad_y,
                                      const Tensor& grad_x) {
  check_present("activation_backward", {{"saved", saved}, {"grad_y", grad_y}, {"grad_x", grad_x}});
}

inline void check_binary_forward(const Tensor& a, const Tensor& b, const Tensor& y) {
  check_present("binary_forward", {{"a", a}, {"b", b}, {"y", y}});
}

inline void check_binary_backward_left(const Tensor& a, const Tensor& b, const Tensor& grad_y,
                                       const Tensor& grad_a) {
  check_present("binary_backward_left",
                {{"a", a}, {"b", b}, {"grad_y", grad_y}, {"grad_a", grad_a}});
}

inline void check_binary_backward_right(const Tensor& a, const Tensor& grad_y,
                                        const Tensor& grad_b) {
  check_present("binary_backward_right", {{"a", a}, {"grad_y", grad_y}, {"grad_b", grad_b}});
}

inline void check_softmax_forward(const Tensor& x, const Tensor& y) {
  check_present("softmax_forward", {{"x", x}, {"y", y}});
}

inline void check_softmax_backward(const Tensor& y, const Tensor& grad_y, const Tensor& grad_x) {
  check_present("softmax_backward", {{"y", y}, {"grad_y", grad_y}, {"grad_x", grad_x}});
}

inline void check_dropout(const Tensor& x, const Tensor& y) {
  check_present("dropout", {{"x", x}, {"y", y}});
}

// --- pooling and interpolation

inline void check_max_pool_forward(const Tensor& x, const Tensor& y, const Tensor& winners) {
  check_present("max_pool_forward", {{"x", x}, {"y", y}, {"winners", winners}});
}

inline void check_max_pool_backward(const Tensor& winners, const Tensor& grad_y,
                                    const Tensor& grad_x) {
  check_present("max_pool_backward",
                {{"winners", winners}, {"grad_y", grad_y}, {"grad_x", grad_x}});
}

/// Checks operations that make an image of another, by name.
inline void check_images(const char* operation, const Tensor& x, const Tensor& y) {
  check_present(operation, {{"x", x}, {"y", y}});
}

/// Checks their backward passes.
inline void check_image_gradients(const char* operation, const Tensor& grad_y,
                                  const Tensor& grad_x) {
  check_present(operation, {{"grad_y", grad_y}, {"grad_x", grad_x}});
}

// --- sums

inline void check_sum_over_batch(const Tensor& x, const float* slot) {
  check_present("sum_over_batch", {{"x", x}, {"slot", slot}});
}

inline void check_broadcast_sum(std::span<const StatSlot> slots, const Tensor& y) {
  check_present("broadcast_sum", {{"y", y}});
  check_added_slots("broadcast_sum", slots);
}

inline void check_sum_over_images(const Tensor& x, const float* sum) {
  check_present("sum_over_images", {{"x", x}, {"sum", sum, x.shape.batch()}});
}

inline void check_reset_sums(const double* sums, int count) {
  check_sizes("reset_sums", {{"count", count}});
  check_present("reset_sums", {{"sums", sums, count}});
}

// --- losses

inline void check_operands(const CrossEntropy& a) {
  constexpr const char* kName = "cross_entropy";
  check_present(kName, {{"logits", a.logits},
                        {"labels", a.labels},
                        {"grad_logits", a.grad_logits, kOptional},
                        {"loss", a.loss, a.logits.shape.rows()}});
  check_sizes(kName, {{"rows_per_weight", a.rows_per_weight, 1}});
}

inline void check_operands(const ElementLosses& a) {
  constexpr const char* kName = "element_losses";
  check_present(kName, {{"output", a.output},
                        {"target", a.target},
                        {"grad_output", a.grad_output, kOptional},
                        {"loss", a.loss, a.output.shape.rows()}});
  LOCKSTEP_CHECK(a.formula != nullptr, kName, ": expected a formula, got a null pointer");
}

inline void check_operands(const LabelProbabilities& a) {
  check_present("label_probabilities", {{"logits", a.logits},
                                        {"labels", a.labels},
                                        {"probabilities", a.probabilities, a.logits.shape.rows()}});
}

inline void check_round(const char* operation, int round) {
  LOCKSTEP_CHECK(round >= 0 && round < kOhemRounds, operation, ": expected a round of ",
                 kOhemRounds, ", from 0 on, got ", round);
}

inline void check_operands(const OhemCount& a) {
  constexpr const char* kName = "ohem_count";
  check_round(kName, a.round);
  check_sizes(kName, {{"rows", a.rows}, {"samples", a.samples}});
  check_present(kName,
                {{"probabilities", a.probabilities, a.rows}, {"state", a.state}, {"slot", a.slot}});
}

inline void check_operands(const OhemNarrow& a) {
  constexpr const char* kName = "ohem_narrow";
  check_round(kName, a.round);
  check_sizes(kName, {{"min_kept", a.min_kept}});
  check_present(kName, {{"state", a.state}});
  check_added_slots(kName, a.counts);
}

inline void check_operands(const OhemChoice& a) {
  constexpr const char* kName = "ohem_choose";
  check_present(kName, {{"labels", a.labels},
                        {"state", a.state},
                        {"rows", a.rows, a.labels.shape.rows()},
                        {"slots", a.slots}});
  check_sizes(kName, {{"classes", a.classes, 1}});
}

inline void check_operands(const OhemShare& a) {
  constexpr const char* kName = "ohem_share";
  check_sizes(kName, {{"classes", a.classes, 1}});
  check_present(kName, {{"state", a.state}});
  check_added_slots(kName, a.weights);
}

inline void check_operands(const DiceSums& a) {
  check_present(
      "dice_sums",
      {{"logits", a.logits}, {"labels", a.labels}, {"slots", a.slots, a.logits.shape.rows()}});
}

inline void check_operands(const DiceLosses& a) {
  constexpr const char* kName = "dice_losses";
  check_present(kName, {{"logits", a.logits},
                        {"labels", a.labels},
                        {"sums", a.sums, a.logits.shape.rows()},
                        {"grad_logits", a.grad_logits, kOptional},
                        {"loss", a.loss, a.logits.shape.rows()}});
  if (a.logits.shape.rows() == 0) return;
  const Shape& sums = a.sums.shape;
  const std::int64_t batch = a.logits.shape.batch(), elements = 3 * a.logits.shape.channels() + 1;
  LOCKSTEP_CHECK(a.sums.dense() && sums.elements() == sums.batch() * elements &&
                     (sums.batch() == 1 || sums.batch() == batch),
                 kName, ": expected sums of ", elements, " elements, for all or each of ", batch,
                 " images, got ", to_string(sums));
}

inline void check_confusion_matrix(const Tensor& logits, const Tensor& labels,
                                   const std::int64_t* matrix) {
  check_present("confusion_matrix",
                {{"logits", logits}, {"labels", labels}, {"matrix", matrix, logits.shape.rows()}});
}

// --- the optimizer

inline void check_operands(const GradientCheck& a) {
  constexpr const char* kName = "check_gradients";
  check_sizes(kName, {{"elements", a.elements}});
  check_present(kName, {{"grads", a.grads, a.elements}, {"loss", a.loss}, {"guard", a.guard}});
}

/// What optimizer_update and gradient_squares both read.
inline void check_shard(const char* operation, const OptimizerShard& a) {
  LOCKSTEP_CHECK(!a.grads.empty() && !a.weights.empty(), operation,
                 ": expected gradients and weights, got ", a.grads.size(), " and ",
                 a.weights.size());
  std::int64_t end = 0;
  for (const ParameterRange& range : a.ranges) {
    LOCKSTEP_CHECK(end <= range.begin && range.begin <= range.end, operation,
                   ": expected ascending ranges of elements, got [", range.begin, ", ", range.end,
                   ") behind element ", end);
    end = range.end;
  }
  if (end == 0) return;
  check_all_present(operation, "grads", a.grads);
  check_all_present(operation, "weights", a.weights);
}

inline void check_optimizer_update(const OptimizerShard& a) {
  constexpr const char* kName = "optimizer_update";
  check_shard(kName, a);
  check_all_present(kName, "losses", a.losses);
  if (a.ranges.empty()) return;
  const std::size_t slots =
      std::visit([](const auto& rule) { return std::size(rule.kSlots); }, a.optimizer);
  check_all_present(kName, "state", std::span<float* const>(a.state).first(slots));
}

inline void check_gradient_squares(const OptimizerShard& a, const double* squares) {
  check_shard("gradient_squares", a);
  check_present("gradient_squares", {{"squares", squares, std::ssize(a.ranges)}});
}

inline void check_operands(const ClipFactor& a) {
  check_present("clip_factor", {{"factor", a.factor}});
  for (const GradientSquares& rank : a.squares) {
    check_sizes("clip_factor", {{"first", rank.first}, {"count", rank.count}});
  }
}

inline void check_operands(const WeightAverage& a) {
  constexpr const char* kName = "average_weights";
  check_sizes(kName, {{"elements", a.elements}});
  check_present(kName, {{"weights", a.weights, a.elements}, {"average", a.average, a.elements}});
  check_all_present(kName, "losses", a.losses);
}

inline void check_operands(const LossScaleUpdate& a) {
  constexpr const char* kName = "update_loss_scale";
  check_present(kName, {{"state", a.state}});
  check_sizes(kName, {{"growth_interval", a.growth_interval, 1}});
  check_all_present(kName, "guards", a.guards);
}

}  // namespace lockstep
