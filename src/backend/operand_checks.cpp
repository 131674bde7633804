#include "backend/operand_checks.h"

#include <initializer_list>

#include "backend/moments.h"
#include "backend/operands.h"
#include "backend/sum_parts.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// As `used`: an operand that need not be there.
constexpr std::int64_t kOptional = 0;

/// An operand that must be there: a tensor, unless it is of a shape without elements, or an array,
/// unless none of its elements is read or written (`used`: a number of those, or of rows that need
/// them). A tensor's rows must not overlap, whether it must be there or not.
struct Operand {
  Operand(const char* argument, const Tensor& of, std::int64_t used = 1)
      : name(argument), data(of.data), needed(used != 0), tensor(&of) {}
  Operand(const char* argument, const void* array, std::int64_t used = 1)
      : name(argument), data(array), needed(used != 0) {}

  bool has_elements() const { return tensor->shape.rank() > 0 && tensor->shape.elements() > 0; }
  bool is_missing() const {
    return data == nullptr && needed &&
           (tensor == nullptr || tensor->shape.rank() == 0 || has_elements());
  }
  bool overlaps() const {
    return data != nullptr && tensor != nullptr && has_elements() &&
           tensor->row_stride < tensor->shape.channels();
  }

  const char* name;
  const void* data;
  bool needed;
  const Tensor* tensor = nullptr;
};

/// A number of something, or what a division is by.
struct Size {
  const char* name;
  std::int64_t value;
  std::int64_t least = 0;
};

void check_present(const char* operation, std::initializer_list<Operand> operands) {
  for (const Operand& operand : operands) {
    LOCKSTEP_CHECK(!operand.is_missing(), operation, ": expected device memory for '", operand.name,
                   "'", operand.tensor == nullptr ? "" : " of shape ",
                   operand.tensor == nullptr ? "" : to_string(operand.tensor->shape),
                   ", got a null pointer");
    LOCKSTEP_CHECK(!operand.overlaps(), operation, ": expected a row stride of ",
                   operand.tensor->shape.channels(), " elements or more for '", operand.name,
                   "' of shape ", to_string(operand.tensor->shape), ", got ",
                   operand.tensor->row_stride);
  }
}

void check_sizes(const char* operation, std::initializer_list<Size> sizes) {
  for (const Size& size : sizes) {
    LOCKSTEP_CHECK(size.value >= size.least, operation, ": expected '", size.name, "' to be ",
                   size.least, " or more, got ", size.value);
  }
}

/// Of every rank or part.
template <typename T>
void check_all_present(const char* operation, const char* name, std::span<T* const> arrays) {
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    LOCKSTEP_CHECK(arrays[i] != nullptr, operation, ": expected device memory for '", name, "[", i,
                   "]' of ", arrays.size(), ", got a null pointer");
  }
}

void check_activation_type(const char* operation, const char* name, DType dtype) {
  LOCKSTEP_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16,
                 operation, ": expected activations in fp32, bf16 or fp16, got ", to_string(dtype),
                 " for '", name, "'");
}

/// Those that are there, or must be, have one element type. Batches may be empty, samples may not.
void check_activations(const char* operation, std::initializer_list<Operand> operands) {
  check_present(operation, operands);
  const Operand& first = *operands.begin();
  check_activation_type(operation, first.name, first.tensor->dtype);
  for (const auto& [name, data, needed, tensor] : operands) {
    if (data == nullptr && !needed) continue;
    LOCKSTEP_CHECK(tensor->dtype == first.tensor->dtype, operation,
                   ": expected activations of one type, got ", to_string(first.tensor->dtype),
                   " for '", first.name, "' and ", to_string(tensor->dtype), " for '", name,
                   "'; `copy` converts them");
    LOCKSTEP_CHECK(tensor->shape.rows_per_sample() * tensor->shape.channels() > 0, operation,
                   ": expected samples with elements for '", name, "', got ",
                   to_string(tensor->shape));
  }
}

