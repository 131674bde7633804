// Operations whose operands are missing, one at a time, whose rows overlap, or whose sizes count
// nothing: each call is an error that names the operation and the operand, and the same call with
// all of them is none.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/formulas.h"
#include "lockstep/core/check.h"
#include "support/backends.h"

namespace lockstep::test {
namespace {

constexpr std::int64_t kRows = 32, kChannels = 4;
const Shape kImages{2, 4, 4, kChannels};
const Shape kPooled{2, 2, 2, kChannels};
const Shape kLabels{2, 4, 4, 1};

/// Memory of a device, as much as a call asks for. It is zero.
class Memory {
 public:
  explicit Memory(Backend& backend) : backend_(backend) {}

  template <typename T>
  T* of(std::int64_t count) {
    held_.push_back(backend_.allocate(static_cast<std::size_t>(count) * sizeof(T)));
    return static_cast<T*>(held_.back().data());
  }
  float* floats(std::int64_t count) { return of<float>(count); }
  Tensor tensor(const Shape& shape, DType dtype = DType::kFloat32) {
    return {of<std::byte>(shape.elements() * static_cast<std::int64_t>(size_of(dtype))), shape,
            dtype};
  }

 private:
  Backend& backend_;
  std::vector<Storage> held_;
};

/// What is wrong with the arguments of a call. `says`: a part of the error. `overlap`: makes the
/// rows of the same operand, when it is a tensor, overlap.
template <typename Arguments>
struct Misuse {
  std::string says;
  std::function<void(Arguments&)> make;
  std::function<void(Arguments&)> overlap = nullptr;
};

/// Rows that overlap by an element.
void narrow(Tensor& tensor) { tensor.row_stride = tensor.shape.channels() - 1; }

template <typename Arguments>
Misuse<Arguments> null(const char* name, Tensor Arguments::*operand) {
  return {concat("'", name, "'"), [operand](Arguments& a) { (a.*operand).data = nullptr; },
          [operand](Arguments& a) { narrow(a.*operand); }};
}

/// An operand that may be missing, made of another one whose rows overlap.
template <typename Arguments>
Misuse<Arguments> narrowed(const char* name, Tensor Arguments::*optional,
                           Tensor Arguments::*other) {
  return {concat("'", name, "'"), [=](Arguments& a) {
            a.*optional = a.*other;
            narrow(a.*optional);
          }};
}

template <typename Arguments, typename T>
Misuse<Arguments> null(const char* name, T* Arguments::*operand) {
  return {concat("'", name, "'"), [operand](Arguments& a) { a.*operand = nullptr; }};
}

template <typename Arguments>
Misuse<Arguments> null_saved() {
  return {"'saved'", [](Arguments& a) { a.saved.data = nullptr; }};
}

template <typename Arguments, typename T>
Misuse<Arguments> size(const char* name, T Arguments::*number, T value) {
  return {concat("'", name, "'"), [number, value](Arguments& a) { a.*number = value; }};
}

/// Something whose memory is not there, in place of spans of it.
const std::array<StatSlot, 2> kNullSlots{StatSlot{0, nullptr}, StatSlot{kRows, nullptr}};
const std::array<StatSlot, 1> kNegativeSlots{StatSlot{-2, nullptr}};
const std::array<const double*, 1> kNullDoubles{nullptr};
const std::array<const float*, 1> kNullGrads{nullptr};
const std::array<float*, 1> kNullWeights{nullptr};

/// `call` with the arguments as they are, and with each misuse.
template <typename Arguments, typename Call>
void check_misuse(const char* operation, const Arguments& good, const Call& call,
                  const std::vector<Misuse<Arguments>>& all) {
  CAPTURE(std::string(operation));
  CHECK_NOTHROW(call(good));
  const auto error_of = [&](const std::function<void(Arguments&)>& make) -> std::string {
    Arguments bad = good;
    make(bad);
    try {
      call(bad);
    } catch (const Error& thrown) {
      return thrown.what();
    }
    return "";
  };
  for (const Misuse<Arguments>& misuse : all) {
    CAPTURE(misuse.says);
    const std::string error = error_of(misuse.make);
    CHECK_MESSAGE(error.find(operation) != std::string::npos, error);
    CHECK_MESSAGE(error.find(misuse.says) != std::string::npos, error);
    if (misuse.overlap == nullptr) continue;
    const std::string overlap = error_of(misuse.overlap);
    CHECK_MESSAGE(overlap.find(concat(operation, ": expected a row stride")) == 0, overlap);
    CHECK_MESSAGE(overlap.find(misuse.says) != std::string::npos, overlap);
  }
}

struct NamedTensor {
  const char* name;
  Tensor tensor;
};

/// `call(tensors)` with each of them null.
template <typename Call>
void check_nulls(const char* operation, const std::vector<NamedTensor>& named, const Call& call) {
  using Tensors = std::vector<Tensor>;
  Tensors good;
  std::vector<Misuse<Tensors>> all;
  for (std::size_t i = 0; i < named.size(); ++i) {
    const std::string says = concat("'", named[i].name, "'");
    good.push_back(named[i].tensor);
    all.push_back({says, [i](Tensors& tensors) { tensors[i].data = nullptr; },
                   [i](Tensors& tensors) { narrow(tensors[i]); }});
    all.push_back({says, [i](Tensors& tensors) { tensors[i] = Tensor(); }});
  }
  check_misuse(operation, good, call, all);
}

void check_memory(Backend& backend, Memory& memory) {
  const Tensor x = memory.tensor(kImages), y = memory.tensor(kImages);
  std::vector<float> host(static_cast<std::size_t>(kImages.elements()));
  check_nulls("fill", {{"tensor", x}}, [&](const auto& t) { backend.fill(t[0], 1); });
  check_nulls("copy", {{"source", x}, {"destination", y}},
              [&](const auto& t) { backend.copy(t[0], t[1], false); });
  const Tensor nowhere(nullptr, kImages);
  CHECK_THROWS_AS(backend.upload(nowhere, host.data()), Error);
  CHECK_THROWS_AS(backend.upload(x, nullptr), Error);
  CHECK_THROWS_AS(backend.download(host.data(), nowhere), Error);
  CHECK_THROWS_AS(backend.download(nullptr, x), Error);
}

void check_convolutions(Backend& backend, Memory& memory) {
  ConvolutionOperations& operations = backend.convolutions();
  const ConvGeometry geometry{.in_channels = kChannels, .out_channels = kChannels};
  operations.prepare_conv2d(geometry, kImages, DType::kFloat32, true, true);
  struct Call {
    Tensor x, y;
    float* weight;
  };
  const Call good{memory.tensor(kImages), memory.tensor(kImages),
                  memory.floats(geometry.weight_elements())};
  const auto x = [](const char* name) { return null(name, &Call::x); };
  const auto y = [](const char* name) { return null(name, &Call::y); };
  const auto weight = [](const char* name) { return null(name, &Call::weight); };
  check_misuse(
      "conv2d_forward", good,
      [&](const Call& c) { operations.conv2d_forward(geometry, c.x, c.weight, nullptr, c.y); },
      {x("x"), y("y"), weight("weight")});
  check_misuse(
      "conv2d_backward_data", good,
      [&](const Call& c) { operations.conv2d_backward_data(geometry, c.y, c.weight, c.x); },
      {x("grad_x"), y("grad_y"), weight("weight")});
  check_misuse("conv2d_backward_weights", good,
               [&](const Call& c) {
                 operations.conv2d_backward_weights(geometry, c.x, c.y, c.weight, nullptr);
               },
               {x("x"), y("grad_y"), weight("grad_weight")});
  for (const auto& wrong :
       {&ConvGeometry::kernel_h, &ConvGeometry::stride_w, &ConvGeometry::dilation_h,
        &ConvGeometry::groups, &ConvGeometry::out_channels}) {
    for (const std::int64_t value : {0, -1}) {
      ConvGeometry bad = geometry;
      bad.*wrong = value;
      const auto& [in, out, of] = good;
      CHECK_THROWS_AS(bad.weight_elements(), Error);
      CHECK_THROWS_AS(operations.conv2d_forward(bad, in, of, nullptr, out), Error);
      CHECK_THROWS_AS(operations.conv2d_backward_data(bad, out, of, in), Error);
      CHECK_THROWS_AS(operations.conv2d_backward_weights(bad, in, out, of, nullptr), Error);
    }
  }
  if (backend.asynchronous()) return;  // GPUs normalise in no convolution
  BatchNormInference normalization;
  normalization.y = good.y;
  normalization.mean = memory.floats(kChannels);
  normalization.var = memory.floats(kChannels);
  check_misuse("conv2d_inference", good,
               [&](const Call& c) {
                 normalization.y = c.y;
                 operations.conv2d_inference(geometry, c.x, c.weight, nullptr, normalization);
               },
               {x("x"), y("y"), weight("weight")});
  normalization.y = good.y;
  check_misuse("conv2d_inference", normalization,
               [&](const BatchNormInference& n) {
                 operations.conv2d_inference(geometry, good.x, good.weight, nullptr, n);
               },
               {null("mean", &BatchNormInference::mean), null("var", &BatchNormInference::var),
                narrowed("residual", &BatchNormInference::residual, &BatchNormInference::y)});
}

template <typename Arguments>
std::vector<Misuse<Arguments>> wrong_slots() {
  return {{"'slot'", [](Arguments& a) { a.slots = kNullSlots; }},
          {"'count'", [](Arguments& a) { a.slots = kNegativeSlots; }}};
}

template <typename Arguments>
std::vector<Misuse<Arguments>> with_slots(std::vector<Misuse<Arguments>> all) {
  for (const auto& misuse : wrong_slots<Arguments>()) all.push_back(misuse);
  return all;
}

void check_batch_norm(Backend& backend, Memory& memory) {
  NormOperations& norms = backend.norms();
  const Tensor x = memory.tensor(kImages), y = memory.tensor(kImages), dy = memory.tensor(kImages);
  float* const slot = memory.floats(2 * kChannels);
  const std::array<StatSlot, 1> slots{StatSlot{kRows, slot}};
  const BatchNormSaved saved{memory.floats(3 * kChannels)};

  check_nulls("batch_norm_moments", {{"x", x}},
              [&](const auto& t) { norms.batch_norm_moments(t[0], slot, 1); });
  CHECK_THROWS_AS(norms.batch_norm_moments(x, nullptr, 1), Error);
  for (const std::int64_t parts : {0, -1, 5}) {
    CHECK_THROWS_AS(norms.batch_norm_moments(x, slot, parts), Error);
  }

  using Forward = BatchNormForward;
  Forward forward;
  forward.x = x;
  forward.y = y;
  forward.slots = slots;
  forward.saved = saved;
  check_misuse(
      "batch_norm_forward", forward, [&](const Forward& a) { norms.batch_norm_forward(a); },
      with_slots<Forward>({null("x", &Forward::x), null("y", &Forward::y),
                           narrowed("residual", &Forward::residual, &Forward::x),
                           null_saved<Forward>()}));
  using Inference = BatchNormInference;
  Inference inference;
  inference.x = x;
  inference.y = y;
  inference.mean = inference.var = memory.floats(kChannels);
  check_misuse(
      "batch_norm_inference", inference, [&](const Inference& a) { norms.batch_norm_inference(a); },
      {null("x", &Inference::x), null("y", &Inference::y), null("mean", &Inference::mean),
       null("var", &Inference::var), narrowed("residual", &Inference::residual, &Inference::x)});
  using Reduce = BatchNormBackwardReduce;
  Reduce reduce;
  reduce.x = x;
  reduce.grad_y = dy;
  reduce.saved = saved;
  reduce.sums = slot;
  reduce.grad_weight = memory.floats(kChannels);
  reduce.grad_bias = memory.floats(kChannels);
  check_misuse("batch_norm_backward_reduce", reduce,
               [&](const Reduce& a) { norms.batch_norm_backward_reduce(a); },
               {null("x", &Reduce::x), null("grad_y", &Reduce::grad_y), null_saved<Reduce>(),
                narrowed("y", &Reduce::y, &Reduce::x), null("sums", &Reduce::sums),
                null("grad_weight", &Reduce::grad_weight), null("grad_bias", &Reduce::grad_bias)});
  for (const std::int64_t parts : {0, -1, 5}) {
    Reduce bad = reduce;
    bad.parts = parts;
    CHECK_THROWS_AS(norms.batch_norm_backward_reduce(bad), Error);
  }
  using Apply = BatchNormBackwardApply;
  Apply apply;
  apply.x = x;
  apply.grad_y = dy;
  apply.saved = saved;
  apply.slots = slots;
  apply.grad_x = y;
  check_misuse(
      "batch_norm_backward_apply", apply,
      [&](const Apply& a) { norms.batch_norm_backward_apply(a); },
      with_slots<Apply>({null("x", &Apply::x), null("grad_y", &Apply::grad_y),
                         null("grad_x", &Apply::grad_x), narrowed("y", &Apply::y, &Apply::x),
                         narrowed("grad_residual", &Apply::grad_residual, &Apply::x),
                         null_saved<Apply>()}));
}

void check_other_norms(Backend& backend, Memory& memory) {
  NormOperations& norms = backend.norms();
  const std::array<StatSlot, 1> slots{StatSlot{kRows, memory.floats(2 * kChannels)}};
  GroupMoments moments{memory.floats(2 * kChannels), kRows, kChannels, 2};
  check_misuse("group_moments", moments, [&](const GroupMoments& a) { norms.group_moments(a); },
               {null("slot", &GroupMoments::slot),
                size("rows", &GroupMoments::rows, std::int64_t{-1}),
                size("channels", &GroupMoments::channels, std::int64_t{-4}),
                {"groups", [](GroupMoments& a) { a.groups = 0; }},
                {"groups", [](GroupMoments& a) { a.groups = 3; }}});
  using Apply = GroupNormBackwardApply;
  Apply apply;
  apply.x = memory.tensor(kImages);
  apply.grad_y = memory.tensor(kImages);
  apply.grad_x = memory.tensor(kImages);
  apply.saved = {memory.floats(3 * kChannels)};
  apply.sums = memory.floats(2 * kChannels);
  check_misuse("group_norm_backward_apply", apply,
               [&](const Apply& a) { norms.group_norm_backward_apply(a); },
               {null("x", &Apply::x),
                null("grad_y", &Apply::grad_y),
                null("grad_x", &Apply::grad_x),
                narrowed("y", &Apply::y, &Apply::x),
                narrowed("grad_residual", &Apply::grad_residual, &Apply::x),
                null("sums", &Apply::sums),
                null_saved<Apply>(),
                {"groups", [](Apply& a) { a.groups = -1; }}});
  using Correction = BatchRenormCorrection;
  Correction correction;
  correction.slots = slots;
  correction.channels = kChannels;
  correction.running_mean = correction.running_var = memory.floats(kChannels);
  correction.correction = memory.floats(2 * kChannels);
  correction.corrected = memory.floats(2 * kChannels);
  check_misuse(
      "batch_renorm_correction", correction,
      [&](const Correction& a) { norms.batch_renorm_correction(a); },
      with_slots<Correction>({null("running_mean", &Correction::running_mean),
                              null("running_var", &Correction::running_var),
                              null("correction", &Correction::correction),
                              null("corrected", &Correction::corrected),
                              size("channels", &Correction::channels, std::int64_t{-1})}));
  using Gradient = BatchRenormGradient;
  Gradient gradient;
  gradient.channels = kChannels;
  gradient.corrected = gradient.correction = memory.floats(2 * kChannels);
  gradient.grad_weight = memory.floats(kChannels);
  gradient.grad_bias = memory.floats(kChannels);
  check_misuse(
      "batch_renorm_gradient", gradient, [&](const Gradient& a) { norms.batch_renorm_gradient(a); },
      {null("corrected", &Gradient::corrected), null("correction", &Gradient::correction),
       null("grad_weight", &Gradient::grad_weight), null("grad_bias", &Gradient::grad_bias),
       size("channels", &Gradient::channels, std::int64_t{-1})});
}

void check_activations(Backend& backend, Memory& memory) {
  ActivationOperations& ops = backend.activations();
  const Tensor a = memory.tensor(kImages), b = memory.tensor(kImages), c = memory.tensor(kImages),
               d = memory.tensor(kImages);
  for (const ActivationKind kind : {ActivationKind::kRelu, ActivationKind::kTanh}) {
    check_nulls("activation_forward", {{"x", a}, {"y", b}},
                [&](const auto& t) { ops.activation_forward(kind, t[0], t[1]); });
    check_nulls("activation_backward", {{"saved", a}, {"grad_y", b}, {"grad_x", c}},
                [&](const auto& t) { ops.activation_backward(kind, t[0], t[1], t[2], false); });
  }
  for (const BinaryKind kind : {BinaryKind::kAdd, BinaryKind::kPRelu}) {
    check_nulls("binary_forward", {{"a", a}, {"b", b}, {"y", c}},
                [&](const auto& t) { ops.binary_forward(kind, t[0], t[1], t[2]); });
    check_nulls(
        "binary_backward_left", {{"a", a}, {"b", b}, {"grad_y", c}, {"grad_a", d}},
        [&](const auto& t) { ops.binary_backward_left(kind, t[0], t[1], t[2], t[3], true); });
    check_nulls("binary_backward_right", {{"a", a}, {"grad_y", b}, {"grad_b", c}},
                [&](const auto& t) { ops.binary_backward_right(kind, t[0], t[1], t[2], true); });
  }
  check_nulls("softmax_forward", {{"x", a}, {"y", b}},
              [&](const auto& t) { ops.softmax_forward(t[0], t[1]); });
  check_nulls("softmax_backward", {{"y", a}, {"grad_y", b}, {"grad_x", c}},
              [&](const auto& t) { ops.softmax_backward(t[0], t[1], t[2], false); });
  check_nulls("dropout", {{"x", a}, {"y", b}},
              [&](const auto& t) { ops.dropout(t[0], t[1], 0.5F, 1, 0, false); });
  const Tensor other = memory.tensor(kPooled);
  CHECK_THROWS_AS(ops.activation_forward(ActivationKind::kRelu, a, other), Error);
  CHECK_THROWS_AS(ops.binary_forward(BinaryKind::kAdd, a, other, b), Error);
  CHECK_THROWS_AS(ops.softmax_backward(a, other, b, false), Error);
  for (const float p : {-0.5F, 1.0F}) {
    CHECK_THROWS_AS(ops.dropout(a, b, p, 1, 0, false), Error);
  }
}

void check_pooling(Backend& backend, Memory& memory) {
  PoolingOperations& ops = backend.pooling();
  const Tensor x = memory.tensor(kImages), y = memory.tensor(kPooled),
               winners = memory.tensor(kPooled, DType::kUInt8);
  const PoolGeometry geometry;
  check_nulls("max_pool_forward", {{"x", x}, {"y", y}, {"winners", winners}},
              [&](const auto& t) { ops.max_pool_forward(geometry, t[0], t[1], t[2]); });
  check_nulls("max_pool_backward", {{"winners", winners}, {"grad_y", y}, {"grad_x", x}},
              [&](const auto& t) { ops.max_pool_backward(geometry, t[0], t[1], t[2], false); });
  check_nulls("avg_pool_forward", {{"x", x}, {"y", y}},
              [&](const auto& t) { ops.avg_pool_forward(geometry, t[0], t[1]); });
  check_nulls("avg_pool_backward", {{"grad_y", y}, {"grad_x", x}},
              [&](const auto& t) { ops.avg_pool_backward(geometry, t[0], t[1], false); });
  check_nulls("adaptive_avg_pool_forward", {{"x", x}, {"y", y}},
              [&](const auto& t) { ops.adaptive_avg_pool_forward(t[0], t[1]); });
  check_nulls("adaptive_avg_pool_backward", {{"grad_y", y}, {"grad_x", x}},
              [&](const auto& t) { ops.adaptive_avg_pool_backward(t[0], t[1], false); });
  check_nulls("upsample_bilinear_forward", {{"x", y}, {"y", x}},
              [&](const auto& t) { ops.upsample_bilinear_forward(t[0], t[1], false); });
  check_nulls("upsample_bilinear_backward", {{"grad_y", x}, {"grad_x", y}},
              [&](const auto& t) { ops.upsample_bilinear_backward(t[0], t[1], false, false); });
  for (const PoolGeometry& wrong :
       {PoolGeometry{.kernel_h = 0}, PoolGeometry{.stride_w = 0}, PoolGeometry{.padding_h = -1},
        PoolGeometry{.kernel_h = 99}, PoolGeometry{.stride_h = 1}}) {
    CHECK_THROWS_AS(ops.max_pool_forward(wrong, x, y, winners), Error);
    CHECK_THROWS_AS(ops.max_pool_backward(wrong, winners, y, x, false), Error);
    CHECK_THROWS_AS(ops.avg_pool_forward(wrong, x, y), Error);
    CHECK_THROWS_AS(ops.avg_pool_backward(wrong, y, x, false), Error);
  }
  const Tensor flat(nullptr, Shape{2, 0, 4, kChannels});
  CHECK_THROWS_AS(ops.adaptive_avg_pool_forward(x, flat), Error);
  CHECK_THROWS_AS(ops.adaptive_avg_pool_backward(flat, x, false), Error);
  CHECK_THROWS_AS(ops.adaptive_avg_pool_forward(x, memory.tensor({2, kChannels})), Error);
  CHECK_THROWS_AS(ops.upsample_bilinear_forward(y, memory.tensor({3, 4, 4, kChannels}), true),
                  Error);
}

void check_sums(Backend& backend, Memory& memory) {
  SumOperations& sums = backend.sums();
  const Tensor x = memory.tensor(kImages);
  const std::int64_t elements = kImages.elements() / 2;
  float* const slot = memory.floats(2 * elements);
  const std::array<StatSlot, 1> slots{StatSlot{2, slot}};
  const std::array<StatSlot, 1> no_parts{StatSlot{2, slot, 0}};
  check_nulls("sum_over_batch", {{"x", x}},
              [&](const auto& t) { sums.sum_over_batch(t[0], slot); });
  check_nulls("sum_over_images", {{"x", x}},
              [&](const auto& t) { sums.sum_over_images(t[0], slot); });
  check_nulls("broadcast_sum", {{"y", x}},
              [&](const auto& t) { sums.broadcast_sum(slots, t[0], false); });
  CHECK_THROWS_AS(sums.sum_over_batch(x, nullptr), Error);
  CHECK_THROWS_AS(sums.sum_over_images(x, nullptr), Error);
  CHECK_THROWS_AS(sums.broadcast_sum(kNullSlots, x, false), Error);
  CHECK_THROWS_AS(sums.broadcast_sum(no_parts, x, false), Error);
  CHECK_THROWS_AS(sums.reset_sums(nullptr, 1), Error);
  CHECK_THROWS_AS(sums.reset_sums(memory.of<double>(1), -1), Error);
  CHECK_NOTHROW(sums.reset_sums(nullptr, 0));
}

void check_mean_losses(Backend& backend, Memory& memory) {
  LossOperations& losses = backend.losses();
  const Tensor logits = memory.tensor(kImages), other = memory.tensor(kPooled);
  const Tensor labels = memory.tensor(kLabels, DType::kUInt16);
  CrossEntropy entropy;
  entropy.logits = logits;
  entropy.labels = labels;
  entropy.grad_logits = memory.tensor(kImages);
  entropy.loss = memory.of<double>(1);
  check_misuse("cross_entropy", entropy, [&](const CrossEntropy& a) { losses.cross_entropy(a); },
               {null("logits", &CrossEntropy::logits), null("labels", &CrossEntropy::labels),
                null("loss", &CrossEntropy::loss),
                narrowed("grad_logits", &CrossEntropy::grad_logits, &CrossEntropy::logits),
                size("rows_per_weight", &CrossEntropy::rows_per_weight, std::int64_t{0}),
                size("rows_per_weight", &CrossEntropy::rows_per_weight, std::int64_t{-1})});
  using Squares = MeanSquaredError;
  Squares squares;
  squares.output = logits;
  squares.target = memory.tensor(kImages);
  squares.grad_output = memory.tensor(kImages);
  squares.loss = entropy.loss;
  check_misuse("mean_squared_error", squares,
               [&](const Squares& a) { losses.mean_squared_error(a); },
               {null("output", &Squares::output), null("target", &Squares::target),
                null("loss", &Squares::loss),
                narrowed("grad_output", &Squares::grad_output, &Squares::output)});
  using Elements = ElementLosses;
  const FormulaOf<AbsoluteError> formula{AbsoluteError{}};
  Elements elements;
  elements.formula = &formula;
  elements.output = logits;
  elements.target = squares.target;
  elements.grad_output = memory.tensor(kImages);
  elements.loss = entropy.loss;
  check_misuse("element_losses", elements, [&](const Elements& a) { losses.element_losses(a); },
               {null("output", &Elements::output),
                null("target", &Elements::target),
                null("loss", &Elements::loss),
                narrowed("grad_output", &Elements::grad_output, &Elements::output),
                {"formula", [](Elements& a) { a.formula = nullptr; }}});
  entropy.labels = other;
  squares.target = other;
  elements.target = other;
  CHECK_THROWS_AS(losses.cross_entropy(entropy), Error);
  CHECK_THROWS_AS(losses.mean_squared_error(squares), Error);
  CHECK_THROWS_AS(losses.element_losses(elements), Error);

  auto* const matrix = memory.of<std::int64_t>(kChannels * kChannels);
  check_nulls("confusion_matrix", {{"logits", logits}, {"labels", labels}},
              [&](const auto& t) { losses.confusion_matrix(t[0], t[1], matrix); });
  CHECK_THROWS_AS(losses.confusion_matrix(logits, labels, nullptr), Error);
  CHECK_THROWS_AS(losses.confusion_matrix(logits, other, matrix), Error);
}

void check_ohem(Backend& backend, Memory& memory) {
  LossOperations& losses = backend.losses();
  auto* const state = memory.of<OhemState>(1);
  using Probabilities = LabelProbabilities;
  Probabilities probabilities;
  probabilities.logits = memory.tensor(kImages);
  probabilities.labels = memory.tensor(kLabels, DType::kUInt16);
  probabilities.probabilities = memory.floats(kRows);
  check_misuse("label_probabilities", probabilities,
               [&](const Probabilities& a) { losses.label_probabilities(a); },
               {null("logits", &Probabilities::logits), null("labels", &Probabilities::labels),
                null("probabilities", &Probabilities::probabilities)});
  float* const slot = memory.floats(2 * kOhemCounts);
  OhemCount count{0, probabilities.probabilities, kRows, 2, state, slot};
  check_misuse("ohem_count", count, [&](const OhemCount& a) { losses.ohem_count(a); },
               {null("probabilities", &OhemCount::probabilities),
                null("state", &OhemCount::state),
                null("slot", &OhemCount::slot),
                size("rows", &OhemCount::rows, std::int64_t{-1}),
                size("samples", &OhemCount::samples, std::int64_t{-1}),
                {"got 3", [](OhemCount& a) { a.round = kOhemRounds; }},
                {"got -1", [](OhemCount& a) { a.round = -1; }}});
  const std::array<StatSlot, 1> counts{StatSlot{2, slot}};
  OhemNarrow narrow;
  narrow.counts = counts;
  narrow.state = state;
  check_misuse("ohem_narrow", narrow, [&](const OhemNarrow& a) { losses.ohem_narrow(a); },
               {null("state", &OhemNarrow::state),
                {"'slot'", [](OhemNarrow& a) { a.counts = kNullSlots; }},
                size("min_kept", &OhemNarrow::min_kept, std::int64_t{-1}),
                {"got 3", [](OhemNarrow& a) { a.round = kOhemRounds; }}});
  OhemChoice choice;
  choice.labels = probabilities.labels;
  choice.classes = kChannels;
  choice.state = state;
  choice.rows = probabilities.probabilities;
  choice.slots = memory.floats(2 * 4 * kChannels);
  check_misuse("ohem_choose", choice, [&](const OhemChoice& a) { losses.ohem_choose(a); },
               {null("labels", &OhemChoice::labels), null("state", &OhemChoice::state),
                null("rows", &OhemChoice::rows), null("slots", &OhemChoice::slots),
                size("classes", &OhemChoice::classes, std::int64_t{0})});
  const std::array<StatSlot, 1> weights{StatSlot{2, choice.slots}};
  OhemShare share;
  share.weights = weights;
  share.classes = kChannels;
  share.state = state;
  check_misuse("ohem_share", share, [&](const OhemShare& a) { losses.ohem_share(a); },
               {null("state", &OhemShare::state),
                {"'slot'", [](OhemShare& a) { a.weights = kNullSlots; }},
                size("classes", &OhemShare::classes, std::int64_t{-1})});
}

void check_dice(Backend& backend, Memory& memory) {
  LossOperations& losses = backend.losses();
  constexpr std::int64_t kElements = 3 * kChannels + 1;
  DiceSums sums;
  sums.logits = memory.tensor(kImages);
  sums.labels = memory.tensor(kLabels, DType::kUInt16);
  sums.slots = memory.floats(2 * 2 * kElements);
  check_misuse("dice_sums", sums, [&](const DiceSums& a) { losses.dice_sums(a); },
               {null("logits", &DiceSums::logits), null("labels", &DiceSums::labels),
                null("slots", &DiceSums::slots)});
  DiceLosses dice;
  dice.logits = sums.logits;
  dice.labels = sums.labels;
  dice.sums = memory.tensor({2, kElements});
  dice.grad_logits = memory.tensor(kImages);
  dice.loss = memory.of<double>(1);
  check_misuse("dice_losses", dice, [&](const DiceLosses& a) { losses.dice_losses(a); },
               {null("logits", &DiceLosses::logits),
                null("labels", &DiceLosses::labels),
                null("sums", &DiceLosses::sums),
                null("loss", &DiceLosses::loss),
                narrowed("grad_logits", &DiceLosses::grad_logits, &DiceLosses::logits),
                {"for all or each of 2 images",
                 [](DiceLosses& a) {
                   a.sums.shape = {2, 3};
                 }},
                {"for all or each of 2 images", [](DiceLosses& a) {
                   a.sums.shape = {3, kElements};
                 }}});
}

void check_optimizer(Backend& backend, Memory& memory) {
  OptimizerOperations& ops = backend.optimizer();
  constexpr std::int64_t kCount = 8;
  float* const memory_of_rank = memory.floats(kCount);
  const std::array<const float*, 1> grads{memory.floats(kCount)};
  const std::array<float*, 1> weights{memory_of_rank};
  const std::array<const double*, 1> losses{memory.of<double>(1)};
  const std::array<ParameterRange, 1> ranges{ParameterRange{0, kCount}};
  static constexpr std::array<ParameterRange, 1> kNegative{ParameterRange{-4, 4}};
  static constexpr std::array<ParameterRange, 1> kBackwards{ParameterRange{4, 2}};
  static constexpr std::array<ParameterRange, 2> kOverlapping{ParameterRange{0, 4},
                                                              ParameterRange{2, 8}};
  double* const guard = memory.of<double>(1);

  GradientCheck gradients{grads[0], kCount, losses[0], guard};
  check_misuse("check_gradients", gradients,
               [&](const GradientCheck& a) { ops.check_gradients(a); },
               {null("grads", &GradientCheck::grads), null("loss", &GradientCheck::loss),
                null("guard", &GradientCheck::guard),
                size("elements", &GradientCheck::elements, std::int64_t{-1})});

  using Shard = OptimizerShard;
  Shard shard{.grads = grads, .weights = weights, .ranges = ranges, .losses = losses};
  shard.optimizer = AdamW{};
  shard.state = {memory.floats(kCount), memory.floats(kCount)};
  const std::vector<Misuse<Shard>> of_both{
      {"'grads[0]'", [](Shard& a) { a.grads = kNullGrads; }},
      {"'weights[0]'", [](Shard& a) { a.weights = kNullWeights; }},
      {"got 0", [](Shard& a) { a.grads = {}; }},
      {"got 1 and 0", [](Shard& a) { a.weights = {}; }},
      {"[-4, 4)", [](Shard& a) { a.ranges = kNegative; }},
      {"[4, 2)", [](Shard& a) { a.ranges = kBackwards; }},
      {"[2, 8)", [](Shard& a) { a.ranges = kOverlapping; }}};
  std::vector<Misuse<Shard>> of_update = of_both;
  of_update.push_back({"'losses[0]'", [](Shard& a) { a.losses = kNullDoubles; }});
  of_update.push_back({"'state[0]'", [](Shard& a) { a.state[0] = nullptr; }});
  of_update.push_back({"'state[1]'", [](Shard& a) { a.state[1] = nullptr; }});
  double* const squares = memory.of<double>(1);
  check_misuse(
      "optimizer_update", shard, [&](const Shard& a) { ops.optimizer_update(a); }, of_update);
  check_misuse(
      "gradient_squares", shard, [&](const Shard& a) { ops.gradient_squares(a, squares); },
      of_both);
  CHECK_THROWS_AS(ops.gradient_squares(shard, nullptr), Error);

  const std::array<GradientSquares, 1> of_rank{GradientSquares{squares, 0, 1}};
  static constexpr std::array<GradientSquares, 1> kNone{GradientSquares{nullptr, 0, -1}};
  ClipFactor clip{of_rank, 1, memory.floats(1)};
  check_misuse(
      "clip_factor", clip, [&](const ClipFactor& a) { ops.clip_factor(a); },
      {null("factor", &ClipFactor::factor), {"'count'", [](ClipFactor& a) { a.squares = kNone; }}});
  using Average = WeightAverage;
  Average average{memory_of_rank, memory.floats(kCount), kCount};
  average.losses = losses;
  check_misuse("average_weights", average, [&](const Average& a) { ops.average_weights(a); },
               {null("weights", &Average::weights),
                null("average", &Average::average),
                size("elements", &Average::elements, std::int64_t{-1}),
                {"'losses[0]'", [](Average& a) { a.losses = kNullDoubles; }}});
  const std::array<const double*, 1> guards{guard};
  LossScaleUpdate scale{guards, memory.of<LossScaleState>(1)};
  check_misuse("update_loss_scale", scale,
               [&](const LossScaleUpdate& a) { ops.update_loss_scale(a); },
               {null("state", &LossScaleUpdate::state),
                size("growth_interval", &LossScaleUpdate::growth_interval, std::int64_t{0}),
                {"'guards[0]'", [](LossScaleUpdate& a) { a.guards = kNullDoubles; }}});
}

}  // namespace

TEST_CASE("misused operands of every operation are errors that name them") {
  for (NamedBackend& named : available_backends()) {
    CAPTURE(named.name);
    Memory memory(*named.backend);
    for (const auto& check :
         {check_memory, check_convolutions, check_batch_norm, check_other_norms, check_activations,
          check_pooling, check_sums, check_mean_losses, check_ohem, check_dice, check_optimizer}) {
      check(*named.backend, memory);
    }
    CHECK_NOTHROW(named.backend->synchronize());
  }
}

}  // namespace lockstep::test
