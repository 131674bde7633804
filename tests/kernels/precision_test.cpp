// Networks whose activations are bf16 or fp16, on the emulated GPU, against the same networks in
// fp32. A stored value is rounded to 8 or 11 bits, that is by at most 2^-8 or 2^-11 of itself.

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "backend/cuda_backends.h"
#include "kernels/emulated_gpu.h"
#include "lockstep/core/check.h"
#include "lockstep/nn/models.h"
#include "nn/harness.h"
#include "step/toy_training.h"
#include "support/backends.h"
#include "sync/transport.h"

namespace lockstep::test {
namespace {

// A value passes 15 rounded activations and 7 rounded weights on its way through kSmall. Their
// errors are independent, so that they grow with the root of their number.
const double kBf16ForwardTolerance = std::sqrt(15 + 7) * 0x1p-8;
// A value within its error of zero may change sides, and with it the ReLU's mask, which is an error
// of the whole gradient there. A share of about kBf16ForwardTolerance does, at each of 6 ReLUs.
const double kBf16BackwardTolerance = std::sqrt(6 * kBf16ForwardTolerance);

std::unique_ptr<Backend> emulated_backend() {
  return std::move(available_backends().front().backend);
}

/// A U-Net with random parameters, the same ones for every type.
struct Unet {
  const std::unique_ptr<Backend> backend;
  ParameterStore store;
  std::unique_ptr<Network> network;

  Unet(const UnetOptions& options, const Shape& input, const PlanOptions& plan,
       const NormLayer& norm = {}, std::unique_ptr<Backend> on = emulated_backend())
      : backend(std::move(on)),
        network(build_network(unet(options), norm, input, plan, *backend, store)) {
    initialize_parameters(store, *backend, 3);
  }

  /// Values of an activation or a gradient, of any type.
  Floats get(const Tensor& tensor) {
    const Storage memory =
        backend->allocate(sizeof(float) * static_cast<std::size_t>(tensor.shape.elements()));
    const Tensor wide(memory.data(), tensor.shape);
    backend->copy(tensor, wide, false);
    return download(*backend, wide);
  }
  void put(const Tensor& tensor, const Floats& values) {
    const Storage wide = backend->allocate(values.size() * sizeof(float));
    backend->upload(Tensor(wide.data(), tensor.shape), values.data());
    backend->copy(Tensor(wide.data(), tensor.shape), tensor, false);
    backend->synchronize();
  }
  Floats gradients() { return download(*backend, store.grads(), store.elements()); }
  Floats gradient(const char* name) {
    const Parameter* parameter = store.find(name);
    REQUIRE(parameter != nullptr);
    return download(*backend, parameter->grad, parameter->elements);
  }