void check_same_shape(const char* operation, std::initializer_list<Operand> operands) {
  const Operand& first = *operands.begin();
  for (const auto& [name, data, needed, tensor] : operands) {
    LOCKSTEP_CHECK((data == nullptr && !needed) || tensor->shape == first.tensor->shape, operation,
                   ": expected operands of one shape, got ", to_string(first.tensor->shape),
                   " for '", first.name, "' and ", to_string(tensor->shape), " for '", name, "'");
  }
}

/// Activations of one shape.
void check_alike(const char* operation, std::initializer_list<Operand> operands) {
  check_activations(operation, operands);
  check_same_shape(operation, operands);
}

template <typename Geometry>
Shape output_shape(const char* operation, const Geometry& geometry, const Shape& x) try {
  return geometry.output_shape(x);
} catch (const Error& error) {
  throw Error(concat(operation, ": ", error.what()));
}

template <typename Geometry>
void check_windows(const char* operation, const Geometry& geometry, const Operand& x,
                   const Operand& y) {
  check_activations(operation, {x, y});
  const Shape expected = output_shape(operation, geometry, x.tensor->shape);
  LOCKSTEP_CHECK(y.tensor->shape == expected, operation, ": expected '", y.name, "' of shape ",
                 to_string(expected), " with '", x.name, "' of shape ", to_string(x.tensor->shape),
                 ", got ", to_string(y.tensor->shape));
}

void check_parts(const char* operation, std::int64_t rows, std::int64_t parts) {
  check_sizes(operation, {{"parts", parts, 1}});
  LOCKSTEP_CHECK(rows % parts == 0, operation, ": ", rows, " rows are no ", parts, " equal parts");
}

/// Memory where the slots count rows. Returns how many they are.
std::int64_t check_slots(const char* operation, std::span<const StatSlot> slots) {
  for (const StatSlot& slot : slots) {
    check_sizes(operation, {{"count", slot.count}});
    check_parts(operation, slot.count, slot.parts);
    check_present(operation, {{"slot", slot.data, slot.count}});
  }
  return total_count(slots);
}

/// All that is in the slots is added up, whatever they count.
void check_added_slots(const char* operation, std::span<const StatSlot> slots) {
  for (const StatSlot& slot : slots) {
    check_sizes(operation, {{"parts", slot.parts, 1}});
    check_present(operation, {{"slot", slot.data}});
  }
}

void check_groups(const char* operation, const Shape& x, std::int64_t groups) {
  LOCKSTEP_CHECK(groups >= 1 && x.channels() % groups == 0, operation, ": ", x.channels(),
                 " channels are no ", groups, " equal groups");
  const std::int64_t values = x.rows_per_sample() * (x.channels() / groups);
  LOCKSTEP_CHECK(x.batch() == 0 || values >= 2, operation,
                 ": a group needs at least 2 values, got ", values, " of ", to_string(x));
}

/// Gradients of gamma and of beta, or none.
void check_affine(const char* operation, const float* grad_weight, const float* grad_bias) {
  if (grad_weight == nullptr && grad_bias == nullptr) return;
  check_present(operation, {{"grad_weight", grad_weight}, {"grad_bias", grad_bias}});
}

/// `met` is fp32 or of the others' type, and fits their shape.
void check_met(const char* operation, const Tensor& a, const Operand& met) {
  check_present(operation, {met});
  const Tensor& b = *met.tensor;
  LOCKSTEP_CHECK(b.dtype == DType::kFloat32 || b.dtype == a.dtype, operation,
                 ": expected activations of one type, or '", met.name, "' in fp32, got ",
                 to_string(a.dtype), " and ", to_string(b.dtype), "; `copy` converts them");
  LOCKSTEP_CHECK(find_repetition(a.shape, b.shape).has_value(), operation, ": expected '", met.name,
                 "' of shape ", to_string(a.shape),
                 ", or with one channel, or with one row for each sample or for all, got ",
                 to_string(b.shape));
}

void check_classes(const char* operation, std::int64_t classes) {
  LOCKSTEP_CHECK(classes >= 1 && classes <= kMaxClasses, operation,
                 ": expected 'classes' to be from 1 to ", kMaxClasses, ", got ", classes);
}

