// What a user's model may have: several outputs and losses, norm layers of its own, micro-batches,
// a batch for each device.

#include <doctest/doctest.h>

#include <array>
#include <mutex>

#include "core/rng.h"
#include "lockstep/core/check.h"
#include "step/toy_training.h"

namespace lockstep::test {
namespace {

constexpr Conv2dOptions kHead{.out_channels = kClasses, .bias = true};

/// A trunk with BatchNorm and two heads at it.
Outputs two_heads(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  const Conv2dOptions same{.out_channels = 6, .kernel = 3, .padding = 1};
  x = norm(net, net.conv2d(x, "stem", same), "bn", {.relu = true});
  Value* aux = net.conv2d(x, "aux", kHead);
  Value* y = norm(net, net.conv2d(x, "block", same), "block_bn", {.relu = true, .residual = x});
  return {{"out", net.conv2d(y, "head", kHead)}, {"aux", aux}};
}

/// One head that is called twice, under two names.
Outputs same_head_twice(NetworkBuilder& net, Value* x, const NormLayer&) {
  x = net.relu(net.conv2d(x, "stem", {.out_channels = 6, .kernel = 3, .padding = 1}));
  return {{"out", net.conv2d(x, "head", kHead)}, {"again", net.conv2d(x, "head", kHead)}};
}

/// What comes of it depends on each sample's place in the global batch.
Outputs with_dropout(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  x = norm(net, net.conv2d(x, "stem", {.out_channels = 6, .kernel = 3, .padding = 1}), "bn",
           {.relu = true});
  return {{"out", net.conv2d(net.dropout(x, 0.4F), "head", kHead)}};
}

DataParallelOptions model_options(Model model, int ranks, BatchNormMode mode,
                                  std::int64_t batch = 5) {
  DataParallelOptions options = toy_options(ranks, mode, batch);
  options.model = std::move(model);
  return options;
}

/// Three steps from the initial weights.
Outcome trained(const DataParallelOptions& options) {
  DataParallel run(options);
  return outcome_of(run, train(run));
}

/// The same parts as DataParallel scatters.
std::vector<Batch> scattered(const Batch& whole, int ranks) {
  std::vector<Batch> parts;
  std::int64_t begin = 0;
  for (const std::int64_t count : chunk_sizes(whole.count(), ranks)) {
    Batch part;
    part.size = whole.size;
    const std::int64_t pixels = std::int64_t{whole.size.height} * whole.size.width;
    for (std::int64_t n = begin; n < begin + count; ++n) part.samples.push_back(whole.samples[n]);
    part.images.assign(whole.images.begin() + 3 * begin * pixels,
                       whole.images.begin() + 3 * (begin + count) * pixels);
    part.labels.assign(whole.labels.begin() + begin * pixels,
                       whole.labels.begin() + (begin + count) * pixels);
    parts.push_back(std::move(part));  // without class_pixels: they are counted
    begin += count;
  }
  return parts;
}

}  // namespace

TEST_CASE("two heads with a loss each: on any number of devices as on one") {
  DataParallelOptions options = model_options(two_heads, 1, BatchNormMode::kSync);
  options.losses = {{"out", CrossEntropyLoss{}}, {"aux", CrossEntropyLoss{.weight = 0.4F}}};
  const Outcome one = trained(options);
  for (const int ranks : {2, 4}) {
    options.devices = cpus(ranks);
    check_close(trained(options), one);
  }
  DataParallel run(options);
  const StepResult step = run.train_step(toy_batch(5, 0), 0);
  CHECK(step.loss == step.losses[0] + step.losses[1]);
  CHECK(step.losses[0] > 0);
  CHECK(step.losses[1] > 0);
  CHECK(step.losses[2] == 0);
}

TEST_CASE("losses add up by their weights") {
  DataParallelOptions options = model_options(same_head_twice, 2, BatchNormMode::kLocal);
  const Outcome one = trained(options);
  options.losses = {{"out", CrossEntropyLoss{.weight = 0.75F}},
                    {"again", CrossEntropyLoss{.weight = 0.25F}}};
  check_close(trained(options), one);
  options.losses[1].loss = CrossEntropyLoss{.weight = 0.5F};
  CHECK(distance(trained(options).parameters, one.parameters) > 1e-4);
}

TEST_CASE("a head without a loss does not learn") {
  DataParallelOptions options = model_options(two_heads, 2, BatchNormMode::kSync);
  options.optimizer = Sgd{.weight_decay = 0};
  DataParallel run(options);
  const TensorMap before = run.state_dict();
  train(run);
  const TensorMap after = run.state_dict();
  CHECK(after.at("aux.weight").data == before.at("aux.weight").data);
  CHECK(after.at("head.weight").data != before.at("head.weight").data);
}

TEST_CASE("micro-batches are the slices of virtual BatchNorm, one after another") {
  DataParallelOptions options = model_options(two_heads, 1, BatchNormMode::kGhost, 8);
  options.norm.options.virtual_devices = 4;
  const auto steps = [](const DataParallelOptions& how) {
    DataParallel run(how);
    std::vector<double> losses;
    for (int step = 0; step < 2; ++step) {
      losses.push_back(run.train_step(toy_batch(8, step), step, 0.1F).loss);
    }
    return outcome_of(run, losses);
  };
  const Outcome sliced = steps(options);
  options.norm = BatchNorm2d();
  options.accumulate = 4;
  options.accumulated_statistics = MicroBatches::kFirst;
  check_close(steps(options), sliced);
  options.accumulated_statistics = MicroBatches::kLast;
  CHECK(distance(steps(options).statistics, sliced.statistics) > 1e-3);

  options.accumulated_statistics = MicroBatches::kEvery;
  DataParallel run(options);
  run.train_step(toy_batch(8, 0), 0, 0.1F);
  CHECK(run.replica(0).store().batch_norms().front()->num_batches_tracked == 4);
}

TEST_CASE("the last micro-batch that has images feeds the running statistics") {
  DataParallelOptions options = model_options(two_heads, 2, BatchNormMode::kSync, 5);
  options.accumulate = 4;  // of 2, 2, 1 and 0 images
  options.accumulated_statistics = MicroBatches::kLast;
  const auto train = [&](const Batch& batch) {
    DataParallel run(options);
    run.train_step(batch, 0, 0.1F);
    return outcome_of(run, {}).statistics;
  };
  const auto uneven = train(toy_batch(5, 0));
  options.accumulate = 1;
  Batch last = toy_batch(5, 0);
  const std::size_t values = last.images.size() / 5, labels = last.labels.size() / 5;
  last.images.erase(last.images.begin(),
                    last.images.begin() + static_cast<std::ptrdiff_t>(4 * values));
  last.labels.erase(last.labels.begin(),
                    last.labels.begin() + static_cast<std::ptrdiff_t>(4 * labels));
  last.samples.erase(last.samples.begin(), last.samples.begin() + 4);
  last.class_pixels.clear();
  CHECK(distance(uneven, train(last)) == 0);
}

TEST_CASE("micro-batches on several devices, with a step that is smaller than planned") {
  DataParallelOptions options = model_options(same_head_twice, 1, BatchNormMode::kLocal, 5);
  const Outcome whole = trained(options);
  options.devices = cpus(3);
  options.accumulate = 2;
  check_close(trained(options), whole);
  options.gradient_exchange = {GradientExchangeKind::kAllReduce, 1, 1};
  check_close(trained(options), whole);
}

TEST_CASE("a batch for each device gives the bits of the batch that is scattered") {
  for (const auto mode : {BatchNormMode::kSync, BatchNormMode::kLocal}) {
    const DataParallelOptions options = model_options(with_dropout, 4, mode);
    DataParallel one(options), other(options);
    for (int step = 0; step < 2; ++step) {
      const Batch batch = toy_batch(5, step);
      const StepResult expected = one.train_step(batch, step, 0.1F);
      const StepResult result = other.train_step(scattered(batch, 4), step, 0.1F);
      CHECK(result.loss == expected.loss);
    }
    CHECK(parameters(other, 3) == parameters(one, 3));
  }
  DataParallel run(toy_options(2, BatchNormMode::kLocal));
  CHECK_THROWS_WITH_AS(run.train_step(std::array<Batch, 1>{toy_batch(1, 0)}, 0, 0.1F),
                       doctest::Contains("a batch for each of the 2 devices, got 1"), Error);
}

TEST_CASE("labels that the batch has not counted are counted, in training and in evaluation") {
  DataParallel run(toy_options(2, BatchNormMode::kLocal));
  Batch counted = toy_batch(1, 3), plain = counted;
  plain.class_pixels.clear();
  const auto loss_of = [&](const Batch& batch) {
    return run.evaluate(3, [&](std::int64_t) { return batch; }).loss;
  };
  CHECK(loss_of(counted) > 0);
  CHECK(loss_of(plain) == loss_of(counted));
  plain.labels[5] = kClasses;
  CHECK_THROWS_WITH_AS(loss_of(plain), doctest::Contains("label 3 of pixel 5"), ReplicaError);
}

TEST_CASE("a label that no class has ends a training step before anything is computed") {
  DataParallel run(toy_options(2, BatchNormMode::kLocal));
  Batch batch = toy_batch(2, 3);
  batch.class_pixels.clear();
  batch.labels[5] = kClasses;
  CHECK_THROWS_WITH_AS(run.train_step(batch, 0, 0.1F),
                       doctest::Contains("a label is 3, but there are 3 classes"), Error);
}

TEST_CASE("replicas are told that they have their weights, rank 0 first") {
  std::mutex mutex;
  std::vector<int> ranks;
  std::array<const ParameterStore*, 3> stores{};
  DataParallelOptions options = toy_options(3, BatchNormMode::kSync);
  options.on_replicate = [&](const ReplicaContext& replica) {
    const std::lock_guard lock(mutex);
    ranks.push_back(replica.rank);
    stores[static_cast<std::size_t>(replica.rank)] = &replica.store;
    CHECK(replica.size == 3);
    CHECK(replica.store.find("head.weight") != nullptr);
  };
  DataParallel run(options);
  CHECK(ranks == std::vector<int>{0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) {
    CHECK(stores[static_cast<std::size_t>(rank)] == &run.replica(rank).store());
  }
  run.replicate();
  CHECK(ranks == std::vector<int>{0, 1, 2, 0, 1, 2});
  options.on_replicate = [](const ReplicaContext&) { throw ConfigError("no such layer"); };
  CHECK_THROWS_WITH_AS(DataParallel{options},
                       doctest::Contains("replica 0 (cpu:0): on_replicate: no such layer"),
                       ConfigError);
}

TEST_CASE("a model converted to synchronized BatchNorm is the one that was given it") {
  const Model own_layers = [](NetworkBuilder& net, Value* x, const NormLayer&) {
    return two_heads(net, x, BatchNorm2d());
  };
  const Outcome synced = trained(model_options(two_heads, 3, BatchNormMode::kSync));
  const Outcome local = trained(model_options(two_heads, 3, BatchNormMode::kLocal));
  CHECK(synced.parameters != local.parameters);
  const Model converted = convert_sync_batchnorm(own_layers);
  CHECK(trained(model_options(converted, 3, BatchNormMode::kLocal)) == synced);
  CHECK(trained(model_options(revert_sync_batchnorm(converted), 3, BatchNormMode::kLocal)) ==
        local);
}

TEST_CASE("conversion leaves frozen layers and virtual ones on the way back alone") {
  const Model frozen = [](NetworkBuilder& net, Value* x, const NormLayer&) {
    return two_heads(net, x, FrozenBatchNorm());
  };
  DataParallel run(model_options(convert_sync_batchnorm(frozen), 2, BatchNormMode::kLocal));
  const std::vector<float> before = statistics(run, 0);
  train(run);
  CHECK(statistics(run, 0) == before);
  DataParallelOptions options =
      model_options(revert_sync_batchnorm(two_heads), 1, BatchNormMode::kGhost);
  const Outcome reverted = trained(options);
  options.model = two_heads;
  CHECK(reverted == trained(options));
}

TEST_CASE("synchronization that the model does not take is an error") {
  const Model deaf = [](NetworkBuilder& net, Value* x, const NormLayer&) {
    return two_heads(net, x, BatchNorm2d());
  };
  CHECK_THROWS_WITH_AS(DataParallel{model_options(deaf, 2, BatchNormMode::kSync)},
                       doctest::Contains("none of the model's 2 BatchNorm layers is"), ConfigError);
}

TEST_CASE("norm layers check the shape of what they are given") {
  const auto backend = make_backend(Device{}, 1);
  const auto declare = [&](const NormLayer& norm, const Shape& shape, const NormCall& call) {
    ParameterStore store;
    NetworkBuilder net(*backend, store);
    norm(net, net.input(shape), "bn", call);
  };
  CHECK_NOTHROW(declare(BatchNorm1d(), {4, 3}, {}));
  CHECK_NOTHROW(declare(BatchNorm1d(), {4, 7, 3}, {}));
  CHECK_NOTHROW(declare(BatchNorm3d(), {4, 2, 7, 5, 3}, {}));
  CHECK_THROWS_WITH_AS(declare(BatchNorm1d(), {4, 7, 5, 3}, {}),
                       doctest::Contains("bn: expected an input of 2 to 3 dimensions"), Error);
  CHECK_THROWS_WITH_AS(declare(BatchNorm2d(), {4, 3}, {}),
                       doctest::Contains("bn: expected an input of 4 dimensions"), Error);
  CHECK_THROWS_WITH_AS(declare(SyncBatchNorm(), {4, 3}, {.num_features = 5}),
                       doctest::Contains("bn: expected an input with 5 channels"), Error);
}

TEST_CASE("options of outputs and losses that do not fit each other") {
  DataParallelOptions options = model_options(two_heads, 1, BatchNormMode::kLocal);
  options.losses = {{"auxiliary", CrossEntropyLoss{}}};
  CHECK_THROWS_WITH_AS(DataParallel{options},
                       doctest::Contains("no output 'auxiliary'; it has out, aux"), Error);
  options.losses = {};
  CHECK_THROWS_AS(DataParallel{options}, Error);
  options.losses = {{"out", CrossEntropyLoss{.weight = 0}}};
  CHECK_THROWS_AS(DataParallel{options}, Error);
  options.losses = {{"out", CrossEntropyLoss{}}};
  options.accumulate = 6;
  CHECK_THROWS_WITH_AS(DataParallel{options}, doctest::Contains("1 to 5 micro-batches"), Error);
}

TEST_CASE("linear layers over rows of any shape, reshaped") {
  const Model rows = [](NetworkBuilder& net, Value* x, const NormLayer& norm) -> Outputs {
    x = net.linear(x, "fc1", 12);
    x = norm(net, net.reshape(x, {x->shape.batch(), 3, 4}), "bn", {.relu = true});
    x = net.reshape(x, {x->shape.batch(), 12});
    return {{"out", net.linear(x, "fc2", kClasses)}};
  };
  DataParallelOptions options = model_options(rows, 1, BatchNormMode::kSync, 7);
  options.input = {7, 5};
  const auto steps = [](const DataParallelOptions& how) {
    DataParallel run(how);
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      Batch batch;
      Rng rng(3, RngPurpose::kTest, static_cast<std::uint64_t>(step));
      for (std::int64_t n = 0; n < 7; ++n) {
        batch.samples.push_back(n);
        for (int i = 0; i < 5; ++i) batch.images.push_back(rng.normal());
        batch.labels.push_back(static_cast<Label>(rng.below(kClasses)));
      }
      losses.push_back(run.train_step(batch, step, 0.1F).loss);
    }
    return outcome_of(run, losses);
  };
  const Outcome one = steps(options);
  CHECK(one.losses[2] != one.losses[0]);
  options.devices = cpus(3);
  check_close(steps(options), one);
}

}  // namespace lockstep::test