  /// The output; afterwards the parameters' gradients have grown by those of a random projection.
  Floats step(std::uint32_t seed, const StepContext& context = {}) {
    put(network->input(), random_floats(network->input().shape.elements(), seed));
    network->forward(context);
    Floats output = get(network->output());
    if (!network->output_grad()) return output;
    put(network->output_grad(), random_floats(network->output().shape.elements(), seed + 1));
    network->backward(context);
    return output;
  }
};

double norm(const Floats& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

/// |a - b| / |b|.
double relative_distance(const Floats& a, const Floats& b) {
  REQUIRE(a.size() == b.size());
  Floats difference(a.size());
  std::transform(a.begin(), a.end(), b.begin(), difference.begin(), std::minus<>());
  return norm(difference) / norm(b);
}

bool is_bfloat16(float value) { return (std::bit_cast<std::uint32_t>(value) & 0xFFFFU) == 0; }

constexpr UnetOptions kSmall{8, 2, 3};
const Shape kSmallInput{2, 16, 16, 3};

/// Makes the emulated GPU the only CUDA device of this executable.
void provide_emulated_gpu() {
  static const bool once = [] {
    provide_cuda_backends({[] { return 1; },
                           [](const Device&, const BackendOptions&) { return emulated_backend(); },
                           nullptr});
    provide_gpu_transport(TransportKind::kEvent, [](const RankLayout& layout, const Broadcast&) {
      return make_host_transports(layout.own_devices());
    });
    return true;
  }();
  static_cast<void>(once);
}

std::unique_ptr<DataParallel> make_run(DType activations,
                                       std::optional<LossScaleOptions> loss_scale = {}) {
  provide_emulated_gpu();
  DataParallelOptions options = toy_options(1, BatchNormMode::kLocal, 3);
  options.devices = {{DeviceKind::kCuda, 0, 0}};
  options.precision = activations;
  options.loss_scale = loss_scale;
  return make_toy(options);
}

}  // namespace

TEST_CASE("a U-Net in bf16 is that of fp32 up to rounding, forward and backward") {
  Unet fp32(kSmall, kSmallInput, {});
  Unet bf16(kSmall, kSmallInput, {.activations = DType::kBFloat16});
  CHECK(bf16.network->input().dtype == DType::kBFloat16);
  CHECK(bf16.network->output_grad().dtype == DType::kBFloat16);
  for (const std::uint32_t seed : {1U, 11U, 21U}) {
    fp32.network->zero_grad();
    bf16.network->zero_grad();
    const double forward = relative_distance(bf16.step(seed), fp32.step(seed));
    const double head =
        relative_distance(bf16.gradient("head.weight"), fp32.gradient("head.weight"));
    const double backward = relative_distance(bf16.gradients(), fp32.gradients());
    CHECK(forward > 0);
    CHECK(forward < kBf16ForwardTolerance);
    CHECK(head < kBf16ForwardTolerance);
    CHECK(backward < kBf16BackwardTolerance);
  }
}

TEST_CASE("norms that stand in for BatchNorm are the CPU's up to rounding, and in bf16") {
  const NormLayer renorm =
      BatchRenorm({.renorm_max_r = 1.5F, .renorm_max_d = 0.5F, .renorm_warmup = 0});
  for (const NormLayer& norm :
       {NormLayer(GroupNorm(2)), NormLayer(InstanceNorm()), NormLayer(LayerNorm()), renorm}) {
    CAPTURE(to_string(norm.options.mode));
    Unet cpu(kSmall, kSmallInput, {}, norm, make_backend(Device{}, 1));
    const Floats output = cpu.step(7);
    for (const bool by_image : {false, true}) {
      CAPTURE(by_image);
      Unet gpu(kSmall, kSmallInput, {}, norm, std::make_unique<EmulatedGpu>(3, by_image));
      CHECK(relative_distance(gpu.step(7), output) < 1e-5);
      CHECK(relative_distance(gpu.gradients(), cpu.gradients()) < 1e-4);
    }
    Unet bf16(kSmall, kSmallInput, {.activations = DType::kBFloat16}, norm);
    CHECK(relative_distance(bf16.step(7), output) < kBf16ForwardTolerance);
    CHECK(relative_distance(bf16.gradients(), cpu.gradients()) < kBf16BackwardTolerance);
  }
}

TEST_CASE("gradients of parameters add up in fp32") {
  Unet unet(kSmall, kSmallInput, {.activations = DType::kBFloat16});
  unet.step(1);
  const Floats once = unet.gradients();
  unet.step(5);
  const Floats both = unet.gradients();
  unet.network->zero_grad();
  unet.step(5);
  const Floats other = unet.gradients();
  bool finer_than_bf16 = false;
  for (std::size_t i = 0; i < once.size(); ++i) {
    REQUIRE(both[i] == once[i] + other[i]);
    finer_than_bf16 |= !is_bfloat16(both[i]);
  }
  CHECK(finer_than_bf16);
}

TEST_CASE("evaluation in bf16, by running statistics and in shared memory") {
  Unet fp32(kSmall, kSmallInput, {.training = false});
  Unet bf16(kSmall, kSmallInput, {.training = false, .activations = DType::kBFloat16});
  const StepContext context{.training = false};
  CHECK(relative_distance(bf16.step(1, context), fp32.step(1, context)) < kBf16ForwardTolerance);
}

TEST_CASE("a plan in bf16 takes half the memory, beside statistics and positions of maxima") {
  for (const bool training : {true, false}) {
    CAPTURE(training);
    const UnetOptions options{8, 3, 11};
    const Shape input{2, 64, 96, 3};
    const Unet fp32(options, input, {.training = training});
    const Unet bf16(options, input, {.training = training, .activations = DType::kBFloat16});
    const double share = static_cast<double>(bf16.network->planned_bytes()) /
                         static_cast<double>(fp32.network->planned_bytes());
    CHECK(share > 0.49);
    CHECK(share < 0.52);
  }
}

TEST_CASE("a run in bf16 learns as one in fp32 does, and evaluates in bf16, too") {
  const auto bf16 = make_run(DType::kBFloat16), fp32 = make_run(DType::kFloat32);
  const Batch batch = toy_batch(3, 0);
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    losses.push_back(bf16->train_step(batch, step, 0.1F).loss);
    const double expected = fp32->train_step(batch, step, 0.1F).loss;
    CHECK(losses.back() == doctest::Approx(expected).epsilon(kBf16ForwardTolerance));
  }
  CHECK(losses.back() < 0.8 * losses.front());
  CHECK(bf16->replica(0).network().input().dtype == DType::kBFloat16);

