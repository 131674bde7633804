// The two ways of the gradient exchange: which one a run takes, what is summed together and when,
// and that both lead to the same bits where all ranks have as many images, a power of two.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "lockstep/core/check.h"
#include "step/bucketed_reducer.h"
#include "step/gradient_reducer.h"
#include "step/toy_training.h"
#include "support/errors.h"

namespace lockstep::test {
namespace {

constexpr std::size_t kOneParameter = 1;
constexpr std::size_t kEverything = std::size_t{1} << 40;

std::vector<Device> gpus(const std::vector<int>& ordinals) {
  std::vector<Device> devices;
  for (const int ordinal : ordinals) {
    const auto slot = std::count_if(devices.begin(), devices.end(),
                                    [&](const Device& other) { return other.ordinal == ordinal; });
    devices.push_back({DeviceKind::kCuda, ordinal, static_cast<int>(slot)});
  }
  return devices;
}

DataParallelOptions summed_in_buckets(DataParallelOptions options, std::size_t bucket_bytes) {
  options.gradient_exchange.kind = GradientExchangeKind::kAllReduce;
  options.gradient_exchange.first_bucket_bytes = bucket_bytes;
  options.gradient_exchange.bucket_bytes = bucket_bytes;
  return options;
}

/// After two rounds of steps: the second one's batches are all known.
Outcome outcome_of_two_rounds(DataParallel& run,
                              const std::vector<std::int64_t>& batches = {5, 5, 3}) {
  std::vector<double> losses = train(run, batches);
  const std::vector<double> again = train(run, batches);
  losses.insert(losses.end(), again.begin(), again.end());
  Outcome outcome = outcome_of(run, std::move(losses));
  for (int rank = 1; rank < run.size(); ++rank) CHECK(parameters(run, rank) == outcome.parameters);
  return outcome;
}

/// Two calls of convolution "twice", one early and one late.
Outputs sharing_net(NetworkBuilder& net, Value* x, const NormLayer&) {
  const Conv2dOptions same{.out_channels = 6, .kernel = 3, .padding = 1, .bias = true};
  x = net.batch_norm_relu(net.conv2d(x, "stem", {.out_channels = 6}), "bn0");
  x = net.batch_norm_relu(net.conv2d(x, "twice", same), "bn1");
  x = net.batch_norm_relu(net.conv2d(x, "between", same), "bn2");
  x = net.conv2d(x, "twice", same);
  return {{"out", net.conv2d(x, "head", {.out_channels = kClasses, .bias = true})}};
}

std::vector<GradientBucket> buckets_of(const Model& model, std::size_t first, std::size_t others,
                                       ParameterStore& store) {
  const auto backend = make_backend(Device{}, 1);
  const auto network = build_network(model, {}, {2, 16, 16, 3}, {}, *backend, store);
  return plan_gradient_buckets(*network, {.first_bucket_bytes = first, .bucket_bytes = others});
}

/// The calls of a rank in a step, one letter each: f and b for BatchNorm's, a for an all-reduce, |
/// for a barrier.
std::string calls_of_steps(DataParallelOptions options, const std::vector<std::int64_t>& batches) {
  std::string calls;
  options.communicator.hook = [&calls](int rank, const SyncCall& call) {
    if (rank != 1) return true;
    const bool barrier = call.direction == Direction::kOther && call.channels == 0;
    calls += call.direction == Direction::kForward    ? 'f'
             : call.direction == Direction::kBackward ? 'b'
             : barrier                                ? '|'
                                                      : 'a';
    return true;
  };
  const auto run = make_toy(options);
  for (std::size_t step = 0; step < batches.size(); ++step) {
    if (step > 0) calls += ' ';
    const auto number = static_cast<std::int64_t>(step);
    run->train_step(toy_batch(batches[step], number), number, 0.1F);
  }
  return calls;
}

}  // namespace

TEST_CASE("auto is the owner's sum, but for GPUs without NVLink between them") {
  const GpuAllReduce linked{nullptr, [](std::span<const Device>) { return PeerLink::kLink; }};
  const GpuAllReduce bus{nullptr, [](std::span<const Device>) { return PeerLink::kBus; }};
  const GpuAllReduce apart{nullptr, [](std::span<const Device>) { return PeerLink::kNone; }};
  const auto chosen = [](const std::vector<Device>& devices, const GpuAllReduce* build) {
    const GradientExchangeChoice choice =
        choose_gradient_exchange(GradientExchangeKind::kAuto, devices, build);
    return to_string(choice.kind) + (": " + choice.reason);
  };
  CHECK(chosen(cpus(4), nullptr) == "owner: replicas on the CPU");
  CHECK(chosen(gpus({2}), &apart) == "owner: one replica");
  CHECK(chosen(gpus({0, 0}), &apart) == "owner: replicas share a GPU");
  CHECK(chosen(gpus({0, 1}), nullptr) == "owner: no NCCL in this build");
  CHECK(chosen(gpus({0, 1}), &linked) == "owner: all GPUs have NVLink between them");
  CHECK(chosen(gpus({0, 1}), &bus) == "all_reduce: not all GPUs have NVLink between them");
  CHECK(chosen(gpus({0, 1}), &apart) == "all_reduce: not all GPUs reach each other's memory");
  CHECK(choose_gradient_exchange(GradientExchangeKind::kAllReduce, cpus(1)).reason == "as asked");
}

TEST_CASE("buckets are ranges from the end of the gradients on, of the sizes asked for") {
  const Model unet = toy_options(1, BatchNormMode::kLocal).model;
  for (const std::size_t size : {kOneParameter, std::size_t{3000}, kEverything}) {
    ParameterStore store;
    const auto buckets = buckets_of(unet, size, size, store);
    if (size == kOneParameter) CHECK(buckets.size() == store.parameters().size());
    if (size == kEverything) CHECK(buckets.size() == 1);
    std::int64_t end = store.elements();
    std::size_t layer = std::numeric_limits<std::size_t>::max();
    for (const GradientBucket& bucket : buckets) {
      CHECK(bucket.end == end);
      CHECK(bucket.ready_after <= layer);
      end = bucket.begin;
      layer = bucket.ready_after;
      if (end > 0) CHECK((bucket.end - bucket.begin) * 4 >= static_cast<std::int64_t>(size));
    }
    CHECK(end == 0);
    CHECK(layer == 0);
  }
  ParameterStore store;
  const auto buckets = buckets_of(unet, kOneParameter, kEverything, store);
  CHECK(buckets.size() == 2);
  CHECK(buckets[0].begin == store.find("head.bias")->offset);
}

TEST_CASE("a parameter that several calls share is complete after the first of them") {
  ParameterStore store;
  const auto buckets = buckets_of(sharing_net, kOneParameter, kOneParameter, store);
  const auto ready_after = [&](const char* name) {
    const std::int64_t offset = store.find(name)->offset;
    const auto found = std::find_if(buckets.begin(), buckets.end(),
                                    [&](const auto& bucket) { return bucket.begin == offset; });
    return found->ready_after;
  };
  CHECK(ready_after("stem.weight") == 0);
  CHECK(ready_after("twice.weight") == 2);  // and not 6
  CHECK(ready_after("twice.bias") == 2);
  CHECK(ready_after("between.weight") == 4);
  CHECK(ready_after("head.weight") == 7);
}

TEST_CASE("a store in another order: each bucket still starts when it is complete") {
  ParameterStore store;
  store.parameter("head.bias", Shape{kClasses}, ParameterKind::kBias);
  const auto buckets =
      buckets_of(toy_options(1, BatchNormMode::kLocal).model, kOneParameter, kOneParameter, store);
  CHECK(buckets[1].begin == 0);  // with the weights of the last layer
  CHECK(std::is_sorted(buckets.begin(), buckets.end(),
                       [](const auto& a, const auto& b) { return a.ready_after > b.ready_after; }));
}

TEST_CASE("the sums of all-reduces give the owners' bits") {
  for (const BatchNormMode mode : {BatchNormMode::kSync, BatchNormMode::kLocal}) {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      const DataParallelOptions options = toy_options(ranks, mode, 2 * ranks);
      const std::vector<std::int64_t> even{2 * ranks, 2 * ranks, ranks};
      const Outcome owners = outcome_of_two_rounds(*make_toy(options), even);
      for (const std::size_t bytes : {kOneParameter, std::size_t{3000}, kEverything}) {
        CAPTURE(ranks);
        CAPTURE(bytes);
        CHECK(outcome_of_two_rounds(*make_toy(summed_in_buckets(options, bytes)), even) == owners);
      }
    }
  }
}

