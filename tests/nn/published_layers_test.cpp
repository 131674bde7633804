// Test cases that other implementations of synchronized and virtual BatchNorm were published with,
// on single layers. Theirs mostly ask for the gradient of the sum of the outputs, which is zero
// whatever BatchNorm's backward pass does; here every gradient is that of a random projection.
//
//   Synchronized-BatchNorm-PyTorch (Mao): testNumericBatchNorm, of both files
//   Distributed-BatchNorm-PyTorch (Pan): the shapes of its examples
//   PyTorch-Encoding (Zhang): test_all_reduce
//   apex (NVIDIA): two_gpu_unit_test, two_gpu_test_different_batch_size, test_batchnorm1d
//   PyTorch: test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value

#include <algorithm>
#include <cmath>
#include <thread>

#include "checks/reference_batch_norm.h"
#include "lockstep/sync/sync_group.h"
#include "nn/harness.h"
#include "support/gradient_check.h"

namespace lockstep::test {
namespace {

Doubles widen(const Floats& values) { return {values.begin(), values.end()}; }

/// What a rank's layer is given, and what becomes of it.
struct Part {
  Shape shape;
  Floats x, grad_y;
};
struct Passed {
  Floats y, grad_x;
  std::map<std::string, Floats> grads;  // of parameters
};

Passed pass(TestNetwork& net, const Part& part, const StepContext& context = {}) {
  Network& network = *net.network;
  network.set_batch(part.shape.batch());
  upload(*net.backend, network.input(), part.x);
  network.zero_grad();
  network.forward(context);
  Passed passed{.y = download(*net.backend, network.output()), .grad_x = {}, .grads = {}};
  upload(*net.backend, network.output_grad(), part.grad_y);
  network.backward(context);
  passed.grad_x = download(*net.backend, network.input_grad());
  for (const auto& parameter : net.store.parameters()) {
    passed.grads[parameter->name] = download(*net.backend, parameter->grad, parameter->elements);
  }
  return passed;
}

Floats running(const TestNetwork& net, float* BatchNormState::*which) {
  const BatchNormState& state = *net.store.batch_norms().front();
  return download(*net.backend, state.*which, state.channels);
}

/// A network of each rank, on a thread of its own, with equal parameters.
struct Ranks {
  std::vector<std::unique_ptr<TestNetwork>> nets;
  std::vector<Passed> passed;  // of the last pass

  Ranks(const Describe& describe, const BatchNormOptions& options, const std::vector<Part>& parts,
        int passes = 1)
      : nets(parts.size()), passed(parts.size()) {
    SyncGroup group(parse_devices("cpu:" + std::to_string(parts.size())));
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          const StepContext context{.communicator = group.at(static_cast<int>(rank))};
          const std::int64_t planned = std::max<std::int64_t>(1, parts[rank].shape.batch());
          nets[rank] = std::make_unique<TestNetwork>(
              describe, parts[rank].shape.with_batch(planned), PlanOptions{true, true}, options);
          for (int k = 0; k < passes; ++k) passed[rank] = pass(*nets[rank], parts[rank], context);
        } catch (...) {
          group.abort(std::current_exception());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (group.failure()) std::rethrow_exception(group.failure());
  }