void check_labels(const char* operation, const Tensor& labels, const Shape& expected) {
  check_present(operation, {{"labels", labels}});
  LOCKSTEP_CHECK(labels.shape == expected && labels.dtype == DType::kUInt16, operation,
                 ": expected labels in uint16 of shape ", to_string(expected), ", got ",
                 to_string(labels.dtype), " of ", to_string(labels.shape));
}

/// Logits, their gradient if there is one, and their labels.
void check_labelled(const char* operation, const Tensor& logits, const Tensor& labels,
                    const Tensor& grad_logits = {}) {
  check_alike(operation, {{"logits", logits}, {"grad_logits", grad_logits, kOptional}});
  check_classes(operation, logits.shape.channels());
  check_labels(operation, labels, logits.shape.with_channels(1));
}

void check_round(const char* operation, int round) {
  LOCKSTEP_CHECK(round >= 0 && round < kOhemRounds, operation, ": expected a round of ",
                 kOhemRounds, ", from 0 on, got ", round);
}

/// What optimizer_update and gradient_squares both read.
void check_shard(const char* operation, const OptimizerShard& a) {
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
  LOCKSTEP_CHECK(most_waiting_sums(a.joins, a.grads.size()).has_value(), operation,
                 ": the order of the sum does not fit the ", a.grads.size(), " gradients");
  if (end == 0) return;
  check_all_present(operation, "grads", a.grads);
  check_all_present(operation, "weights", a.weights);
}

}  // namespace

// --- memory

void check_fill(const Tensor& tensor) { check_present("fill", {{"tensor", tensor}}); }

void check_copy(const Tensor& source, const Tensor& destination, bool accumulate) {
  const Operand from("source", source), to("destination", destination);
  check_present("copy", {from, to});
  check_same_shape("copy", {from, to});
  if (source.dtype == destination.dtype && !accumulate) return;
  for (const Operand& each : {from, to}) {
    check_activation_type("copy", each.name, each.tensor->dtype);
  }
}

void check_transfer(const Tensor& tensor) {
  LOCKSTEP_CHECK(tensor.data != nullptr || dense_bytes(tensor) == 0,
                 "upload and download: expected device memory for a tensor of shape ",
                 to_string(tensor.shape), ", got a null pointer");
  LOCKSTEP_CHECK(tensor.dense() || tensor.shape.rows() == 0,
                 "upload and download take dense tensors, got shape ", to_string(tensor.shape),
                 " with row stride ", tensor.row_stride);
}

void check_transfer(const Tensor& tensor, const void* host) {
  check_transfer(tensor);
  LOCKSTEP_CHECK(host != nullptr || dense_bytes(tensor) == 0,
                 "upload and download: expected host memory of ", dense_bytes(tensor),
                 " bytes, got a null pointer");
}

// --- convolutions

void check_prepare_conv2d(const ConvGeometry& geometry, const Shape& input, DType dtype) {
  constexpr const char* kName = "prepare_conv2d";
  check_activation_type(kName, "input", dtype);
  static_cast<void>(output_shape(kName, geometry, input));
}

void check_prepack_conv2d_weights(std::span<const ConvWeights> weights) {
  for (const ConvWeights& w : weights) {
    check_present("prepack_conv2d_weights", {{"weight", w.weight}});
  }
}

void check_conv2d(ConvPass pass, const ConvGeometry& geometry, const Tensor& x, const float* weight,
                  const Tensor& y) {
  const bool forward = pass == ConvPass::kForward, data = pass == ConvPass::kBackwardData;
  const char* const operation = forward ? "conv2d_forward"
                                : data  ? "conv2d_backward_data"
                                        : "conv2d_backward_weights";
  check_present(operation, {{forward || data ? "weight" : "grad_weight", weight, x.shape.batch()}});
  check_windows(operation, geometry, {data ? "grad_x" : "x", x}, {forward ? "y" : "grad_y", y});
}

