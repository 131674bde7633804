// The kernels of losses of elements and of a modulated cross-entropy against the CPU's, and the
// same bits in every order of threads and on every size of GPU.

#include <doctest/doctest.h>

#include "backend/formulas.h"
#include "backend/operand.h"
#include "kernels/emulated_gpu.h"
#include "kernels/loss_results.h"
#include "lockstep/nn/loss.h"

namespace lockstep::test {
namespace {

const Values kSampleWeights{0.5F, 2, 1};

template <typename Formula>
LossResults element_results(Backend& backend, const Formula& of_elements, const Shape& shape,
                            Margins margins) {
  const auto cpu = cpu_backend();
  const Operand output(*cpu, shape, random_values(shape, 1), margins);
  const Operand target(*cpu, shape, random_values(shape, 2)), gradient(*cpu, shape, margins);
  const FormulaOf<Formula> formula(of_elements);
  LossResults r;
  ElementLosses arguments;
  arguments.formula = &formula;
  arguments.output = output.tensor();
  arguments.target = target.tensor();
  arguments.normalizer = 123.0;
  arguments.sample_weights = kSampleWeights.data();
  arguments.grad_output = gradient.tensor();
  arguments.loss = &r.loss;
  backend.losses().element_losses(arguments);
  r.gradient = gradient.get();
  CHECK(gradient.margins_untouched());
  return r;
}

LossResults focal_results(Backend& backend, const Shape& shape) {
  const auto cpu = cpu_backend();
  const Operand logits(*cpu, shape, random_values(shape, 1)), gradient(*cpu, shape);
  std::vector<std::uint16_t> labels;
  for (std::int64_t row = 0; row < shape.rows(); ++row) {
    labels.push_back(static_cast<std::uint16_t>(row % shape.channels()));
  }
  LossResults r;
  CrossEntropy arguments;
  arguments.logits = logits.tensor();
  arguments.labels = Tensor(labels.data(), shape.with_channels(1), DType::kUInt16);
  arguments.normalizer = 123.0;
  arguments.label_smoothing = 0.1F;
  arguments.gamma = 1.5F;
  arguments.row_weights = kSampleWeights.data();
  arguments.rows_per_weight = shape.rows_per_sample();
  arguments.grad_logits = gradient.tensor();
  arguments.loss = &r.loss;
  backend.losses().cross_entropy(arguments);
  r.gradient = gradient.get();
  return r;
}

/// What the choice of hard pixels comes to.
struct OhemResults {
  Values rows;
  float threshold = 0;
  double normalizer = 0;
  friend bool operator==(const OhemResults&, const OhemResults&) = default;
};

OhemResults ohem_results(Backend& backend, const Shape& shape, std::int64_t min_kept) {
  const auto cpu = cpu_backend();
  const Operand logits(*cpu, shape, random_values(shape, 1));
  std::vector<std::uint16_t> labels;
  for (std::int64_t row = 0; row < shape.rows(); ++row) {
    labels.push_back(static_cast<std::uint16_t>(row % shape.channels()));
  }
  const Tensor of_pixels(labels.data(), shape.with_channels(1), DType::kUInt16);
  OhemResults r;
  r.rows.resize(labels.size());
  OhemState state;
  backend.losses().label_probabilities({logits.tensor(), of_pixels, 1, r.rows.data()});
  Values slot(static_cast<std::size_t>(2 * kOhemCounts));
  const StatSlot counts{shape.batch(), slot.data()};
  for (int round = 0; round < kOhemRounds; ++round) {
    backend.losses().ohem_count(
        {round, r.rows.data(), shape.rows(), shape.batch(), &state, slot.data()});
    backend.losses().ohem_narrow({round, {&counts, 1}, min_kept, 0, &state});
  }
  Values weights(static_cast<std::size_t>(shape.batch() * 4 * shape.channels()));
  OhemChoice choice;
  choice.labels = of_pixels;
  choice.classes = shape.channels();
  Values of_samples;
  for (std::int64_t n = 0; n < shape.batch(); ++n) {
    of_samples.push_back(0.5F * static_cast<float>(1 + n % 3));
  }
  choice.sample_weights = of_samples.data();
  choice.state = &state;
  choice.rows = r.rows.data();
  choice.slots = weights.data();
  backend.losses().ohem_choose(choice);
  const StatSlot by_class{shape.batch(), weights.data(), shape.batch()};
  backend.losses().ohem_share({{&by_class, 1}, shape.channels(), nullptr, 7.0, &state});
  r.threshold = state.threshold;
  r.normalizer = state.normalizer;
  return r;
}

TEST_CASE("losses of elements agree with the CPU and have the same bits in every order") {
  const auto cpu = cpu_backend();
  for (const Shape& shape :
       {Shape{3, 20, 31, 11}, Shape{2, 40, 30, 16}, Shape{3, 7}, Shape{2, 3, 5, 7, 4}}) {
    for (const Margins& margins : {Margins{}, Margins{4, 4}}) {
      CAPTURE(to_string(shape));
      const auto check = [&](const auto& formula) {
        const auto on = [&](Backend& backend) {
          return element_results(backend, formula, shape, margins);
        };
        const LossResults expected = on(*cpu);
        EmulatedGpu some;
        const LossResults result = on(some);
        CHECK(result.loss == doctest::Approx(expected.loss).epsilon(1e-12));
        CHECK(result.gradient == expected.gradient);
        check_in_all_orders(result, on);
      };
      check(SquaredError{});
      check(HuberError{0.75F});
    }
  }
}

TEST_CASE("a modulated cross-entropy agrees with the CPU and has the same bits in every order") {
  const auto cpu = cpu_backend();
  for (const Shape& shape : {Shape{3, 12, 17, 11}, Shape{2, 20, 30, 16}}) {
    CAPTURE(to_string(shape));
    const auto on = [&](Backend& backend) { return focal_results(backend, shape); };
    const LossResults expected = on(*cpu);
    EmulatedGpu some;
    const LossResults result = on(some);
    CHECK(result.loss == doctest::Approx(expected.loss).epsilon(1e-6));
    CHECK(relative_error(result.gradient, widen(expected.gradient)) < 1e-5);
    check_in_all_orders(result, on);
  }
}

TEST_CASE("the choice of hard pixels has the same bits in every order, and misses no barrier") {
  for (const Shape& shape : {Shape{3, 20, 31, 11}, Shape{2, 40, 30, 3}}) {
    CAPTURE(to_string(shape));
    const auto on = [&](Backend& backend) { return ohem_results(backend, shape, 100); };
    EmulatedGpu some(3, true);
    const OhemResults result = on(some);
    check_in_all_orders(result, on);
  }
  // More images than a launch has blocks for.
  const auto run = [&] {
    EmulatedGpu emulated(1);
    return ohem_results(emulated, {130, 2, 20, 5}, 10);
  };
  const OhemResults expected = run();
  // Behind the zeros, and before the counts of blocks are added up.
  for (const int barrier : {0, 1}) {
    CAPTURE(barrier);
    CHECK(is_seen({.skipped_barrier = barrier}, expected, run));
  }
  CHECK(is_seen({.skipped_block = 1}, expected, run));
}

TEST_CASE("missing barriers and blocks of losses of elements are seen") {
  const auto run = [&] {
    EmulatedGpu emulated(1);
    return element_results(emulated, HuberError{0.75F}, {2, 20, 50, 5}, {});
  };
  const LossResults expected = run();
  // The block's sum, the ticket and the last block's sum; the first of each pair only guards what
  // was read before from what is written next.
  for (const int barrier : {1, 3, 5}) {
    CAPTURE(barrier);
    CHECK(is_seen({.skipped_barrier = barrier}, expected, run));
  }
  CHECK(is_seen({.skipped_block = 1}, expected, run));
}

/// A user's, which there is no kernel for.
struct OwnFormula {
  LossElement operator()(float output, float target, std::int64_t channel) const {
    const float d = output - target, weight = 1.0F + 0.3F * static_cast<float>(channel);
    return {static_cast<double>(weight * d) * static_cast<double>(d), 2 * weight * d};
  }
};

struct OwnResults {
  double loss = 0.25;
  Doubles image_losses = {1, 0, -1};
  Values gradient;
  friend bool operator==(const OwnResults&, const OwnResults&) = default;
};

/// Of a node with this formula, of an output whose values every type can hold.
OwnResults own_results(Backend& backend, DType dtype, bool gradient_wanted) {
  const Shape shape{3, 5, 4, 3};
  ParameterStore store;
  NetworkBuilder net(backend, store);
  const auto network = net.build(net.relu(net.input(shape)), {.training = true});
  const auto node = Loss(ElementwiseLoss<OwnFormula>{}).make_node({"out", *network, 0});
  CHECK(node->needs_host() == backend.asynchronous());

  Values values = random_values(shape, 1);
  for (float& value : values) value = stored(DType::kBFloat16, stored(DType::kFloat16, value));
  const TypedBackend on(backend, dtype);
  const Operand output(on, shape, values, Margins{2, 3});
  const Operand gradient(on, shape, Margins{1, 0});
  const Operand target(TypedBackend(backend), shape, random_values(shape, 2));
  const double elements = 100;
  const float scale = 4;
  OwnResults r;
  node->compute({.output = output.tensor(),
                 .target = target.tensor(),
                 .grad_output = gradient_wanted ? gradient.tensor() : Tensor(),
                 .sample_weights = kSampleWeights.data(),
                 .normalizer = {23.0, &elements},
                 .grad_scale = {0.0F, &scale},
                 .loss = &r.loss,
                 .image_losses = r.image_losses.data()});
  r.gradient = gradient.get();
  CHECK(gradient.margins_untouched());
  return r;
}

}  // namespace
TEST_CASE("a formula without a kernel: the host computes it to the CPU's bits, in any type") {
  for (const bool gradient : {true, false}) {
    CAPTURE(gradient);
    const OwnResults expected = own_results(*cpu_backend(), DType::kFloat32, gradient);
    CHECK(expected.loss > 0.25);
    for (const DType dtype : kGpuTypes) {
      CAPTURE(std::string(to_string(dtype)));
      EmulatedGpu emulated(3, true);
      OwnResults rounded = expected;
      for (float& value : rounded.gradient) value = stored(dtype, value);
      CHECK(own_results(emulated, dtype, gradient) == rounded);
    }
  }
}

}  // namespace lockstep::test
