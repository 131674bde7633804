// Activations of two types in one call, or of a type that a backend does not have, are errors that
// name the types, and never read as something else.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "backend/formulas.h"
#include "backend/operand.h"

namespace lockstep::test {
namespace {

const Shape kTypedShape{1, 2, 2, 4};
const PoolGeometry kWindow{1, 1, 1, 1, 0, 0};

/// Memory of a backend beside the activations.
struct Others {
  Storage winners, labels, floats;
  explicit Others(Backend& backend)
      : winners(backend.allocate(16)), labels(backend.allocate(8)), floats(backend.allocate(256)) {}
  float* numbers() const { return static_cast<float*>(floats.data()); }
  Tensor values() const { return {floats.data(), kTypedShape}; }
  Tensor positions() const { return {winners.data(), kTypedShape, DType::kUInt8}; }
  Tensor classes() const { return {labels.data(), kTypedShape.with_channels(1), DType::kUInt16}; }
};

/// Calls refused(name, operation) for every operation on the activations a and b.
template <typename Refused>
void for_each_operation(Backend& on, const Tensor& a, const Tensor& b, const Refused& refused) {
  const Others o(on);
  float* f = o.numbers();
  const StatSlot slot{4, f};
  const std::span<const StatSlot> slots(&slot, 1);
  refused("activation_forward",
          [&] { on.activations().activation_forward(ActivationKind::kRelu, a, b); });
  refused("activation_backward",
          [&] { on.activations().activation_backward(ActivationKind::kRelu, a, b, a, false); });
  refused("binary_forward", [&] { on.activations().binary_forward(BinaryKind::kAdd, a, a, b); });
  refused("binary_backward_left",
          [&] { on.activations().binary_backward_left(BinaryKind::kMultiply, a, a, a, b, false); });
  refused("binary_backward_right",
          [&] { on.activations().binary_backward_right(BinaryKind::kMultiply, a, b, a, false); });
  refused("softmax_forward", [&] { on.activations().softmax_forward(a, b); });
  refused("softmax_backward", [&] { on.activations().softmax_backward(a, a, b, false); });
  refused("copy", [&] { on.copy(a, b, true); });
  refused("dropout", [&] { on.activations().dropout(a, b, 0.5F, 1, 0, false); });
  refused("max_pool_forward", [&] { on.pooling().max_pool_forward(kWindow, a, b, o.positions()); });
  refused("max_pool_backward",
          [&] { on.pooling().max_pool_backward(kWindow, o.positions(), a, b, true); });
  refused("avg_pool_forward", [&] { on.pooling().avg_pool_forward(kWindow, a, b); });
  refused("avg_pool_backward", [&] { on.pooling().avg_pool_backward(kWindow, a, b, false); });
  refused("adaptive_avg_pool_forward", [&] { on.pooling().adaptive_avg_pool_forward(a, b); });
  refused("adaptive_avg_pool_backward",
          [&] { on.pooling().adaptive_avg_pool_backward(a, b, false); });
  refused("upsample_bilinear_forward",
          [&] { on.pooling().upsample_bilinear_forward(a, b, false); });
  refused("upsample_bilinear_backward",
          [&] { on.pooling().upsample_bilinear_backward(a, b, false, false); });
  refused("cross_entropy", [&] {
    on.losses().cross_entropy(
        {a, o.classes(), 255, nullptr, 1, b, static_cast<double*>(o.floats.data())});
  });
  refused("element_losses", [&] {
    const FormulaOf<SquaredError> formula{SquaredError{}};
    on.losses().element_losses({.formula = &formula,
                                .output = a,
                                .target = o.values(),
                                .grad_output = b,
                                .loss = static_cast<double*>(o.floats.data())});
  });
  refused("batch_norm_forward", [&] {
    on.norms().batch_norm_forward({a, {}, b, {}, slots, 1, EpsMode::kAdd, false, {f + 8}, {}});
  });
  refused("batch_norm_inference", [&] {
    on.norms().batch_norm_inference({a, b, a, {}, f, f + 4, 1, EpsMode::kAdd, false});
  });
  refused("batch_norm_backward_reduce", [&] {
    on.norms().batch_norm_backward_reduce({a, b, {}, {}, {f + 8}, false, f + 32, nullptr, nullptr});
  });
  refused("batch_norm_backward_apply", [&] {
    on.norms().batch_norm_backward_apply({a, a, {}, {}, {f + 8}, false, slots, a, b, false});
  });
}

/// CHECKs that operation() throws an Error that names `wrong`.
template <typename Operation>
void check_refused(const std::string& wrong, const Operation& operation) {
  CHECK_THROWS_WITH_AS(operation(), doctest::Contains(wrong.c_str()), Error);
}

}  // namespace

TEST_CASE("activations of two types are refused") {
  for (NamedBackend& named : available_backends()) {
    for (const DType first : kGpuTypes) {
      for (const DType second : kGpuTypes) {
        if (first == second) continue;
        const Operand a({*named.backend, first}, kTypedShape),
            b({*named.backend, second}, kTypedShape);
        for_each_operation(*named.backend, a.tensor(), b.tensor(),
                           [&](const std::string& name, const auto& operation) {
                             const auto has = [&](DType dtype) {
                               return std::ranges::count(named.types, dtype) > 0;
                             };
                             if (name == "copy" && has(first) && has(second)) return;
                             CAPTURE(named.name);
                             CAPTURE(name);
                             check_refused(to_string(first), operation);
                           });
      }
    }
  }
}

TEST_CASE("activations of a type that a backend does not have are refused") {
  for (NamedBackend& named : available_backends()) {
    Backend& backend = *named.backend;
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kUInt8}) {
      if (std::ranges::count(named.types, dtype) > 0) continue;
      CAPTURE(named.name);
      const Storage memory = backend.allocate(64);
      const Others others(backend);
      const Tensor x(memory.data(), kTypedShape, dtype);
      const auto check = [&](const std::string& name, const auto& operation) {
        CAPTURE(name);
        check_refused(to_string(dtype), operation);
      };
      for_each_operation(backend, x, x, check);
      check("sum_over_batch", [&] { backend.sums().sum_over_batch(x, others.numbers()); });
      check("broadcast_sum", [&] { backend.sums().broadcast_sum({}, x, false); });
      check("batch_norm_moments",
            [&] { backend.norms().batch_norm_moments(x, others.numbers(), 1); });
      check("confusion_matrix", [&] {
        backend.losses().confusion_matrix(x, others.classes(),
                                          static_cast<std::int64_t*>(others.floats.data()));
      });
    }
  }
}

}  // namespace lockstep::test
