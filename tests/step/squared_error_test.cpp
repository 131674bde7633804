// Training by mean squared error: what a user gives, and that the mean is the global batch's.

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "core/rng.h"
#include "lockstep/core/check.h"
#include "step/toy_training.h"

namespace lockstep::test {
namespace {

constexpr std::int64_t kIn = 3, kOut = 2;

/// y = W x + b
Outputs linear(NetworkBuilder& net, Value* x, const NormLayer&) {
  return {{"out", net.linear(x, "fc", kOut)}};
}

/// One head that is a map of values and one that is classes.
Outputs two_kinds(NetworkBuilder& net, Value* x, const NormLayer& norm) {
  x = net.conv2d(x, "stem", {.out_channels = 6, .kernel = 3, .padding = 1});
  x = norm(net, x, "bn", {.relu = true});
  return {{"classes", net.conv2d(x, "head", {.out_channels = kClasses, .bias = true})},
          {"depth", net.conv2d(x, "depth", {.out_channels = 2, .bias = true})}};
}

std::vector<float> random_row(std::int64_t count, std::uint64_t item) {
  Rng rng(3, RngPurpose::kTest, item);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = rng.normal();
  return values;
}

/// Samples [begin, end) of an endless data set.
Batch rows(std::int64_t begin, std::int64_t end) {
  Batch batch;
  std::vector<float>& targets = batch.targets["out"];
  for (std::int64_t n = begin; n < end; ++n) {
    batch.samples.push_back(n);
    for (const float x : random_row(kIn, 2 * n)) batch.images.push_back(x);
    for (const float t : random_row(kOut, 2 * n + 1)) targets.push_back(t);
  }
  return batch;
}

DataParallelOptions linear_options(int ranks, std::int64_t batch = 7) {
  DataParallelOptions options;
  options.devices = cpus(ranks);
  options.model = linear;
  options.input = {batch, kIn};
  options.losses = {{"out", MeanSquaredErrorLoss{}}};
  options.optimizer = Sgd{.momentum = 0, .weight_decay = 0};
  return options;
}

std::vector<float> floats_of(const TensorMap& tensors, const std::string& name) {
  const HostTensor& tensor = tensors.at(name);
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

struct Expected {
  double loss = 0;
  std::vector<double> weight, bias;  // after a step with learning rate 1
};

/// Of a step on `batch` by the definition, with a loss of this weight.
Expected definition(const TensorMap& before, const Batch& batch, double loss_weight) {
  const std::vector<float> weight = floats_of(before, "fc.weight"),
                           bias = floats_of(before, "fc.bias");
  Expected e{0, {weight.begin(), weight.end()}, {bias.begin(), bias.end()}};
  const std::vector<float>& targets = batch.targets.at("out");
  const double share = loss_weight / static_cast<double>(targets.size());
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(targets.size()); ++i) {
    const std::int64_t n = i / kOut, o = i % kOut;
    double y = bias[o];
    for (std::int64_t c = 0; c < kIn; ++c) {
      y += static_cast<double>(weight[o * kIn + c]) * batch.images[n * kIn + c];
    }
    const double difference = y - targets[i];
    e.loss += share * difference * difference;
    e.bias[o] -= 2 * share * difference;
    for (std::int64_t c = 0; c < kIn; ++c) {
      e.weight[o * kIn + c] -= 2 * share * difference * batch.images[n * kIn + c];
    }
  }
  return e;
}

double largest_difference(const std::vector<float>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

void check_step(DataParallel& run, const Batch& batch, double loss_weight,
                const std::function<StepResult()>& step) {
  const Expected expected = definition(run.state_dict(), batch, loss_weight);
  CHECK(step().loss == doctest::Approx(expected.loss).epsilon(1e-6));
  const TensorMap after = run.state_dict();
  CHECK(largest_difference(floats_of(after, "fc.weight"), expected.weight) < 1e-6);
  CHECK(largest_difference(floats_of(after, "fc.bias"), expected.bias) < 1e-6);
}

}  // namespace

TEST_CASE("mean squared error: the mean is over the global batch, however it is cut") {
  const Batch batch = rows(0, 7);
  for (const int ranks : {1, 2, 4, 6}) {  // 7; 4, 3; 2, 2, 2, 1; 2, 2, 2, 1, 0, 0
    for (const int accumulate : {1, 3}) {
      for (const float weight : {1.0F, 0.25F}) {
        DataParallelOptions options = linear_options(ranks);
        options.accumulate = accumulate;
        options.losses[0].loss = MeanSquaredErrorLoss{.weight = weight};
        DataParallel run(options);
        CAPTURE(ranks);
        CAPTURE(accumulate);
        check_step(run, batch, weight, [&] { return run.train_step(batch, 0, 1); });
      }
    }
  }
}

TEST_CASE("mean squared error: a batch for each device, of any size") {
  const std::array<Batch, 3> parts{rows(0, 1), rows(1, 5), rows(5, 7)};
  DataParallel run(linear_options(3, 12));
  check_step(run, rows(0, 7), 1, [&] { return run.train_step(parts, 0, 1); });
}

TEST_CASE("mean squared error beside cross-entropy, on any number of devices as on one") {
  DataParallelOptions options = toy_options(1, BatchNormMode::kSync);
  options.model = two_kinds;
  options.losses = {{"classes", CrossEntropyLoss{}}, {"depth", MeanSquaredErrorLoss{.weight = 3}}};
  const auto steps = [](const DataParallelOptions& how) {
    DataParallel run(how);
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) {
      Batch batch = toy_batch(5, step);
      batch.targets["depth"] = random_row(std::int64_t{5} * 16 * 16 * 2, 1000 + step);
      const StepResult result = run.train_step(batch, step, 0.05F);
      CHECK(result.loss == result.losses[0] + result.losses[1]);
      losses.push_back(result.losses[0]);
      losses.push_back(result.losses[1]);
    }
    return outcome_of(run, losses);
  };
  const Outcome one = steps(options);
  CHECK(one.losses[5] < one.losses[1]);
  for (const int ranks : {2, 4}) {
    options.devices = cpus(ranks);
    CHECK(steps(options) == one);  // bit for bit
  }
}

TEST_CASE("evaluation by mean squared error: the mean over all elements, and no confusion") {
  double expected = 0;
  for (const int ranks : {1, 3}) {
    DataParallel run(linear_options(ranks));
    if (ranks == 1) expected = definition(run.state_dict(), rows(0, 6), 1).loss;
    const auto result = run.evaluate(3, [](std::int64_t i) { return rows(2 * i, 2 * i + 2); });
    CHECK(result.loss == doctest::Approx(expected).epsilon(1e-6));
    CHECK(result.confusion.empty());
  }
}

TEST_CASE("a batch without the targets of a loss is an error that says what it lacks") {
  DataParallel run(linear_options(2));
  Batch batch = rows(0, 4);
  batch.targets["out"].push_back(0);
  CHECK_THROWS_WITH_AS(run.train_step(batch, 0, 1),
                       doctest::Contains("targets for output 'out' do not fit its count: expected "
                                         "2 per sample, got 9 for 4"),
                       Error);
  batch.targets.clear();
  CHECK_THROWS_WITH_AS(
      run.train_step(batch, 0, 1),
      doctest::Contains("no targets for output 'out'; Batch::targets[\"out\"] takes 2 values"),
      Error);
  CHECK_NOTHROW(run.train_step(rows(0, 4), 0, 1));
}

}  // namespace lockstep::test
