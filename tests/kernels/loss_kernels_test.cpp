// Cross-entropy and the confusion matrix of the kernels against the CPU's, and the same bits in
// every order of threads and on every size of GPU.

#include <doctest/doctest.h>

#include <functional>

#include "backend/operand.h"
#include "kernels/emulated_gpu.h"
#include "kernels/loss_results.h"

namespace lockstep::test {
namespace {

struct LossKernelCase {
  Shape logits;
  bool weighted;
  int ignore_index;
  Margins margins;
};

std::vector<LossKernelCase> loss_kernel_cases() {
  return {
      {{2, 20, 31, 11}, true, 255, {}},  {{1, 17, 33, 20}, false, 0, {}},
      {{1, 9, 33, 19}, true, 3, {4, 1}}, {{1, 9, 33, 8}, true, 255, {4, 4}},
      {{1, 5, 60, 33}, false, -1, {}},   {{1, 5, 31, 34}, true, -1, {}},
      {{1, 3, 13, 256}, false, -1, {}},  {{1, 3, 100, 1}, false, 255, {}},
      {{5, 600}, true, 65535, {}},       {{1, 1, 3, 300}, false, 255, {4, 1}},
  };
}

std::vector<std::uint16_t> labels_for(const LossKernelCase& c) {
  std::mt19937 generator(5);
  std::vector<std::uint16_t> labels(static_cast<std::size_t>(c.logits.rows()));
  for (auto& label : labels) {
    label = static_cast<std::uint16_t>(generator() % static_cast<unsigned>(c.logits.channels()));
    if (c.ignore_index >= 0 && generator() % 4 == 0) {
      label = static_cast<std::uint16_t>(c.ignore_index);
    }
  }
  return labels;
}

/// operation(arguments) on the operands of a case.
template <typename Operation>
LossResults cross_entropy_results(const LossKernelCase& c, const Operation& operation,
                                  bool with_gradient = true) {
  const auto cpu = cpu_backend();
  const std::int64_t classes = c.logits.channels();
  const Operand logits(*cpu, c.logits, random_values(c.logits, 1, 3.0F), c.margins);
  const Operand gradient(*cpu, c.logits, c.margins);
  std::vector<std::uint16_t> labels = labels_for(c);
  Values weights = random_values({1, classes}, 2);
  for (float& weight : weights) weight = std::abs(weight);
  LossResults r;
  operation(CrossEntropy{logits.tensor(),
                         Tensor(labels.data(), c.logits.with_channels(1), DType::kUInt16),
                         c.ignore_index, c.weighted ? weights.data() : nullptr, 123.0,
                         with_gradient ? gradient.tensor() : Tensor(), &r.loss});
  r.gradient = gradient.get();
  CHECK(gradient.margins_untouched());
  return r;
}

TEST_CASE("cross-entropy agrees with the CPU and has the same bits in every order") {
  const auto cpu = cpu_backend();
  for (const LossKernelCase& c : loss_kernel_cases()) {
    CAPTURE(to_string(c.logits));
    const LossResults expected = cross_entropy_results(
        c, [&](const CrossEntropy& arguments) { cpu->losses().cross_entropy(arguments); });
    EmulatedGpu some;
    const LossResults result = cross_entropy_results(
        c, [&](const CrossEntropy& arguments) { some.losses().cross_entropy(arguments); });
    CHECK(result.loss == doctest::Approx(expected.loss).epsilon(1e-7));
    CHECK(relative_error(result.gradient, widen(expected.gradient)) < 1e-6);
    check_in_all_orders(result, [&](Backend& emulated) {
      return cross_entropy_results(
          c, [&](const CrossEntropy& arguments) { emulated.losses().cross_entropy(arguments); });
    });
    const LossResults only_loss = cross_entropy_results(
        c, [&](const CrossEntropy& arguments) { some.losses().cross_entropy(arguments); }, false);
    CHECK(only_loss.loss == result.loss);
  }
}

TEST_CASE("a label that is no class makes the loss NaN") {
  const auto cpu = cpu_backend();
  EmulatedGpu emulated;
  const Shape shape{1, 1, 3, 4};
  const Operand logits(*cpu, shape, random_values(shape, 1)), gradient(*cpu, shape);
  std::vector<std::uint16_t> labels{1, 7, 255};
  double loss = 0;
  emulated.losses().cross_entropy({logits.tensor(),
                                   Tensor(labels.data(), {1, 1, 3, 1}, DType::kUInt16), 255,
                                   nullptr, 1, gradient.tensor(), &loss});
  CHECK(std::isnan(loss));
  CHECK(std::isnan(gradient.get()[4]));
  CHECK(std::isfinite(gradient.get()[0]));
}

TEST_CASE("missing barriers and blocks of cross-entropy are seen") {
  const LossKernelCase c{{1, 9, 100, 11}, false, 255, {}};
  const auto run = [&] {
    EmulatedGpu emulated(1);
    return cross_entropy_results(
        c, [&](const CrossEntropy& arguments) { emulated.losses().cross_entropy(arguments); });
  };
  const LossResults expected = run();
  // Two tiles, the block's sum, the ticket and the last block's sum. The first of each of the
  // latter pairs only guards what was read before from what is written next, many switches later.
  for (const int barrier : {0, 1, 2, 3, 5, 7, 9}) {
    CAPTURE(barrier);
    CHECK(is_seen({.skipped_barrier = barrier}, expected, run));
  }
  CHECK(is_seen({.skipped_block = 1}, expected, run));
}

std::vector<std::int64_t> counted(
    const LossKernelCase& c,
    const std::function<void(const Tensor&, const Tensor&, std::int64_t*)>& operation) {
  const auto cpu = cpu_backend();
  Values values = random_values(c.logits, 1, 2.0F);
  for (float& value : values) value = std::round(value);
  const Operand logits(*cpu, c.logits, values, c.margins);
  std::vector<std::uint16_t> labels = labels_for(c);
  const auto classes = static_cast<std::size_t>(c.logits.channels());
  std::vector<std::int64_t> matrix(classes * classes + 1, 1000000000000);
  operation(logits.tensor(), Tensor(labels.data(), c.logits.with_channels(1), DType::kUInt16),
            matrix.data());
  return matrix;
}

TEST_CASE("the confusion matrix is the CPU's, and a missing barrier or block is seen") {
  const auto cpu = cpu_backend();
  for (const LossKernelCase& c : loss_kernel_cases()) {
    CAPTURE(to_string(c.logits));
    const auto expected =
        counted(c, [&](const Tensor& logits, const Tensor& labels, std::int64_t* matrix) {
          cpu->losses().confusion_matrix(logits, labels, matrix);
        });
    const auto on_gpu = [&](Backend& emulated) {
      return counted(c, [&](const Tensor& logits, const Tensor& labels, std::int64_t* matrix) {
        emulated.losses().confusion_matrix(logits, labels, matrix);
      });
    };
    check_in_all_orders(expected, on_gpu);
    EmulatedGpu emulated;
    const auto run = [&] { return on_gpu(emulated); };
    CHECK(is_seen({.skipped_block = 0}, expected, run));
    if (c.logits.channels() == 1 || c.logits.channels() > 32) continue;  // has no barriers
    for (const int barrier : {0, 1}) {
      CAPTURE(barrier);
      CHECK(is_seen({.skipped_barrier = barrier}, expected, run));
    }
  }
}

}  // namespace
}  // namespace lockstep::test
