// The cases of PyTorch's distributed tests that train BN_NET with SyncBatchNorm under
// DistributedDataParallel beside one device with the whole batch: Linear(2, 40), reshaped to
// (-1, 4, 10), BatchNorm1d(4), Linear(40, 4), mean squared error. Theirs ends in a softmax, which
// this library has in its cross-entropy only and which is left out. Channels come last here.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "core/rng.h"
#include "nn/norms/batch_norm_layer.h"
#include "step/toy_training.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

constexpr int kSteps = 5;
constexpr std::int64_t kLocalBatch = 2;

Model bn_net(const BatchNormOptions& options) {
  return [options](NetworkBuilder& net, Value* x, const NormLayer&) -> Outputs {
    x = net.reshape(net.linear(x, "fc1", 40, false), {x->shape.batch(), 10, 4});
    x = SyncBatchNorm(options)(net, x, "bn", {.num_features = 4});
    x = net.reshape(x, {x->shape.batch(), 40});
    return {{"out", net.linear(x, "fc2", 4, false)}};
  };
}

/// BatchNorm1d(2) on the input, (N, 2), itself.
Outputs norm_of_rows(NetworkBuilder& net, Value* x, const NormLayer&) {
  x = SyncBatchNorm()(net, x, "bn", {.num_features = 2});
  return {{"out", net.linear(x, "fc", 4)}};
}

/// Images of two channels.
Outputs norm_of_images(NetworkBuilder& net, Value* x, const NormLayer&) {
  x = SyncBatchNorm()(net, x, "bn", {.num_features = 2});
  return {{"out", net.linear(net.reshape(x, {x->shape.batch(), 32}), "fc", 4)}};
}

DataParallelOptions published_options(Model model, int ranks, const Shape& input) {
  DataParallelOptions options;
  options.devices = cpus(ranks);
  options.model = std::move(model);
  options.input = input;
  options.losses = {{"out", MeanSquaredErrorLoss{}}};
  options.optimizer = Sgd{.lr = 0.05F, .momentum = 0.9F, .weight_decay = 0};
  options.seed = 3;
  return options;
}

/// The samples with these numbers.
Batch batch_of(const std::vector<std::int64_t>& samples, const Shape& input) {
  Batch batch;
  std::vector<float>& targets = batch.targets["out"];
  for (const std::int64_t sample : samples) {
    batch.samples.push_back(sample);
    Rng rng(17, RngPurpose::kTest, static_cast<std::uint64_t>(sample));
    for (std::int64_t i = 0; i < input.elements() / input.batch(); ++i) {
      batch.images.push_back(rng.normal());
    }
    for (int i = 0; i < 4; ++i) targets.push_back(rng.normal());
  }
  return batch;
}

/// The numbers of a step's samples, shuffled.
std::vector<std::int64_t> shuffled(std::int64_t count, int step) {
  std::vector<std::int64_t> samples;
  for (std::int64_t n = 0; n < count; ++n) samples.push_back(n);
  std::shuffle(samples.begin(), samples.end(), std::mt19937(static_cast<unsigned>(step)));
  return samples;
}

std::int64_t sum_of(const std::vector<std::int64_t>& sizes) {
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) sum += size;
  return sum;
}

/// A batch for each rank: `sizes` of the samples, in their order.
std::vector<Batch> dealt_out(const std::vector<std::int64_t>& samples,
                             const std::vector<std::int64_t>& sizes, const Shape& input) {
  std::vector<Batch> batches;
  auto at = samples.begin();
  for (const std::int64_t size : sizes) {
    batches.push_back(batch_of({at, at + size}, input));
    at += size;
  }
  return batches;
}

/// Steps of one device on the whole batch beside those of a device for each of `sizes`, with that
/// many samples. Parameters and statistics are equal after each.
void check_as_one_device(const Model& model, const Shape& sample,
                         const std::vector<std::int64_t>& sizes) {
  const auto ranks = static_cast<int>(sizes.size());
  const std::int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  const Shape input = sample.with_batch(sum_of(sizes));
  DataParallel one(published_options(model, 1, input));
  DataParallel several(published_options(model, ranks, sample.with_batch(largest * ranks)));
  REQUIRE(parameters(one, 0) == parameters(several, 0));
  for (int step = 0; step < kSteps; ++step) {
    CAPTURE(ranks);
    CAPTURE(step);
    const std::vector<std::int64_t> samples = shuffled(input.batch(), step);
    const double whole = one.train_step(batch_of(samples, input), step).loss;
    const double loss = several.train_step(dealt_out(samples, sizes, input), step, 0.05F).loss;
    CHECK(loss == doctest::Approx(whole).epsilon(1e-5));
    CHECK(distance(parameters(several, ranks - 1), parameters(one, 0)) < 5e-6);
    CHECK(distance(statistics(several, ranks - 1), statistics(one, 0)) < 5e-6);
    CHECK(parameters(several, ranks - 1) == parameters(several, 0));
  }
}