void check_conv2d_inference(const ConvGeometry& geometry, const Tensor& x, const float* weight,
                            const BatchNormInference& n) {
  constexpr const char* kName = "conv2d_inference";
  const std::int64_t images = x.shape.batch();
  check_windows(kName, geometry, {"x", x}, {"y", n.y});
  check_alike(kName, {{"y", n.y}, {"residual", n.residual, kOptional}});
  check_present(kName,
                {{"weight", weight, images}, {"mean", n.mean, images}, {"var", n.var, images}});
}

// --- norms

void check_batch_norm_moments(const Tensor& x, const float* slots, std::int64_t parts) {
  constexpr const char* kName = "batch_norm_moments";
  check_activations(kName, {{"x", x}});
  check_present(kName, {{"slots", slots}});
  check_parts(kName, x.shape.rows(), parts);
}

void check_operands(const BatchNormForward& a) {
  constexpr const char* kName = "batch_norm_forward";
  const std::int64_t rows = a.x.shape.rows();
  check_alike(kName, {{"x", a.x}, {"residual", a.residual, kOptional}, {"y", a.y, rows}});
  check_present(kName, {{"saved", a.saved.data}});
  const std::int64_t count = check_slots(kName, a.slots);
  LOCKSTEP_CHECK(a.slots.empty() || count >= 2 || (count == 0 && rows == 0), kName,
                 ": training needs at least 2 rows, got ", count);
}

void check_operands(const BatchNormInference& a) {
  constexpr const char* kName = "batch_norm_inference";
  const std::int64_t rows = a.x.shape.rows();
  check_alike(kName, {{"x", a.x}, {"residual", a.residual, kOptional}, {"y", a.y, rows}});
  check_present(kName, {{"mean", a.mean, rows}, {"var", a.var, rows}});
}

void check_operands(const BatchNormBackwardReduce& a) {
  constexpr const char* kName = "batch_norm_backward_reduce";
  check_alike(kName, {{"x", a.x}, {"grad_y", a.grad_y}, {"y", a.y, kOptional}});
  check_present(kName, {{"saved", a.saved.data}, {"sums", a.sums}});
  check_parts(kName, a.x.shape.rows(), a.parts);
  check_affine(kName, a.grad_weight, a.grad_bias);
}

void check_operands(const BatchNormBackwardApply& a) {
  constexpr const char* kName = "batch_norm_backward_apply";
  const std::int64_t rows = a.x.shape.rows();
  check_alike(kName, {{"x", a.x},
                      {"grad_y", a.grad_y},
                      {"y", a.y, kOptional},
                      {"grad_x", a.grad_x},
                      {"grad_residual", a.grad_residual, kOptional}});
  check_present(kName, {{"saved", a.saved.data, rows}});
  LOCKSTEP_CHECK(check_slots(kName, a.slots) > 0 || rows == 0, kName,
                 ": the slots count no rows, but x has some");
}

void check_operands(const GroupNormForward& a) {
  constexpr const char* kName = "group_norm_forward";
  const std::int64_t rows = a.x.shape.rows();
  check_alike(kName, {{"x", a.x}, {"residual", a.residual, kOptional}, {"y", a.y}});
  check_present(kName, {{"saved", a.saved, rows}, {"work", a.work, rows}});
  check_groups(kName, a.x.shape, a.groups);
}

void check_operands(const GroupNormBackward& a) {
  constexpr const char* kName = "group_norm_backward";
  const std::int64_t rows = a.x.shape.rows();
  check_alike(kName, {{"x", a.x},
                      {"grad_y", a.grad_y},
                      {"y", a.y, kOptional},
                      {"grad_x", a.grad_x, kOptional},
                      {"grad_residual", a.grad_residual, kOptional}});
  check_present(kName, {{"saved", a.saved, rows}, {"work", a.work, rows}});
  check_groups(kName, a.x.shape, a.groups);
  check_affine(kName, a.grad_weight, a.grad_bias);
}

void check_operands(const BatchRenormCorrection& a) {
  constexpr const char* kName = "batch_renorm_correction";
  check_sizes(kName, {{"channels", a.channels}});
  check_present(kName, {{"running_mean", a.running_mean, a.channels},
                        {"running_var", a.running_var, a.channels},
                        {"correction", a.correction, a.channels},
                        {"corrected", a.corrected, a.channels}});
  LOCKSTEP_CHECK(check_slots(kName, a.slots) > 0, kName, ": the slots count no rows");
}