  Floats joined(Floats Passed::*what) const {
    Floats all;
    for (const Passed& part : passed) {
      all.insert(all.end(), (part.*what).begin(), (part.*what).end());
    }
    return all;
  }
  /// A parameter's gradient, added up over the ranks.
  Floats summed(const std::string& parameter) const {
    Floats sum(passed.front().grads.at(parameter).size());
    for (const Passed& part : passed) {
      const Floats& own = part.grads.at(parameter);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += own[i];
    }
    return sum;
  }
};

Part random_part(const Shape& shape, std::uint32_t seed) {
  return {shape, random_floats(shape.elements(), seed), random_floats(shape.elements(), seed + 1)};
}

/// Samples [begin, begin + count).
Part part_of(const Part& whole, std::int64_t begin, std::int64_t count) {
  const std::int64_t each = whole.shape.elements() / whole.shape.batch();
  const auto cut = [&](const Floats& from) {
    return Floats(from.begin() + begin * each, from.begin() + (begin + count) * each);
  };
  return {whole.shape.with_batch(count), cut(whole.x), cut(whole.grad_y)};
}

std::vector<Part> parts_of(const Part& whole, const std::vector<std::int64_t>& sizes) {
  std::vector<Part> parts;
  std::int64_t begin = 0;
  for (const std::int64_t count : sizes) {
    parts.push_back(part_of(whole, begin, count));
    begin += count;
  }
  return parts;
}

Value* one_norm(NetworkBuilder& net, Value* x) { return net.batch_norm(x, "bn"); }

/// Of all rows of `part` as one batch, with the parameters of `net`.
ReferenceBatchNorm reference_of(const Part& part, const TestNetwork& net,
                                const BatchNormOptions& options) {
  const ReferenceNet parameters = net.reference();
  ReferenceBatchNorm reference;
  reference.channels = static_cast<std::size_t>(part.shape.channels());
  reference.x = widen(part.x);
  if (options.affine) {
    reference.weight = parameters.parameters.at("bn.weight");
    reference.bias = parameters.parameters.at("bn.bias");
  }
  reference.eps = static_cast<double>(options.eps);
  reference.clamp = options.eps_mode == EpsMode::kClamp;
  return reference;
}

Doubles unbiased(Doubles var, std::int64_t rows) {
  for (double& value : var) value *= static_cast<double>(rows) / static_cast<double>(rows - 1);
  return var;
}

BatchNormOptions sync_options(double momentum) {
  BatchNormOptions options;
  options.mode = BatchNormMode::kSync;
  options.momentum = momentum;
  return options;
}

/// Synchronized on ranks with these numbers of samples, momentum 1, against the formulas in double.
void check_synchronized(const Part& whole, const std::vector<std::int64_t>& sizes) {
  const BatchNormOptions options = sync_options(1);
  const Ranks ranks(one_norm, options, parts_of(whole, sizes));
  const ReferenceBatchNorm reference = reference_of(whole, *ranks.nets.front(), options);
  const ReferenceBatchNorm::Output out = reference.forward();
  const ReferenceBatchNorm::Gradients grads = reference.backward(out, widen(whole.grad_y));
  CHECK(relative_error(ranks.joined(&Passed::y), out.y) < 2e-6);
  CHECK(relative_error(ranks.joined(&Passed::grad_x), grads.x) < 1e-5);
  CHECK(relative_error(ranks.summed("bn.weight"), grads.weight) < 1e-5);
  CHECK(relative_error(ranks.summed("bn.bias"), grads.bias) < 1e-5);
  for (const auto& net : ranks.nets) {
    CHECK(relative_error(running(*net, &BatchNormState::running_mean), out.mean) < 1e-5);
    CHECK(relative_error(running(*net, &BatchNormState::running_var),
                         unbiased(out.var, whole.shape.rows())) < 1e-5);
  }
}

}  // namespace

TEST_CASE("published, Mao: testNumericBatchNorm, clamped variance against the formulas by hand") {
  BatchNormOptions options;
  options.eps_mode = EpsMode::kClamp;
  options.momentum = 1;
  options.affine = false;
  Part part = random_part({16, 10}, 1);
  std::mt19937 generator(5);
  for (float& x : part.x) x = std::uniform_real_distribution<float>(0, 1)(generator);
  TestNetwork net(one_norm, part.shape, {true, true}, options);
  const Passed passed = pass(net, part);
  const ReferenceBatchNorm reference = reference_of(part, net, options);
  const ReferenceBatchNorm::Output out = reference.forward();
  CHECK(relative_error(passed.y, out.y) < 2e-6);
  CHECK(relative_error(passed.grad_x, reference.backward(out, widen(part.grad_y)).x) < 1e-5);
  CHECK(relative_error(running(net, &BatchNormState::running_mean), out.mean) < 2e-6);
  CHECK(relative_error(running(net, &BatchNormState::running_var), unbiased(out.var, 16)) < 1e-5);
}

// The published case compares running_mean with itself, never looks at running_var, and asks for
// the gradient of a plain sum, where gamma's is rounding and nothing else.
TEST_CASE("published, Mao: testNumericBatchNorm, 100 steps of SGD beside a second implementation") {
  BatchNormOptions options;
  options.momentum = 1;
  const Shape shape{16, 16, 16, 16};
  std::vector<Part> batches;
  for (std::uint32_t k = 0; k < 3; ++k) batches.push_back(random_part(shape, 10 * k));
  TestNetwork net(one_norm, shape, {true, true}, options);
  ReferenceBatchNorm reference = reference_of(batches[0], net, options);
  for (int step = 0; step < 100; ++step) {
    const Part& part = batches[static_cast<std::size_t>(step % 3)];
    reference.x = widen(part.x);
    const ReferenceBatchNorm::Output out = reference.forward();
    const ReferenceBatchNorm::Gradients grads = reference.backward(out, widen(part.grad_y));
    const Passed passed = pass(net, part);
    CAPTURE(step);
    CHECK(relative_error(passed.y, out.y) < 1e-5);
    CHECK(relative_error(passed.grad_x, grads.x) < 1e-5);
    CHECK(relative_error(passed.grads.at("bn.weight"), grads.weight) < 1e-5);
    CHECK(relative_error(passed.grads.at("bn.bias"), grads.bias) < 1e-5);
    CHECK(relative_error(running(net, &BatchNormState::running_mean), out.mean) < 1e-5);
    CHECK(relative_error(running(net, &BatchNormState::running_var),
                         unbiased(out.var, shape.rows())) < 1e-5);
    for (const auto& parameter : net.store.parameters()) {
      Floats values = download(*net.backend, parameter->value, parameter->elements);
      Doubles& theirs = parameter->name == "bn.weight" ? reference.weight : reference.bias;
      const Doubles& gradient = parameter->name == "bn.weight" ? grads.weight : grads.bias;
      for (std::size_t c = 0; c < values.size(); ++c) {
        values[c] -= 0.01F * passed.grads.at(parameter->name)[c];
        theirs[c] -= 0.01 * gradient[c];
      }
      upload(*net.backend, parameter->value, values);
    }
  }
}

TEST_CASE("published, Pan: eight virtual devices of one sample each, in 3, 4 and 5 dimensions") {
  for (const Shape& shape : {Shape{8, 1000, 32}, Shape{8, 7, 7, 32}, Shape{8, 7, 7, 7, 32}}) {
    CAPTURE(to_string(shape));
    BatchNormOptions options;
    options.mode = BatchNormMode::kGhost;
    options.virtual_devices = 8;
    options.momentum = 1;
    const Part whole = random_part(shape, 3);
    TestNetwork net(one_norm, shape, {true, true}, options);
    const Passed passed = pass(net, whole);
    TestNetwork device(one_norm, shape.with_batch(1));  // on its own, with the same parameters
    Doubles y, grad_x, grad_weight(32), grad_bias(32);
    Floats alone_y, alone_grad_x;
    for (std::int64_t n = 0; n < 8; ++n) {
      const Part part = part_of(whole, n, 1);
      const ReferenceBatchNorm reference = reference_of(part, net, options);
      const ReferenceBatchNorm::Output out = reference.forward();
      const ReferenceBatchNorm::Gradients grads = reference.backward(out, widen(part.grad_y));
      y.insert(y.end(), out.y.begin(), out.y.end());
      grad_x.insert(grad_x.end(), grads.x.begin(), grads.x.end());
      for (std::size_t c = 0; c < 32; ++c) {
        grad_weight[c] += grads.weight[c];
        grad_bias[c] += grads.bias[c];
      }
      if (n == 0) {  // which alone feeds the running statistics
        CHECK(relative_error(running(net, &BatchNormState::running_mean), out.mean) < 1e-5);
        CHECK(relative_error(running(net, &BatchNormState::running_var),
                             unbiased(out.var, part.shape.rows())) < 1e-5);
      }
      const Passed alone = pass(device, part);
      alone_y.insert(alone_y.end(), alone.y.begin(), alone.y.end());
      alone_grad_x.insert(alone_grad_x.end(), alone.grad_x.begin(), alone.grad_x.end());
    }
    CHECK(relative_error(passed.y, y) < 2e-6);
    CHECK(relative_error(passed.grad_x, grad_x) < 1e-5);
    CHECK(relative_error(passed.grads.at("bn.weight"), grad_weight) < 1e-5);
    CHECK(relative_error(passed.grads.at("bn.bias"), grad_bias) < 1e-5);
    CHECK(passed.y == alone_y);
    CHECK(passed.grad_x == alone_grad_x);
  }
}

// Two samples on each device, where the published case has one tensor of two rows.
TEST_CASE("published, Zhang: test_all_reduce, equal on all devices, and its gradient") {
  const Describe all_reduce = [](NetworkBuilder& net, Value* x) { return net.all_reduce(x); };
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{2}, {2, 2, 2, 2}, {3, 0, 2, 1}}) {
    std::int64_t samples = 0;
    for (const std::int64_t size : sizes) samples += size;
    const Part whole = random_part({samples, 4, 4}, 5);
    const std::vector<Part> parts = parts_of(whole, sizes);
    const auto outputs = [&](const Doubles& x) {
      Part changed = whole;
      changed.x.assign(x.begin(), x.end());
      return Ranks(all_reduce, {}, parts_of(changed, sizes)).joined(&Passed::y);
    };
    const Ranks ranks(all_reduce, {}, parts);
    const Floats y = ranks.joined(&Passed::y);
    Doubles sums(16);
    for (std::size_t i = 0; i < whole.x.size(); ++i) sums[i % 16] += whole.x[i];
    for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == static_cast<float>(sums[i % 16]));

    // The sum is linear: a large step has no error but rounding.
    const Doubles gradient = numerical_gradient([&](const Doubles& x) { return widen(outputs(x)); },
                                                widen(whole.x), widen(whole.grad_y), 0.5);
    CHECK(gradient_error(widen(ranks.joined(&Passed::grad_x)), gradient) < 1e-4);
  }
}