TEST_CASE("of uneven parts the sums of all-reduces differ from the owners' by rounding alone") {
  const DataParallelOptions options = toy_options(2, BatchNormMode::kSync);
  const Outcome owners = outcome_of_two_rounds(*make_toy(options));
  const Outcome sums = outcome_of_two_rounds(*make_toy(summed_in_buckets(options, 3000)));
  CHECK(distance(sums.parameters, owners.parameters) < 1e-6);
}

TEST_CASE("all-reduces are over all ranks, also across sync groups") {
  DataParallelOptions options = toy_options(4, BatchNormMode::kSync, 8);
  options.norm.options.process_groups = contiguous_groups(4, 2);
  const auto outcome = [](const DataParallelOptions& how) {
    const auto run = make_toy(how);
    for (std::int64_t step = 0; step < 4; ++step) run->train_step(toy_batch(8, step), step, 0.1F);
    return parameters(*run, 3);
  };
  CHECK(outcome(summed_in_buckets(options, 3000)) == outcome(options));
}

TEST_CASE("shared parameters: both ways give the same bits, and those of one replica") {
  const auto outcome = [](DataParallelOptions options) {
    options.model = sharing_net;
    DataParallel run(options);
    return outcome_of_two_rounds(run, std::vector<std::int64_t>{3, 3, 6});
  };
  const Outcome owners = outcome(toy_options(3, BatchNormMode::kSync, 6));
  for (const std::size_t bytes : {kOneParameter, kEverything}) {
    CHECK(outcome(summed_in_buckets(toy_options(3, BatchNormMode::kSync, 6), bytes)) == owners);
  }
  const Outcome one =
      outcome(summed_in_buckets(toy_options(1, BatchNormMode::kSync, 6), kOneParameter));
  CHECK(distance(one.parameters, owners.parameters) < 1e-5);
}