  const auto load = [](std::int64_t index) { return toy_batch(1, index, {24, 16}); };
  const auto in_bf16 = bf16->evaluate(2, load), in_fp32 = fp32->evaluate(2, load);
  CHECK(training_replica(bf16->replica(0)).validation().network().input().dtype ==
        DType::kBFloat16);
  CHECK(in_bf16.loss == doctest::Approx(in_fp32.loss).epsilon(kBf16ForwardTolerance));
  std::int64_t moved = 0, pixels = 0;
  for (std::size_t i = 0; i < in_bf16.confusion.size(); ++i) {
    moved += std::abs(in_bf16.confusion[i] - in_fp32.confusion[i]);
    pixels += in_fp32.confusion[i];
  }
  CHECK(pixels == 2 * 24 * 16);
  CHECK(moved < pixels / 10);
}

TEST_CASE("a U-Net in fp16 is that of fp32 up to rounding, forward and backward") {
  constexpr double kFiner = 0x1p-3;  // than bf16
  Unet fp32(kSmall, kSmallInput, {});
  Unet fp16(kSmall, kSmallInput, {.activations = DType::kFloat16});
  CHECK(fp16.network->output_grad().dtype == DType::kFloat16);
  for (const std::uint32_t seed : {1U, 11U}) {
    fp32.network->zero_grad();
    fp16.network->zero_grad();
    const double forward = relative_distance(fp16.step(seed), fp32.step(seed));
    const double backward = relative_distance(fp16.gradients(), fp32.gradients());
    CHECK(forward > 0);
    CHECK(forward < kFiner * kBf16ForwardTolerance);
    CHECK(backward < std::sqrt(kFiner) * kBf16BackwardTolerance);
  }
}

TEST_CASE("a run in fp16 learns as one in fp32 does") {
  const auto fp16 = make_run(DType::kFloat16, LossScaleOptions{.initial = 65536});
  const auto fp32 = make_run(DType::kFloat32);
  const Batch batch = toy_batch(3, 0);
  double first = 0, last = 0;
  for (int step = 0; step < 5; ++step) {
    const lockstep::StepResult got = fp16->train_step(batch, step, 0.1F);
    const lockstep::StepResult expected = fp32->train_step(batch, step, 0.1F);
    CHECK_FALSE(got.skipped);
    CHECK(got.loss == doctest::Approx(expected.loss).epsilon(kBf16ForwardTolerance / 8));
    CHECK(got.grad_norm == doctest::Approx(expected.grad_norm).epsilon(0.02));
    if (step == 0) first = got.loss;
    last = got.loss;
  }
  CHECK(last < 0.8 * first);
}

TEST_CASE("in fp16 a scale that overflows skips steps until it fits") {
  const auto run = make_run(DType::kFloat16, LossScaleOptions{.initial = 0x1p30F});
  const std::vector<float> before = parameters(*run, 0);
  std::int64_t step = 0;
  lockstep::StepResult result = run->train_step(toy_batch(3, 0), step, 0.1F);
  CHECK(result.skipped);
  while (result.skipped && step < 30) {
    CHECK(parameters(*run, 0) == before);
    CHECK(result.loss_scale->scale == std::ldexp(1.0F, static_cast<int>(29 - step)));
    CHECK(result.loss_scale->skipped == step + 1);
    result = run->train_step(toy_batch(3, 0), ++step, 0.1F);
  }
  CHECK(result.loss_scale->scale >= 65536);  // which the run above does not overflow with
  CHECK(result.loss_scale->good_steps == 1);
  CHECK(std::isfinite(result.grad_norm));
  CHECK(parameters(*run, 0) != before);
}

}  // namespace lockstep::test