TEST_CASE("published, apex: two_gpu_unit_test, against the formulas in float64") {
  check_synchronized(random_part({32, 40, 40, 10}, 18), {16, 16});
}

TEST_CASE("published, apex: test_batchnorm1d") {
  check_synchronized(random_part({8, 4}, 18), {4, 4});
}

// The published case ends in an assertion that cannot fail.
TEST_CASE("published, apex: two_gpu_test_different_batch_size, behind a convolution") {
  const Describe describe = [](NetworkBuilder& net, Value* x) {
    const Conv2dOptions conv{.out_channels = 6, .kernel = 3, .padding = 1, .bias = true};
    return net.batch_norm(net.conv2d(x, "conv", conv), "bn");
  };
  Part whole = random_part({24, 8, 8, 3}, 7);
  whole.grad_y = random_floats(std::int64_t{24} * 8 * 8 * 6, 8);
  for (std::size_t i = 0; i < std::size_t{16} * 8 * 8 * 3; ++i) whole.x[i] *= 50;
  const auto part = [&](std::int64_t begin, std::int64_t count) {
    const std::int64_t in = std::int64_t{8} * 8 * 3, out = std::int64_t{8} * 8 * 6;
    return Part{
        whole.shape.with_batch(count),
        Floats(whole.x.begin() + begin * in, whole.x.begin() + (begin + count) * in),
        Floats(whole.grad_y.begin() + begin * out, whole.grad_y.begin() + (begin + count) * out)};
  };
  const Ranks ranks(describe, sync_options(0.1), {part(0, 16), part(16, 8)});
  TestNetwork one(describe, whole.shape, {true, true}, sync_options(0.1));
  const Passed expected = pass(one, whole);
  CHECK(relative_error(ranks.joined(&Passed::y), widen(expected.y)) < 1e-5);
  CHECK(relative_error(ranks.joined(&Passed::grad_x), widen(expected.grad_x)) < 1e-5);
  for (const char* name : {"conv.weight", "bn.weight", "bn.bias"}) {
    CAPTURE(std::string(name));
    CHECK(relative_error(ranks.summed(name), widen(expected.grads.at(name))) < 1e-5);
  }
  for (const auto which : {&BatchNormState::running_mean, &BatchNormState::running_var}) {
    CHECK(relative_error(running(*ranks.nets[1], which), widen(running(one, which))) < 1e-5);
  }
}