// The toy U-Net has 6 BatchNorm layers and 20 parameters.
TEST_CASE("buckets start within the backward pass, but not for a batch of a new size") {
  const DataParallelOptions options =
      summed_in_buckets(toy_options(2, BatchNormMode::kSync), kOneParameter);
  const std::string sums(20, 'a');
  const std::string first = "ffffffbbbbbb|" + sums + "|";
  // Behind each exchange: the weights whose gradients waited for it (the head has two), gamma and
  // beta; at the end the first convolution's weights.
  const std::string later = "ffffffbaaaabaaabaaabaaabaaabaaaa||";
  CHECK(calls_of_steps(options, {5, 5, 3, 5, 3}) ==
        first + " " + later + " " + first + " " + later + " " + later);
  CHECK(calls_of_steps(summed_in_buckets(options, kEverything), {5, 5}) ==
        "ffffffbbbbbb|a| ffffffbbbbbba||");
  CHECK(calls_of_steps(toy_options(2, BatchNormMode::kSync), {5}) == "ffffffbbbbbb||");
}

TEST_CASE("training goes on with the other exchange and another number of devices") {
  const auto state_after = [](DataParallel& run, DataParallel* before) {
    if (before != nullptr) {
      run.set_optimizer_state(before->optimizer_state());
      copy_parameters(*before, run);
    }
    train(run);
    return std::pair(parameters(run, 0), run.optimizer_state());
  };
  const DataParallelOptions owners = toy_options(3, BatchNormMode::kSync);
  const DataParallelOptions sums = summed_in_buckets(owners, 3000);
  std::vector<std::pair<std::vector<float>, OptimizerState>> ends;
  for (const auto* first : {&owners, &sums}) {
    for (const auto* second : {&owners, &sums}) {
      const auto before = make_toy(*first);
      state_after(*before, nullptr);
      const auto run = make_toy(*second);
      ends.push_back(state_after(*run, before.get()));
      CHECK(ends.back() == ends.front());
    }
  }
  const auto before = make_toy(sums);
  train(*before);
  const auto pair = make_toy(summed_in_buckets(toy_options(2, BatchNormMode::kSync), 3000));
  CHECK(distance(state_after(*pair, before.get()).first, ends.front().first) < 1e-5);
}

