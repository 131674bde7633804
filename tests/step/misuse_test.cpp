// Mistakes of a caller: each is an error that says what was expected, and leaves a run as it was.

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <optional>
#include <stdexcept>
#include <thread>

#include "lockstep/core/check.h"
#include "lockstep/nn/predictor.h"
#include "step/misuse_table.h"
#include "step/toy_training.h"
#include "support/check_contains.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// What a run consists of on every rank.
struct Held {
  std::vector<std::vector<float>> parameters, statistics;
  TensorMap state;  // with num_batches_tracked
  OptimizerState optimizer;
};

Held held_by(DataParallel& run) {
  Held held;
  for (int rank = 0; rank < run.size(); ++rank) {
    held.parameters.push_back(parameters(run, rank));
    held.statistics.push_back(statistics(run, rank));
  }
  held.state = run.state_dict();
  held.optimizer = run.optimizer_state();
  return held;
}

void check_holds(DataParallel& run, const Held& held) {
  const Held now = held_by(run);
  CHECK(now.parameters == held.parameters);
  CHECK(now.statistics == held.statistics);
  CHECK(now.optimizer == held.optimizer);
  for (const auto& [name, tensor] : held.state) {
    CAPTURE(name);
    CHECK(now.state.at(name).data == tensor.data);
  }
}

/// What `work` throws.
std::exception_ptr thrown_by(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

/// A mistake, and what its error says.
struct Mistake {
  const char* says;
  std::function<void(DataParallel&)> make;
};

Batch changed(const std::function<void(Batch&)>& change, std::int64_t count = 5) {
  Batch batch = toy_batch(count, 1);
  change(batch);
  return batch;
}

Mistake batch_mistake(const char* says, const std::function<void(Batch&)>& change) {
  return {says, [change](DataParallel& run) { run.train_step(changed(change), 1, 0.1F); }};
}

std::vector<Mistake> mistakes() {
  const auto rate = [](float lr) {
    return [lr](DataParallel& run) { run.train_step(toy_batch(5, 1), 1, lr); };
  };
  const auto load = [](const std::function<Batch(std::int64_t)>& give) {
    return [give](DataParallel& run) { run.evaluate(4, give); };
  };
  const auto load_changed = [load](const std::function<void(Batch&)>& change) {
    return load([change](std::int64_t) { return changed(change, 1); });
  };
  return {
      {"expected a learning rate that is finite and not negative, got nan", rate(kNaN)},
      {"expected a learning rate", rate(-1)},
      {"expected a learning rate", rate(kInfinity)},
      {"count from 0, got step -1",
       [](DataParallel& run) { run.train_step(toy_batch(5, 1), -1, 0.1F); }},
      {"step 1 got an empty batch", [](DataParallel& run) { run.train_step(Batch{}, 1, 0.1F); }},
      batch_mistake("Batch::samples is empty, but there are 3840 values of images",
                    [](Batch& batch) { batch.samples.clear(); }),
      batch_mistake("expected at most 5 samples, as the largest global batch of the planned input",
                    [](Batch& batch) { batch.samples.push_back(7); }),
      batch_mistake("expected indices of samples from 0, got -3",
                    [](Batch& batch) { batch.samples[2] = -3; }),
      batch_mistake("expected 3840 values of images, 768 for each of the 5 samples of the batch, "
                    "got 3839; an input is [1, 16, 16, 3]",
                    [](Batch& batch) { batch.images.pop_back(); }),
      batch_mistake("got 3841", [](Batch& batch) { batch.images.push_back(0); }),
      batch_mistake("expected 256 per sample, got 1279 for 5",
                    [](Batch& batch) { batch.labels.pop_back(); }),
      batch_mistake("expected 256 per sample, got 1281 for 5",
                    [](Batch& batch) { batch.labels.push_back(0); }),
      batch_mistake("expected images of 16x16, as in the input [5, 16, 16, 3], got 8x32",
                    [](Batch& batch) {
                      batch.size = {8, 32};
                    }),
      batch_mistake("Batch::targets has 'outt' (2 values), but no loss is at an output",
                    [](Batch& batch) {
                      batch.targets["outt"] = {1, 2};
                    }),
      batch_mistake("Batch::class_pixels counts -1 labels of class 0",
                    [](Batch& batch) { batch.class_pixels[0] = -1; }),
      batch_mistake("Batch::class_pixels counts 99999",
                    [](Batch& batch) {
                      batch.class_pixels = {99999, 0, 0};
                    }),
      batch_mistake("a label is 3, but there are 3 classes",
                    [](Batch& batch) {
                      batch.class_pixels.clear();
                      batch.labels[7] = 3;
                    }),
      {"a batch for each of the 3 devices, got 1",
       [](DataParallel& run) { run.train_step(std::vector<Batch>{toy_batch(1, 1)}, 1, 0.1F); }},
      {"got an empty batch",
       [](DataParallel& run) { run.train_step(std::vector<Batch>(3), 1, 0.1F); }},
      {"a micro-batch", [](DataParallel& run) { run.forward(toy_batch(6, 1)); }},
      {"forward got an empty batch", [](DataParallel& run) { run.forward(Batch{}); }},
      {"finish_step without a step", [](DataParallel& run) { run.finish_step(); }},
      {"image 2 is damaged", load([](std::int64_t index) -> Batch {
         if (index == 2) throw std::out_of_range("image 2 is damaged");
         return toy_batch(1, index);
       })},
      {"label 3 of pixel 5", load_changed([](Batch& batch) {
         batch.class_pixels.clear();
         batch.labels[5] = 3;
       })},
      {"expected 768 values of images for the 1 samples of an input [1, 16, 16, 3], got 767",
       load_changed([](Batch& batch) { batch.images.pop_back(); })},
      {"a batch to evaluate is empty", load([](std::int64_t) { return Batch(); })},
      {"expected 256 per sample", load_changed([](Batch& batch) { batch.labels.clear(); })},
      {"must be multiples of 2", load([](std::int64_t) {
         return toy_batch(1, 1, {1, 1});
       })},
      {"expected a number of batches to evaluate, got -1",
       [](DataParallel& run) { run.evaluate(-1, [](std::int64_t) { return Batch(); }); }},
      {"is null", [](DataParallel& run) { run.evaluate(1, nullptr); }},
      {"is null", [](DataParallel& run) { run.for_each_replica(nullptr); }},
      {"there is no rank 17 here", [](DataParallel& run) { run.replica(17); }},
      {"there is no rank -1 here", [](DataParallel& run) { run.replica(-1); }},
      {"the weights are of another network", [](DataParallel& run) { run.load_state_dict({}); }},
      {"this run trains with 'sgd'", [](DataParallel& run) { run.set_optimizer_state({}); }},
      {"no loss scale", [](DataParallel& run) { run.set_loss_scale({}); }},
  };
}

}  // namespace