TEST_CASE("published, PyTorch: Diff_Input_Sizes_Running_Value") {
  std::vector<Part> parts;
  Doubles all[2];  // of each channel
  for (int rank = 0; rank < 3; ++rank) {
    const Shape shape{2, static_cast<std::int64_t>(std::pow(10, rank + 1)), 2};
    Part part = random_part(shape, static_cast<std::uint32_t>(rank));
    for (std::size_t i = 0; i < part.x.size(); ++i) {
      part.x[i] = static_cast<float>(std::pow(i % 2 == 0 ? 0.1 : 0.3, rank - 1));
      all[i % 2].push_back(part.x[i]);
    }
    parts.push_back(std::move(part));
  }
  const Ranks ranks(one_norm, sync_options(0.99), parts, 100);
  Doubles mean(2), var(2);
  for (std::size_t c = 0; c < 2; ++c) {
    const auto count = static_cast<double>(all[c].size());
    for (const double x : all[c]) mean[c] += x / count;
    for (const double x : all[c]) var[c] += (x - mean[c]) * (x - mean[c]) / (count - 1);
  }
  for (const auto& net : ranks.nets) {
    CHECK(relative_error(running(*net, &BatchNormState::running_mean), mean) < 1e-6);
    CHECK(relative_error(running(*net, &BatchNormState::running_var), var) < 1e-6);
  }
}

}  // namespace lockstep::test