void check_operands(const BatchRenormGradient& a) {
  constexpr const char* kName = "batch_renorm_gradient";
  check_sizes(kName, {{"channels", a.channels}});
  check_present(kName, {{"corrected", a.corrected, a.channels},
                        {"correction", a.correction, a.channels},
                        {"grad_weight", a.grad_weight, a.channels},
                        {"grad_bias", a.grad_bias, a.channels}});
}

// --- activations

void check_activation_forward(const Tensor& x, const Tensor& y) {
  check_alike("activation_forward", {{"x", x}, {"y", y}});
}

void check_activation_backward(const Tensor& saved, const Tensor& grad_y, const Tensor& grad_x) {
  check_alike("activation_backward", {{"saved", saved}, {"grad_y", grad_y}, {"grad_x", grad_x}});
}

void check_binary_forward(const Tensor& a, const Tensor& b, const Tensor& y) {
  check_alike("binary_forward", {{"a", a}, {"y", y}});
  check_met("binary_forward", a, {"b", b});
}

void check_binary_backward_left(const Tensor& a, const Tensor& b, const Tensor& grad_y,
                                const Tensor& grad_a) {
  check_alike("binary_backward_left", {{"a", a}, {"grad_y", grad_y}, {"grad_a", grad_a}});
  check_met("binary_backward_left", a, {"b", b});
}

void check_binary_backward_right(const Tensor& a, const Tensor& grad_y, const Tensor& grad_b) {
  constexpr const char* kName = "binary_backward_right";
  check_alike(kName, {{"a", a}, {"grad_y", grad_y}});
  check_met(kName, a, {"grad_b", grad_b});
  LOCKSTEP_CHECK(grad_b.shape.batch() == a.shape.batch(), kName,
                 ": the gradient has a row for each of ", a.shape.batch(),
                 " samples, at least, got ", to_string(grad_b.shape));
}

void check_softmax_forward(const Tensor& x, const Tensor& y) {
  check_alike("softmax_forward", {{"x", x}, {"y", y}});
}

void check_softmax_backward(const Tensor& y, const Tensor& grad_y, const Tensor& grad_x) {
  check_alike("softmax_backward", {{"y", y}, {"grad_y", grad_y}, {"grad_x", grad_x}});
}

void check_dropout(const Tensor& x, const Tensor& y, float p) {
  check_alike("dropout", {{"x", x}, {"y", y}});
  LOCKSTEP_CHECK(p >= 0.0F && p < 1.0F, "dropout: expected 0 <= p < 1, got ", p);
}

// --- pooling and interpolation

namespace {

void check_max_pool(const char* operation, const PoolGeometry& geometry, const Operand& x,
                    const Operand& y, const Tensor& winners) {
  check_present(operation, {{"winners", winners}});
  check_windows(operation, geometry, x, y);
  LOCKSTEP_CHECK(
      winners.shape == y.tensor->shape && winners.dtype == DType::kUInt8 && winners.dense(),
      operation, ": expected 'winners' in dense uint8 of shape ", to_string(y.tensor->shape),
      ", got ", to_string(winners.dtype), " of ", to_string(winners.shape), " with row stride ",
      winners.row_stride);
  LOCKSTEP_CHECK(geometry.kernel_h * geometry.kernel_w <= 255, operation,
                 ": the winner's position is stored in a byte; a window of ", geometry.kernel_h,
                 "x", geometry.kernel_w, " has too many");
}

void check_resize(const char* operation, const Operand& x, const Operand& y) {
  check_activations(operation, {x, y});
  const Shape &from = x.tensor->shape, &to = y.tensor->shape;
  LOCKSTEP_CHECK(from.rank() == 4 && to.rank() == 4 && from.batch() == to.batch() &&
                     from.channels() == to.channels(),
                 operation, ": expected images that differ in height and width alone, got ",
                 to_string(from), " for '", x.name, "' and ", to_string(to), " for '", y.name, "'");
}

}  // namespace