TEST_CASE("a mistake in an argument is an error that says so, and leaves the run as it was") {
  const auto run = make_toy(toy_options(3, BatchNormMode::kSync));
  const auto twin = make_toy(toy_options(3, BatchNormMode::kSync));
  run->train_step(toy_batch(5, 0), 0, 0.1F);
  twin->train_step(toy_batch(5, 0), 0, 0.1F);
  const Held before = held_by(*run);
  for (const Mistake& mistake : mistakes()) {
    CAPTURE(std::string(mistake.says));
    with_timeout(std::chrono::seconds(30), [&] {
      const std::exception_ptr thrown = thrown_by([&] { mistake.make(*run); });
      CHECK(is_a<Error>(thrown));
      check_contains(text_of(thrown), mistake.says);
    });
    CHECK_NOTHROW(check_holds(*run, before));
  }
  CHECK(run->train_step(toy_batch(5, 1), 1, 0.1F).loss ==
        twin->train_step(toy_batch(5, 1), 1, 0.1F).loss);
  check_holds(*run, held_by(*twin));
}

TEST_CASE("weights that do not fit strictly may be loaded as far as they do") {
  const auto run = make_toy(toy_options(2, BatchNormMode::kSync));
  TensorMap weights = run->state_dict();
  weights.erase("head.bias");
  CHECK_THROWS_WITH_AS(run->load_state_dict(weights), doctest::Contains("head.bias"), DataError);
  CHECK(run->load_state_dict(weights, false).missing == std::vector<std::string>{"head.bias"});
  CHECK(run->train_step(toy_batch(5, 0), 0, 0.1F).loss > 0);
}

