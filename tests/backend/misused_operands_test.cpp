// Operands of memory, convolutions, norms, activations, pooling and sums that are missing, whose
// rows overlap, whose sizes count nothing, or whose shapes and types do not fit.

#include "backend/operand_misuse.h"

namespace lockstep::test {
namespace {

void misuse_memory(Backend& backend, Memory& memory) {
  const Tensor x = memory.tensor(kImages), y = memory.tensor(kImages);
  std::vector<float> host(static_cast<std::size_t>(kImages.elements()));
  const std::array<Tensor, 1> filled{x};
  check_misuse("fill", filled, [&](const auto& t) { backend.fill(t[0], 1); },
               {{"'tensor'", [](auto& t) { t[0].data = nullptr; }},
                {"'tensor'", [](auto& t) { narrow(t[0]); }}});
  check_nulls("copy", {{"source", x}, {"destination", y}},
              [&](const auto& t) { backend.copy(t[0], t[1], false); });
  const Tensor nowhere(nullptr, kImages);
  CHECK_THROWS_AS(backend.upload(nowhere, host.data()), Error);
  CHECK_THROWS_AS(backend.upload(x, nullptr), Error);
  CHECK_THROWS_AS(backend.download(host.data(), nowhere), Error);
  CHECK_THROWS_AS(backend.download(nullptr, x), Error);
}

void misuse_convolutions(Backend& backend, Memory& memory) {
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
          {"'count'", [](Arguments& a) { a.slots = kNegativeSlots; }},
          {"31 rows are no 2 equal parts", [](Arguments& a) { a.slots = kUnevenSlots; }}};
}

template <typename Arguments>
std::vector<Misuse<Arguments>> with_slots(std::vector<Misuse<Arguments>> all) {
  for (const auto& misuse : wrong_slots<Arguments>()) all.push_back(misuse);
  return all;
}

void misuse_batch_norm(Backend& backend, Memory& memory) {
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

void misuse_other_norms(Backend& backend, Memory& memory) {
  NormOperations& norms = backend.norms();
  const std::array<StatSlot, 1> slots{StatSlot{kRows, memory.floats(2 * kChannels)}};
  using Forward = GroupNormForward;
  Forward forward;
  forward.x = memory.tensor(kImages);
  forward.y = memory.tensor(kImages);
  forward.saved = memory.floats(kImages.batch() * 3 * kChannels);
  forward.work = memory.floats(kImages.batch() * 2 * kChannels);
  check_misuse("group_norm_forward", forward,
               [&](const Forward& a) { norms.group_norm_forward(a); },
               {null("x", &Forward::x),
                null("y", &Forward::y),
                narrowed("residual", &Forward::residual, &Forward::x),
                null("saved", &Forward::saved),
                null("work", &Forward::work),
                {"groups", [](Forward& a) { a.groups = 0; }},
                {"groups", [](Forward& a) { a.groups = 3; }}});
  using Backward = GroupNormBackward;
  Backward backward;
  backward.x = memory.tensor(kImages);
  backward.grad_y = memory.tensor(kImages);
  backward.grad_x = memory.tensor(kImages);
  backward.saved = memory.floats(kImages.batch() * 3 * kChannels);
  backward.work = memory.floats(kImages.batch() * 4 * kChannels);
  check_misuse("group_norm_backward", backward,
               [&](const Backward& a) { norms.group_norm_backward(a); },
               {null("x", &Backward::x),
                null("grad_y", &Backward::grad_y),
                narrowed("y", &Backward::y, &Backward::x),
                narrowed("grad_residual", &Backward::grad_residual, &Backward::x),
                null("saved", &Backward::saved),
                null("work", &Backward::work),
                {"grad_bias", [&](Backward& a) { a.grad_weight = a.saved; }},
                {"groups", [](Backward& a) { a.groups = -1; }}});
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

void misuse_activations(Backend& backend, Memory& memory) {
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
  const Tensor no_channels(nullptr, Shape{4, 0});
  CHECK_THROWS_AS(ops.softmax_forward(no_channels, no_channels), Error);
  CHECK_THROWS_AS(backend.norms().batch_norm_moments(no_channels, a.floats(), 1), Error);
}

void misuse_pooling(Backend& backend, Memory& memory) {
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

void misuse_sums(Backend& backend, Memory& memory) {
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

}  // namespace

TEST_CASE("misused operands of networks are errors that name them") {
  check_everywhere({misuse_memory, misuse_convolutions, misuse_batch_norm, misuse_other_norms,
                    misuse_activations, misuse_pooling, misuse_sums});
}

}  // namespace lockstep::test