void check_max_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y,
                            const Tensor& winners) {
  check_max_pool("max_pool_forward", geometry, {"x", x}, {"y", y}, winners);
}

void check_max_pool_backward(const PoolGeometry& geometry, const Tensor& winners,
                             const Tensor& grad_y, const Tensor& grad_x) {
  check_max_pool("max_pool_backward", geometry, {"grad_x", grad_x}, {"grad_y", grad_y}, winners);
}

void check_avg_pool_forward(const PoolGeometry& geometry, const Tensor& x, const Tensor& y) {
  check_windows("avg_pool_forward", geometry, {"x", x}, {"y", y});
}

void check_avg_pool_backward(const PoolGeometry& geometry, const Tensor& grad_y,
                             const Tensor& grad_x) {
  check_windows("avg_pool_backward", geometry, {"grad_x", grad_x}, {"grad_y", grad_y});
}

void check_resize_forward(const char* operation, const Tensor& x, const Tensor& y) {
  check_resize(operation, {"x", x}, {"y", y});
}

void check_resize_backward(const char* operation, const Tensor& grad_y, const Tensor& grad_x) {
  check_resize(operation, {"grad_x", grad_x}, {"grad_y", grad_y});
}

// --- sums

void check_sum_over_batch(const Tensor& x, const float* slot) {
  check_activations("sum_over_batch", {{"x", x}});
  check_present("sum_over_batch", {{"slot", slot}});
}

void check_broadcast_sum(std::span<const StatSlot> slots, const Tensor& y) {
  check_activations("broadcast_sum", {{"y", y}});
  check_added_slots("broadcast_sum", slots);
}

void check_sum_over_images(const Tensor& x, const float* sum) {
  check_activations("sum_over_images", {{"x", x}});
  check_present("sum_over_images", {{"sum", sum, x.shape.batch()}});
  LOCKSTEP_CHECK(x.dense() && x.dtype == DType::kFloat32,
                 "sum_over_images: expected a dense tensor of fp32, got ", to_string(x.dtype),
                 " of ", to_string(x.shape), " with row stride ", x.row_stride);
}

void check_reset_sums(const double* sums, int count) {
  check_sizes("reset_sums", {{"count", count}});
  check_present("reset_sums", {{"sums", sums, count}});
}

// --- losses

void check_operands(const CrossEntropy& a) {
  constexpr const char* kName = "cross_entropy";
  check_labelled(kName, a.logits, a.labels, a.grad_logits);
  check_present(kName, {{"loss", a.loss, a.logits.shape.rows()}});
  check_sizes(kName, {{"rows_per_weight", a.rows_per_weight, 1}});
}

void check_operands(const ElementLosses& a) {
  constexpr const char* kName = "element_losses";
  check_alike(kName, {{"output", a.output}, {"grad_output", a.grad_output, kOptional}});
  check_present(kName, {{"target", a.target}, {"loss", a.loss, a.output.shape.rows()}});
  LOCKSTEP_CHECK(a.target.shape == a.output.shape && a.target.dtype == DType::kFloat32, kName,
                 ": expected a target in fp32 of shape ", to_string(a.output.shape), ", got ",
                 to_string(a.target.dtype), " of ", to_string(a.target.shape));
  LOCKSTEP_CHECK(a.formula != nullptr, kName, ": expected a formula, got a null pointer");
}

void check_operands(const LabelProbabilities& a) {
  constexpr const char* kName = "label_probabilities";
  check_labelled(kName, a.logits, a.labels);
  check_present(kName, {{"probabilities", a.probabilities, a.logits.shape.rows()}});
}

void check_operands(const OhemCount& a) {
  constexpr const char* kName = "ohem_count";
  check_round(kName, a.round);
  check_sizes(kName, {{"rows", a.rows}, {"samples", a.samples}});
  check_present(kName,
                {{"probabilities", a.probabilities, a.rows}, {"state", a.state}, {"slot", a.slot}});
}