TEST_CASE("one pixel that is not a number leaves no trace") {
  for (const BatchNormMode mode : {BatchNormMode::kLocal, BatchNormMode::kSync}) {
    DataParallelOptions options = toy_options(3, mode);
    options.accumulate = mode == BatchNormMode::kSync ? 2 : 1;
    const auto run = make_toy(options);
    run->train_step(toy_batch(5, 0), 0, 0.1F);
    const Held before = held_by(*run);
    const Batch spoiled = changed([](Batch& batch) { batch.images[5] = kNaN; });
    for (int i = 0; i < 2; ++i) {
      CHECK_THROWS_WITH_AS(run->train_step(spoiled, 1, 0.1F), doctest::Contains("were not changed"),
                           NonFiniteError);
      check_holds(*run, before);
    }
    const auto twin = make_toy(options);
    twin->train_step(toy_batch(5, 0), 0, 0.1F);
    CHECK(run->train_step(toy_batch(5, 1), 1, 0.1F).loss ==
          twin->train_step(toy_batch(5, 1), 1, 0.1F).loss);
    check_holds(*run, held_by(*twin));
  }
}

TEST_CASE("a second thread is told that the first one is in a call") {
  const auto run = make_toy(toy_options(2, BatchNormMode::kSync));
  std::promise<void> inside, go_on;
  const auto slow = [&](std::int64_t index) {
    if (index == 0) {
      inside.set_value();
      go_on.get_future().wait();
    }
    return toy_batch(1, index);
  };
  std::thread evaluation([&] { run->evaluate(2, slow); });
  inside.get_future().wait();
  const std::vector<Mistake> calls{
      {"train_step is called", [](DataParallel& net) { net.train_step(toy_batch(5, 0), 0, 0.1F); }},
      {"evaluate is called",
       [](DataParallel& net) { net.evaluate(0, [](std::int64_t) { return Batch(); }); }},
      {"state_dict is called", [](DataParallel& net) { net.state_dict(); }},
      {"load_state_dict is called", [](DataParallel& net) { net.load_state_dict({}); }},
      {"optimizer_state is called", [](DataParallel& net) { net.optimizer_state(); }},
      {"replicate is called", [](DataParallel& net) { net.replicate(); }},
  };
  for (const Mistake& call : calls) {
    const std::exception_ptr thrown = thrown_by([&] { call.make(*run); });
    check_contains(text_of(thrown), call.says);
    check_contains(text_of(thrown), "while another thread is in evaluate");
  }
  go_on.set_value();
  evaluation.join();
  CHECK(run->train_step(toy_batch(5, 0), 0, 0.1F).loss > 0);
}

TEST_CASE("options that are out of range are errors of the configuration, when a run is made") {
  struct Wrong {
    const char* says;
    std::function<void(DataParallelOptions&)> make;
  };
  const auto cross_entropy = [](CrossEntropyLoss loss) {
    return [loss](DataParallelOptions& options) { options.losses = {{"out", loss}}; };
  };
  const auto output = [](const std::function<Outputs(NetworkBuilder&, Value*)>& declare) {
    return [declare](DataParallelOptions& options) {
      options.model = [declare](NetworkBuilder& net, Value* x, const NormLayer&) {
        return declare(net, x);
      };
    };
  };
  const std::vector<Wrong> wrongs{
      {"model is null", [](auto& options) { options.model = nullptr; }},
      {"devices is empty", [](auto& options) { options.devices.clear(); }},
      {"[N, ..., C], got []", [](auto& options) { options.input = {}; }},
      {"got [5, 0, 16, 3]",
       [](auto& options) {
         options.input = {5, 0, 16, 3};
       }},
      {"1 to 5 micro-batches", [](auto& options) { options.accumulate = 0; }},
      {"1 to 5 micro-batches", [](auto& options) { options.accumulate = -7; }},
      {"expected 1 to 8 losses, got 0", [](auto& options) { options.losses.clear(); }},
      {"no output 'aux'; it has out",
       [](auto& options) {
         options.losses = {{"aux", CrossEntropyLoss{}}};
       }},
      {"the weight of the loss", cross_entropy({.weight = kNaN})},
      {"the loss cross_entropy takes a class_weight from 0, got",
       cross_entropy({.class_weight = {1, -1, 1}})},
      {"the loss cross_entropy takes a class_weight from 0, got",
       cross_entropy({.class_weight = {1, kNaN, 1}})},
      {"class_weight has 2 values for 3 classes", cross_entropy({.class_weight = {1, 1}})},
      {"lr", [](auto& options) { options.optimizer = Sgd{.lr = -1}; }},
      {"lr", [](auto& options) { options.optimizer = Sgd{.lr = kNaN}; }},
      {"momentum", [](auto& options) { options.optimizer = Sgd{.momentum = 2}; }},
      {"weight_decay", [](auto& options) { options.optimizer = AdamW{.weight_decay = kNaN}; }},
      {"bn: eps", [](auto& options) { options.norm.options.eps = -1; }},
      {"bn: momentum", [](auto& options) { options.norm.options.momentum = 3; }},
      {"bn: renorm_max_r", [](auto& options) { options.norm.options.renorm_max_r = 0.5F; }},
      {"bn: renorm_max_d", [](auto& options) { options.norm.options.renorm_max_d = kNaN; }},
      {"bn: virtual_devices", [](auto& options) { options.norm.options.virtual_devices = 0; }},
      {"precision: expected fp32, bf16 or fp16, got",
       [](auto& options) { options.precision = DType::kUInt8; }},
      {"the model returns none", output([](auto&, Value*) { return Outputs{}; })},
      {"output 'out' has no value", output([](auto&, Value*) {
         return Outputs{{"out", nullptr}};
       })},
      {"is the network's input", output([](auto&, Value* x) {
         return Outputs{{"out", x}};
       })},
  };
  for (const Wrong& wrong : wrongs) {
    CAPTURE(std::string(wrong.says));
    DataParallelOptions options = toy_options(2, BatchNormMode::kSync);
    wrong.make(options);
    const std::exception_ptr thrown = thrown_by([&] { DataParallel{options}; });
    CHECK(is_a<ConfigError>(thrown));
    check_contains(text_of(thrown), wrong.says);
  }
}