TEST_CASE("a loss that is not finite ends a step whose sums are on the way") {
  DataParallelOptions options =
      summed_in_buckets(toy_options(4, BatchNormMode::kLocal), kOneParameter);
  std::vector<int> indices;  // of rank 2's all-reduces
  options.communicator.hook = [&indices](int rank, const SyncCall& call) {
    if (rank == 2 && call.channels > 0) indices.push_back(call.index);
    return true;
  };
  const auto run = make_toy(options);
  const auto other = make_toy(toy_options(4, BatchNormMode::kLocal));
  for (DataParallel* each : {run.get(), other.get()}) {
    train(*each);
    const std::vector<float> before = parameters(*each, 0);
    const OptimizerState momentum = each->optimizer_state();
    Batch batch = toy_batch(5, 1);
    batch.images[5] = std::numeric_limits<float>::quiet_NaN();
    CHECK_THROWS_AS(each->train_step(batch, 1, 0.1F), NonFiniteError);
    for (int rank = 0; rank < 4; ++rank) CHECK(parameters(*each, rank) == before);
    CHECK(each->optimizer_state() == momentum);
    each->train_step(toy_batch(5, 2), 2, 0.1F);
  }
  CHECK(parameters(*run, 3) == parameters(*other, 0));
  CHECK(indices.back() == 19);  // each step has finished its sums
}

TEST_CASE("the gradient's norm is that of one device with the whole batch, by either exchange") {
  const auto norms_of = [](DataParallelOptions options) {
    options.optimizer = Sgd{.weight_decay = 0.5F};  // is not of the gradient
    const auto run = make_toy(options);
    std::vector<double> norms;
    for (std::int64_t step = 0; step < 3; ++step) {
      norms.push_back(run->train_step(toy_batch(5, step), step, 0.01F).grad_norm);
      if (run->size() > 1) continue;
      double squares = 0;
      for (const float g : gradients(*run, 0)) {
        squares += static_cast<double>(g) * static_cast<double>(g);
      }
      CHECK(norms.back() == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
    }
    return norms;
  };
  const std::vector<double> one = norms_of(toy_options(1, BatchNormMode::kSync));
  CHECK(one[0] > 0);
  CHECK(one[0] != one[1]);
  const DataParallelOptions four = toy_options(4, BatchNormMode::kSync);
  for (const DataParallelOptions& options : {four, summed_in_buckets(four, 3000)}) {
    const std::vector<double> norms = norms_of(options);
    for (std::size_t step = 0; step < one.size(); ++step) {
      CHECK(norms[step] == doctest::Approx(one[step]).epsilon(1e-6));
    }
  }
}

TEST_CASE("a gradient that is not finite is an error although the loss is finite") {
  const DataParallelOptions four = toy_options(4, BatchNormMode::kSync);
  for (const DataParallelOptions& options :
       {toy_options(1, BatchNormMode::kSync), four, summed_in_buckets(four, 3000)}) {
    CAPTURE(options.devices.size());
    CAPTURE(to_string(options.gradient_exchange.kind));
    const auto run = make_toy(options);
    run->train_step(toy_batch(5, 0), 0, 0.1F);
    // Nothing comes out of the convolution, so that large images and a large gamma have nothing to
    // scale but the gradient.
    set_parameter(*run, "encoder.0.0.conv.weight", 0.0F);
    set_parameter(*run, "encoder.0.0.bn.weight", 1e20F);
    Batch large = toy_batch(5, 1);
    for (float& value : large.images) value *= 1e30F;
    std::string error;
    try {
      run->train_step(large, 1, 0.1F);
    } catch (const NonFiniteError& thrown) {
      error = thrown.what();
    }
    CHECK(contains(error, "step 1: the gradient is not finite (norm "));
    CHECK_FALSE(contains(error, "-nan"));  // a sign that differs between processors
    CHECK(contains(error,
                   ") although the loss is; the weights of this step are not to be used, "
                   "go on from the last checkpoint (--resume)"));
    // Of the weights that it has spoiled the loss is.
    CHECK_THROWS_WITH_AS(run->train_step(toy_batch(5, 2), 2, 0.1F),
                         doctest::Contains("step 2: the loss of replica 0"), NonFiniteError);
  }
}

}  // namespace lockstep::test