const Shape kRow{kLocalBatch, 2};

}  // namespace

TEST_CASE("published, PyTorch: SyncBatchNorm, as one device with the whole batch at every step") {
  for (const int ranks : {2, 3, 4}) {
    check_as_one_device(bn_net({}), kRow, std::vector<std::int64_t>(ranks, kLocalBatch));
  }
}

TEST_CASE("published, PyTorch: SyncBatchNorm_No_Affine") {
  check_as_one_device(bn_net({.affine = false}), kRow, {kLocalBatch, kLocalBatch});
}

TEST_CASE("published, PyTorch: SyncBatchNorm_2D_Input") {
  check_as_one_device(norm_of_rows, kRow, {kLocalBatch, kLocalBatch, kLocalBatch});
}

TEST_CASE("published, PyTorch: SyncBatchNorm_Single_Input_Per_Process") {
  check_as_one_device(norm_of_rows, kRow, {1, 1});
}

// There the loss of each process is scaled by its share of the global batch; here the mean is the
// global one.
TEST_CASE("published, PyTorch: SyncBatchNorm_Diff_Input_Sizes_gradient") {
  check_as_one_device(bn_net({}), kRow, {2, 3});
  check_as_one_device(bn_net({}), kRow, {2, 3, 4, 5});
}

TEST_CASE("published, PyTorch: SyncBatchNorm_Channels_Last") {
  check_as_one_device(norm_of_images, {kLocalBatch, 4, 4, 2}, {kLocalBatch, kLocalBatch});
}

TEST_CASE("published, PyTorch: a state that was saved and loaded goes on with the same bits") {
  const TemporaryFolder folder;
  const Shape input = kRow.with_batch(4);
  DataParallel run(published_options(bn_net({}), 2, input));
  run.train_step(batch_of(shuffled(4, 0), input), 0);
  const std::string path = (folder.path() / "net.safetensors").string();
  save_safetensors(path, run.state_dict());
  DataParallelOptions options = published_options(bn_net({}), 2, input);
  options.seed = 4;
  DataParallel other(options);
  CHECK(parameters(other, 1) != parameters(run, 1));
  other.load_state_dict(load_safetensors(path));
  other.set_optimizer_state(run.optimizer_state());
  for (DataParallel* both : {&run, &other}) both->train_step(batch_of(shuffled(4, 1), input), 1);
  CHECK(parameters(other, 1) == parameters(run, 1));
  CHECK(statistics(other, 1) == statistics(run, 1));
}

TEST_CASE("published, PyTorch: conversion gives every layer, however deep, the process group") {
  const Model nested = [](NetworkBuilder& net, Value* x, const NormLayer& norm) -> Outputs {
    const auto block = [&](const std::string& name) {
      const Conv2dOptions same{.out_channels = 3, .kernel = 3, .padding = 1};
      Value* y = norm(net, net.conv2d(x, name + ".conv", same), name + ".bn", {.relu = true});
      x = BatchNorm2d()(net, y, name + ".own", {.residual = x});  // of the model's own
    };
    block("layer1.0");
    block("layer1.1");
    return {{"out", net.conv2d(x, "head", {.out_channels = kClasses, .bias = true})}};
  };
  const RankPartition groups{{0, 2}, {1, 3}};
  DataParallelOptions options = toy_options(4, BatchNormMode::kLocal, 8);
  options.model = convert_sync_batchnorm(nested, groups);
  DataParallel run(options);
  REQUIRE(batch_norms_of(run.replica(0).network()).size() == 4);
  for (const BatchNormLayer* layer : batch_norms_of(run.replica(0).network())) {
    CHECK(layer->config().norm.options.mode == BatchNormMode::kSync);
    CHECK(layer->config().norm.options.process_groups == groups);
  }
  run.train_step(toy_batch(8, 0), 0, 0.1F);
  CHECK(statistics(run, 0) == statistics(run, 2));
  CHECK(statistics(run, 1) == statistics(run, 3));
  CHECK(statistics(run, 0) != statistics(run, 1));
}

}  // namespace lockstep::test
