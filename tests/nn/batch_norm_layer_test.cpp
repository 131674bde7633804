// Every option of BatchNorm against the naive network: which rows share statistics, what the
// running ones take.

#include "nn/norms/batch_norm_layer.h"

#include <thread>

#include "backend/moments.h"
#include "lockstep/sync/sync_group.h"
#include "nn/harness.h"

namespace lockstep::test {
namespace {

constexpr double kTolerance = 2e-6;

Value* normalize(NetworkBuilder& net, Value* x) { return net.batch_norm_relu(x, "bn"); }

ReferenceTensor reference_input(const Shape& shape, const Floats& values) {
  return {shape, Doubles(values.begin(), values.end())};
}

struct Case {
  BatchNormOptions options;
  Shape shape{5, 2, 3, 4};
  std::vector<std::int64_t> slices{5};
};

/// Three training steps; checks outputs, local statistics and running statistics. `momentum` of
/// step k.
void check_training(const Case& test, const std::function<double(int)>& momentum) {
  TestNetwork net(normalize, test.shape, {true, true}, test.options);
  const BatchNormLayer& layer = *batch_norms_of(*net.network)[0];
  for (int step = 0; step < 3; ++step) {
    ReferenceNet reference = net.reference();
    reference.slices = test.slices;
    reference.eps = test.options.eps;
    reference.clamp = test.options.eps_mode == EpsMode::kClamp;
    const Floats input = random_floats(test.shape.elements(), 10 + step, 2.0F);
    const ReferenceTensor y = reference.batch_norm_relu(reference_input(test.shape, input), "bn");
    CHECK(relative_error(net.step(input, 3).output, y.values) < kTolerance);

    REQUIRE(layer.local_moments().size() == test.slices.size());
    for (std::size_t s = 0; s < test.slices.size(); ++s) {
      const StatSlot& slot = layer.local_moments()[s];
      CHECK(slot.count == test.slices[s] * test.shape.rows_per_sample());
      Floats mean = read_moments(*net.backend, slot, test.shape.channels());
      mean.resize(static_cast<std::size_t>(test.shape.channels()));
      CHECK(relative_error(mean, reference.means["bn"][s]) < kTolerance);
    }
    if (!test.options.track_running_stats) continue;
    const auto count = static_cast<double>(layer.local_moments()[0].count);
    const double weight = momentum(step + 1);
    Doubles mean, var;
    for (std::size_t c = 0; c < reference.means["bn"][0].size(); ++c) {
      mean.push_back((1 - weight) * reference.parameters.at("bn.running_mean")[c] +
                     weight * reference.means["bn"][0][c]);
      var.push_back((1 - weight) * reference.parameters.at("bn.running_var")[c] +
                    weight * reference.variances["bn"][0][c] * count / (count - 1));
    }
    CHECK(relative_error(download(*net.backend, layer.state()->running_mean, 4), mean) <
          kTolerance);
    CHECK(relative_error(download(*net.backend, layer.state()->running_var, 4), var) < kTolerance);
    CHECK(layer.state()->num_batches_tracked == step + 1);
  }
}

/// Two ranks, of which the second never comes.
SyncGroupOptions lonely() {
  SyncGroupOptions options;
  options.hook = [](int, const SyncCall& call) -> bool {
    throw ReplicaError(std::string("exchange in ") + call.layer);
  };
  return options;
}

double default_momentum(int) { return 0.1; }

}  // namespace

TEST_CASE("running statistics: PyTorch's momentum, another one, cumulative") {
  check_training({}, default_momentum);
  Case test;
  test.options.momentum = 0.01;  // Keras' 0.99
  check_training(test, [](int) { return 0.01; });
  test.options.momentum = std::nullopt;
  check_training(test, [](int step) { return 1.0 / step; });
}

TEST_CASE("clamp, no affine parameters, no running statistics") {
  Case test;
  test.options.eps_mode = EpsMode::kClamp;
  test.options.eps = 4.0F;  // near the variance: some channels are clamped
  check_training(test, default_momentum);
  test = {};
  test.options.affine = false;
  check_training(test, default_momentum);
  test = {};
  test.options.track_running_stats = false;
  check_training(test, default_momentum);
}

TEST_CASE("ghost slices are torch.chunk's; the first feeds the running statistics") {
  Case test;
  test.options.mode = BatchNormMode::kGhost;
  const auto check = [&](std::int64_t batch, int devices, std::vector<std::int64_t> slices) {
    test.shape = Shape{batch, 2, 3, 4};
    test.options.virtual_devices = devices;
    test.slices = std::move(slices);
    check_training(test, default_momentum);
  };
  check(9, 8, {2, 2, 2, 2, 1});  // and three without samples
  check(8, 4, {2, 2, 2, 2});
  check(5, 4, {2, 2, 1});
  check(3, 1, {3});
  check(2, 8, {1, 1});
}

TEST_CASE("ghost slices equal networks of their own, bit for bit") {
  BatchNormOptions options;
  options.mode = BatchNormMode::kGhost;
  options.virtual_devices = 4;
  const Shape shape{7, 3, 3, 5};
  TestNetwork whole(normalize, shape, {true, true}, options);
  TestNetwork part(normalize, shape.with_batch(2), {true, true});
  const Floats input = random_floats(shape.elements(), 3);
  const StepResult expected = whole.step(input, 4);
  const Floats grad_y = random_floats(shape.elements(), 4);
  const std::int64_t stride = 2 * 45;
  Floats output, input_grad;
  for (const std::int64_t begin : {0, 1, 2, 3}) {
    const std::int64_t count = begin == 3 ? 1 : 2;
    part.network->set_batch(count);
    const auto slice = [&](const Floats& from) {
      return Floats(from.begin() + begin * stride, from.begin() + begin * stride + count * 45);
    };
    upload(*part.backend, part.network->input(), slice(input));
    part.network->forward({});
    const Floats y = download(*part.backend, part.network->output());
    output.insert(output.end(), y.begin(), y.end());
    upload(*part.backend, part.network->output_grad(), slice(grad_y));
    part.network->backward({});
    const Floats dx = download(*part.backend, part.network->input_grad());
    input_grad.insert(input_grad.end(), dx.begin(), dx.end());
  }
  CHECK(output == expected.output);
  CHECK(input_grad == expected.input_grad);
}

TEST_CASE(
    "evaluation uses running statistics, or the batch where there are none, and changes nothing") {
  for (const bool track : {true, false}) {
    for (const bool planned_for_training : {true, false}) {
      BatchNormOptions options;
      options.track_running_stats = track;
      options.mode = BatchNormMode::kGhost;
      options.virtual_devices = 2;
      const Shape shape{4, 3, 2, 3};
      TestNetwork net(normalize, shape, {planned_for_training, false}, options);
      ReferenceNet reference = net.reference();
      if (!track) reference.slices = {4};
      const Floats input = random_floats(shape.elements(), 3);
      const auto y = reference.batch_norm_relu(reference_input(shape, input), "bn");
      CHECK(relative_error(net.step(input, 1, {.training = false}).output, y.values) < kTolerance);
      CHECK(net.reference().parameters == [&] {
        ReferenceNet unchanged = reference;
        return unchanged.parameters;
      }());
    }
  }
}

TEST_CASE("a batch that ghost leaves whole has room for all of its images") {
  BatchNormOptions ghost;
  ghost.mode = BatchNormMode::kGhost;
  ghost.virtual_devices = 4;
  const Shape shape{4, 2, 1, 150};
  const Floats input = random_floats(shape.elements(), 5);
  const auto step = [&](BatchNormOptions options, const StepContext& context, bool freeze = false) {
    TestNetwork net(normalize, shape, {true, true}, options);
    for (BatchNormLayer* layer : batch_norms_of(*net.network)) {
      if (freeze) layer->freeze();
    }
    return net.step(input, 6, context);
  };
  BatchNormOptions frozen;
  frozen.mode = BatchNormMode::kFrozen;
  CHECK(step(ghost, {}, true) == step(frozen, {}));
  ghost.track_running_stats = false;
  BatchNormOptions local;
  local.track_running_stats = false;
  const StepContext evaluation{.training = false};
  CHECK(step(ghost, evaluation) == step(local, evaluation));
}

TEST_CASE("a frozen layer gives evaluation's bits in training and keeps its statistics") {
  const Describe frozen = [](NetworkBuilder& net, Value* x) {
    return FrozenBatchNorm()(net, x, "bn", {.relu = true});
  };
  TestNetwork net(frozen, {3, 2, 2, 5});
  const Floats input = random_floats(60, 3);
  const auto evaluation = net.build(normalize, {3, 2, 2, 5}, {.training = false});
  const auto before = net.reference().parameters;
  CHECK(net.step(input, 1).output == net.step(*evaluation, input, 1, {.training = false}).output);
  CHECK(net.reference().parameters == before);
  CHECK(net.store.batch_norms()[0]->num_batches_tracked == 0);
  // One row is enough for constants.
  TestNetwork single(frozen, {1, 1, 1, 5});
  CHECK_NOTHROW(single.step(random_floats(5, 1), 1));
}

TEST_CASE("evaluation and frozen layers never exchange") {
  SyncGroup group(parse_devices("cpu:2", 0), lonely());
  BatchNormOptions options;
  options.mode = BatchNormMode::kSync;
  const Shape shape{3, 2, 2, 5};
  const Floats input = random_floats(60, 3);
  StepContext context{.training = false, .communicator = group.at(0)};
  TestNetwork tracked(normalize, shape, {true, true}, options);
  CHECK_NOTHROW(tracked.step(input, 1, context));
  options.track_running_stats = false;
  TestNetwork untracked(normalize, shape, {true, true}, options);
  CHECK_NOTHROW(untracked.step(input, 1, context));
  options.track_running_stats = true;
  const Describe frozen = [&options](NetworkBuilder& net, Value* x) {
    return FrozenBatchNorm(options)(net, x, "bn");
  };
  context.training = true;
  TestNetwork constant(frozen, shape, {true, true}, options);
  CHECK_NOTHROW(constant.step(input, 1, context));
  CHECK(group.progress().describe(0).find("replica 0: backward in bn") == 0);
  CHECK_THROWS_WITH_AS(tracked.step(input, 1, context), "exchange in bn", ReplicaError);
  options.track_running_stats = false;
  CHECK_THROWS_WITH_AS(TestNetwork(frozen, shape, {true, true}, options),
                       doctest::Contains("bn: a frozen layer needs running statistics"), Error);
}

TEST_CASE("a call may have options of its own") {
  BatchNormOptions own;
  own.affine = false;
  own.track_running_stats = false;
  const Describe describe = [own](NetworkBuilder& net, Value* x) {
    return net.batch_norm(net.batch_norm(x, "a"), "b", NormLayer(own));
  };
  TestNetwork net(describe, {2, 2, 2, 3});
  CHECK(net.store.find("a.weight") != nullptr);
  CHECK(net.store.find("b.weight") == nullptr);
  CHECK(net.store.batch_norms().size() == 1);
  CHECK(batch_norms_of(*net.network)[0]->state() == net.store.batch_norms()[0].get());
  CHECK(batch_norms_of(*net.network)[1]->state() == nullptr);
}

TEST_CASE("training statistics that must not be recorded are not") {
  TestNetwork net(normalize, {3, 2, 2, 5});
  const auto before = net.reference().parameters;
  net.step(random_floats(60, 3), 1, {.update_running_stats = false});
  CHECK(net.reference().parameters == before);
  CHECK(net.store.batch_norms()[0]->num_batches_tracked == 0);
}

TEST_CASE("one value per channel is an error that names the layer") {
  const auto expect_error = [](const BatchNormOptions& options, const Shape& shape) {
    TestNetwork net(normalize, shape, {true, true}, options);
    const Floats input = random_floats(shape.elements(), 1);
    CHECK_THROWS_WITH_AS(net.step(input, 1), doctest::Contains("bn: batch statistics need more"),
                         Error);
    CHECK(net.store.batch_norms()[0]->num_batches_tracked == 0);
  };
  expect_error({}, {1, 1, 1, 4});
  BatchNormOptions options;
  options.mode = BatchNormMode::kGhost;
  options.virtual_devices = 3;
  expect_error(options, {3, 1, 1, 4});
  options.mode = BatchNormMode::kSync;
  expect_error(options, {1, 1, 1, 4});
}

TEST_CASE("BatchNorm takes tensors of 2, 3 and 5 extents") {
  const std::int64_t rows = 24;
  const Floats input = random_floats(rows * 3, 1);
  const Floats expected = TestNetwork(normalize, {6, 2, 2, 3}).step(input, 2).output;
  for (const Shape& shape : {Shape{6, 4, 3}, Shape{6, 2, 1, 2, 3}}) {
    CHECK(TestNetwork(normalize, shape).step(input, 2).output == expected);
  }
  // The same rows of more images, whose statistics are merged.
  const Floats features = TestNetwork(normalize, {24, 3}).step(input, 2).output;
  CHECK(relative_error(features, Doubles(expected.begin(), expected.end())) < 1e-6);
}

TEST_CASE("synchronized BatchNorm on 3 devices, one of them empty, equals one device") {
  const Shape shape{5, 3, 3, 4};
  const std::vector<std::int64_t> sizes{3, 2, 0};
  BatchNormOptions options;
  options.mode = BatchNormMode::kSync;
  const auto describe = [](NetworkBuilder& net, Value* x) {
    return net.batch_norm_add_relu(net.batch_norm(x, "shared"), x, "shared");
  };
  const auto devices = parse_devices("cpu:3", 0);
  SyncGroup group(devices);
  const Floats input = random_floats(shape.elements(), 3);
  const Floats grad_y = random_floats(shape.elements(), 4);
  TestNetwork whole(describe, shape, {true, true}, options);
  const StepResult expected = whole.step(input, 4);

  std::vector<Floats> outputs(3), grads(3), means(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<std::size_t>(rank);
      TestNetwork net(describe, shape.with_batch(3), {true, true}, options);
      net.network->set_batch(sizes[r]);
      const std::int64_t begin = rank == 1 ? 3 * 36 : 0;
      const auto part = [&](const Floats& from) {
        return Floats(from.begin() + begin, from.begin() + begin + sizes[r] * 36);
      };
      const StepContext context{.communicator = group.at(rank)};
      upload(*net.backend, net.network->input(), part(input));
      net.network->forward(context);
      outputs[r] = download(*net.backend, net.network->output());
      upload(*net.backend, net.network->output_grad(), part(grad_y));
      net.network->backward(context);
      grads[r] = download(*net.backend, net.network->input_grad());
      means[r] = download(*net.backend, net.store.batch_norms()[0]->running_mean, 4);
      group.at(rank).barrier("end");  // until then peers may read this network's statistics
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto joined = [](const std::vector<Floats>& parts) {
    Floats all;
    for (const Floats& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  const auto widen = [](const Floats& values) { return Doubles(values.begin(), values.end()); };
  CHECK(relative_error(joined(outputs), widen(expected.output)) < kTolerance);
  CHECK(relative_error(joined(grads), widen(expected.input_grad)) < 1e-5);
  CHECK(relative_error(means[0], whole.reference().parameters.at("shared.running_mean")) <
        kTolerance);
  CHECK(means[0] == means[1]);
  CHECK(means[0] == means[2]);
}

}  // namespace lockstep::test