TEST_CASE("what a model throws keeps its type") {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  DataParallelOptions options = toy_options(3, BatchNormMode::kSync);
  options.model = [](NetworkBuilder&, Value*, const NormLayer&) -> Outputs { throw Mine("mine"); };
  CHECK_THROWS_WITH_AS(DataParallel{options}, "mine", Mine);
  options.model = [](NetworkBuilder& net, Value* x, const NormLayer&) -> Outputs {
    return {{"out", net.add(x, net.max_pool2d(x, {}))}};
  };
  const std::exception_ptr thrown = thrown_by([&] { DataParallel{options}; });
  check_contains(text_of(thrown), "add_1: shapes differ, [2, 16, 16, 3] and [2, 8, 8, 3]");
  CHECK_FALSE(is_a<ReplicaError>(thrown));
}

TEST_CASE("replicas that declare different layers of equal size are refused") {
  DataParallelOptions options = toy_options(2, BatchNormMode::kSync);
  options.model = [](NetworkBuilder& net, Value* x, const NormLayer& norm) -> Outputs {
    const std::string name = concat("a", net.backend().device().ordinal);
    return {{"out", net.conv2d(norm(net, x, "bn"), name, {.out_channels = kClasses})}};
  };
  CHECK_THROWS_WITH_AS(DataParallel{options},
                       doctest::Contains("replica 1 declares the parameter a1.weight [3, 3, 1, 1] "
                                         "where replica 0 declares the parameter a0.weight"),
                       ConfigError);
}

TEST_CASE("a run and a predictor may be moved") {
  const auto made = [](int ranks) {
    return DataParallel(toy_options(ranks, BatchNormMode::kSync));
  };
  const double expected = made(2).train_step(toy_batch(5, 0), 0, 0.1F).loss;
  std::optional<DataParallel> run;
  run = made(2);
  DataParallel moved = std::move(*run);
  run.reset();
  CHECK(moved.train_step(toy_batch(5, 0), 0, 0.1F).loss == expected);
  moved = made(3);
  CHECK(moved.size() == 3);
  CHECK(moved.train_step(toy_batch(5, 0), 0, 0.1F).loss == expected);
  std::vector<Predictor> predictors;
  for (int i = 0; i < 3; ++i) predictors.emplace_back(moved.options().model, moved.state_dict());
  CHECK(predictors[1].predict(std::vector<float>(768), {1, 16, 16, 3}).classes.size() == 256);
}

TEST_CASE("users see a replica by public headers alone") {
  DataParallel run(toy_options(2, BatchNormMode::kSync));
  std::atomic<int> seen{0};
  run.for_each_replica([&](Replica& replica) {
    seen += replica.rank() + 1;
    CHECK(replica.device() == replica.backend().device());
    CHECK(&replica.network().parameters() == &replica.store());
  });
  CHECK(seen == 3);
}

}  // namespace lockstep::test