void check_operands(const OhemNarrow& a) {
  constexpr const char* kName = "ohem_narrow";
  check_round(kName, a.round);
  check_sizes(kName, {{"min_kept", a.min_kept}});
  check_present(kName, {{"state", a.state}});
  check_added_slots(kName, a.counts);
}

void check_operands(const OhemChoice& a) {
  constexpr const char* kName = "ohem_choose";
  check_classes(kName, a.classes);
  check_present(kName, {{"labels", a.labels}});
  check_labels(kName, a.labels, a.labels.shape.with_channels(1));
  check_present(kName,
                {{"state", a.state}, {"rows", a.rows, a.labels.shape.rows()}, {"slots", a.slots}});
}

void check_operands(const OhemShare& a) {
  constexpr const char* kName = "ohem_share";
  check_classes(kName, a.classes);
  check_present(kName, {{"state", a.state}});
  check_added_slots(kName, a.weights);
}

void check_operands(const DiceSums& a) {
  check_labelled("dice_sums", a.logits, a.labels);
  check_present("dice_sums", {{"slots", a.slots, a.logits.shape.rows()}});
}

void check_operands(const DiceLosses& a) {
  constexpr const char* kName = "dice_losses";
  check_labelled(kName, a.logits, a.labels, a.grad_logits);
  check_present(kName,
                {{"sums", a.sums, a.logits.shape.rows()}, {"loss", a.loss, a.logits.shape.rows()}});
  if (a.logits.shape.rows() == 0) return;
  const Shape& sums = a.sums.shape;
  const std::int64_t batch = a.logits.shape.batch(), elements = 3 * a.logits.shape.channels() + 1;
  LOCKSTEP_CHECK(a.sums.dense() && a.sums.dtype == DType::kFloat32 &&
                     sums.elements() == sums.batch() * elements &&
                     (sums.batch() == 1 || sums.batch() == batch),
                 kName, ": expected sums in dense fp32 of ", elements,
                 " elements, for all or each of ", batch, " images, got ", to_string(a.sums.dtype),
                 " of ", to_string(sums));
}

void check_confusion_matrix(const Tensor& logits, const Tensor& labels,
                            const std::int64_t* matrix) {
  check_labelled("confusion_matrix", logits, labels);
  check_present("confusion_matrix", {{"matrix", matrix, logits.shape.rows()}});
}

// --- the optimizer

void check_operands(const GradientCheck& a) {
  constexpr const char* kName = "check_gradients";
  check_sizes(kName, {{"elements", a.elements}});
  check_present(kName, {{"grads", a.grads, a.elements}, {"loss", a.loss}, {"guard", a.guard}});
}

void check_optimizer_update(const OptimizerShard& a) {
  constexpr const char* kName = "optimizer_update";
  check_shard(kName, a);
  check_all_present(kName, "losses", a.losses);
  if (a.ranges.empty()) return;
  const std::size_t slots =
      std::visit([](const auto& rule) { return std::size(rule.kSlots); }, a.optimizer);
  check_all_present(kName, "state", std::span<float* const>(a.state).first(slots));
}

void check_gradient_squares(const OptimizerShard& a, const double* squares) {
  check_shard("gradient_squares", a);
  check_present("gradient_squares", {{"squares", squares, std::ssize(a.ranges)}});
}

void check_operands(const ClipFactor& a) {
  check_present("clip_factor", {{"factor", a.factor}});
  for (const GradientSquares& rank : a.squares) {
    check_sizes("clip_factor", {{"first", rank.first}, {"count", rank.count}});
  }
}

void check_operands(const WeightAverage& a) {
  constexpr const char* kName = "average_weights";
  check_sizes(kName, {{"elements", a.elements}});
  check_present(kName, {{"weights", a.weights, a.elements}, {"average", a.average, a.elements}});
  check_all_present(kName, "losses", a.losses);
}

void check_operands(const LossScaleUpdate& a) {
  constexpr const char* kName = "update_loss_scale";
  check_present(kName, {{"state", a.state}});
  check_sizes(kName, {{"growth_interval", a.growth_interval, 1}});
  check_all_present(kName, "guards", a.guards);
}

}  // namespace lockstep
