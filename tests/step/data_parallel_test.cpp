#include "lockstep/parallel/data_parallel.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "core/rng.h"
#include "lockstep/core/check.h"
#include "lockstep/nn/models.h"
#include "nn/norms/batch_norm_layer.h"
#include "step/toy_training.h"

namespace lockstep::test {
namespace {

Outcome toy_outcome(const DataParallelOptions& options) {
  const auto run = make_toy(options);
  return outcome_of(*run, train(*run));
}

/// What its file of weights, its optimizer and its losses say of a run. A gradient's last bit shows
/// in the momentum alone.
std::tuple<std::map<std::string, std::vector<std::byte>>, std::map<std::string, std::vector<float>>,
           std::vector<double>>
model_outcome(DataParallel& run, std::vector<double> losses) {
  std::map<std::string, std::vector<std::byte>> tensors;
  for (const auto& [name, tensor] : run.state_dict()) tensors[name] = tensor.data;
  std::map<std::string, std::vector<float>> slots;
  for (const auto& [slot, values] : run.optimizer_state().slots) slots[slot] = values;
  return {tensors, slots, std::move(losses)};
}

/// A network with dropout between two convolutions.
Outputs dropout_net(NetworkBuilder& net, Value* x, const NormLayer&) {
  x = net.batch_norm_relu(
      net.conv2d(x, "a", {.out_channels = 6, .kernel = 3, .stride = 1, .padding = 1}), "bn");
  return {
      {"out", net.conv2d(net.dropout(x, 0.4F), "head", {.out_channels = kClasses, .bias = true})}};
}

/// What a batch has in vectors, in memory that the batch only refers to.
struct ForeignBatch {
  ForeignBatch(const Batch& own, ImageLayout layout)
      : images(own.images), labels(own.labels), batch(own) {
    const std::size_t pixels = labels.size() / own.samples.size(), channels = 3;
    for (std::size_t i = 0; i < images.size() && layout == ImageLayout::kChannelsFirst; ++i) {
      const std::size_t n = i / (pixels * channels), pixel = i / channels % pixels;
      images[(n * channels + i % channels) * pixels + pixel] = own.images[i];
    }
    batch.images.clear();
    batch.labels.clear();
    batch.image_view = images;
    batch.label_view = labels;
    batch.layout = layout;
  }

  std::vector<float> images;
  std::vector<Label> labels;
  Batch batch;
};

void check_replicas_equal(DataParallel& run, bool with_statistics) {
  for (int rank = 1; rank < run.size(); ++rank) {
    CHECK(parameters(run, rank) == parameters(run, 0));
    if (with_statistics) CHECK(statistics(run, rank) == statistics(run, 0));
  }
}

SyncGroupOptions random_delays(std::uint64_t seed) {
  SyncGroupOptions options;
  options.hook = [seed](int rank, const SyncCall& call) {
    Rng rng(seed, RngPurpose::kDelay, static_cast<std::uint64_t>(rank),
            static_cast<std::uint32_t>(call.index));
    std::this_thread::sleep_for(std::chrono::microseconds(rng.below(1500)));
    return true;
  };
  return options;
}

}  // namespace

TEST_CASE("an update reads its own replica's weights, not those of another device") {
  DataParallelOptions options = toy_options(2, BatchNormMode::kSync);
  options.optimizer = Sgd{};
  options.model = unet({.width = 16, .depth = 2, .num_classes = kClasses});  // of several blocks
  const auto run = make_toy(options);
  const std::vector<float> before = parameters(*run, 1);
  std::size_t last = before.size() - 1;
  while (before[last] == 0) --last;  // neither a bias nor what fills the memory up
  std::vector<float> others(before.size(), 0.25F);
  Replica& first = run->replica(0);
  const auto elements = static_cast<std::int64_t>(others.size());
  first.backend().upload(Tensor(first.store().values(), Shape{1, elements}), others.data());
  first.backend().synchronize();
  run->train_step(toy_batch(5, 0), 0, 0.0F);
  for (int rank : {0, 1}) {
    const std::vector<float> after = parameters(*run, rank);
    CHECK(after.front() == 0.25F);       // of rank 0's share
    CHECK(after[last] == before[last]);  // of rank 1's
  }
}

TEST_CASE("chunks are torch.chunk's") {
  CHECK(chunk_sizes(5, 4) == std::vector<std::int64_t>{2, 2, 1, 0});
  CHECK(chunk_sizes(9, 8) == std::vector<std::int64_t>{2, 2, 2, 2, 1, 0, 0, 0});
  CHECK(chunk_sizes(16, 3) == std::vector<std::int64_t>{6, 6, 4});
  CHECK(chunk_sizes(8, 8) == std::vector<std::int64_t>(8, 1));
  CHECK(chunk_sizes(0, 2) == std::vector<std::int64_t>{0, 0});
  CHECK_THROWS_AS(chunk_sizes(1, 0), Error);
}

TEST_CASE("sync on any number of devices is one device with the whole batch") {
  const Outcome one = toy_outcome(toy_options(1, BatchNormMode::kLocal));
  CHECK(one.losses[0] != one.losses[1]);
  for (const int ranks : {1, 2, 3, 4, 8}) {
    CAPTURE(ranks);
    check_close(toy_outcome(toy_options(ranks, BatchNormMode::kSync)), one);
  }
  // The comparison is worth something: local statistics lead elsewhere.
  const Outcome local = toy_outcome(toy_options(4, BatchNormMode::kLocal));
  CHECK(distance(local.parameters, one.parameters) > 1e-3);
}

TEST_CASE("local on W devices is virtual(W) on one") {
  DataParallelOptions options = toy_options(1, BatchNormMode::kGhost);
  options.norm.options.virtual_devices = 4;
  CHECK((toy_outcome(toy_options(4, BatchNormMode::kLocal)) == toy_outcome(options)));
  // And two devices with two slices each, where they come to the same images.
  const auto full_batches = [](int ranks, BatchNormMode mode, int slices) {
    DataParallelOptions own = toy_options(ranks, mode, 8);
    own.norm.options.virtual_devices = slices;
    const auto run = make_toy(own);
    return outcome_of(*run, train(*run, {8, 8, 8}));
  };
  const Outcome local = full_batches(4, BatchNormMode::kLocal, 1);
  CHECK((full_batches(1, BatchNormMode::kGhost, 4) == local));
  CHECK((full_batches(2, BatchNormMode::kGhost, 2) == local));
  CHECK_FALSE((full_batches(1, BatchNormMode::kGhost, 2) == local));
}

TEST_CASE("all replicas stay bitwise equal") {
  const auto synced = make_toy(toy_options(4, BatchNormMode::kSync));
  train(*synced);
  check_replicas_equal(*synced, true);
  for (int rank = 0; rank < 4; ++rank) {
    for (const auto& layer : synced->replica(rank).store().batch_norms()) {
      CHECK(layer->num_batches_tracked == 6);
    }
  }
  const auto local = make_toy(toy_options(3, BatchNormMode::kLocal));
  train(*local);
  check_replicas_equal(*local, false);
  CHECK(statistics(*local, 0) != statistics(*local, 1));
}

TEST_CASE("frozen statistics: rank 0's for all, no exchange, and what a frozen layer computes") {
  for (const BatchNormMode mode :
       {BatchNormMode::kSync, BatchNormMode::kLocal, BatchNormMode::kGhost}) {
    CAPTURE(to_string(mode));
    DataParallelOptions options = toy_options(3, mode, 7);
    options.norm.options.virtual_devices = 2;
    const auto run = make_toy(options);
    train(*run, {7, 5});
    run->freeze_statistics();
    const std::vector<float> frozen = statistics(*run, 0);
    const std::vector<float> before = parameters(*run, 0);
    const auto exchanges = [&] {
      const SyncGroup& group = run->sync_group();
      return group.callbacks(Direction::kForward) + group.callbacks(Direction::kBackward);
    };
    const std::int64_t exchanged = exchanges();
    DataParallelOptions same = options;
    same.norm = FrozenBatchNorm();
    const auto expected = make_toy(same);
    copy_parameters(*run, *expected);
    const TensorMap state = run->state_dict();
    expected->load_state_dict(state);
    expected->set_optimizer_state(run->optimizer_state());
    for (const std::int64_t batch : {7, 4, 7}) {
      const Batch next = toy_batch(batch, batch);
      CHECK(run->train_step(next, 2, 0.05F).loss == expected->train_step(next, 2, 0.05F).loss);
    }
    CHECK(exchanges() == exchanged);
    CHECK(parameters(*run, 0) == parameters(*expected, 0));
    CHECK(parameters(*run, 0) != before);
    for (int rank = 0; rank < 3; ++rank) CHECK(statistics(*run, rank) == frozen);
  }
}

TEST_CASE("frozen statistics: layers without running ones go on") {
  DataParallelOptions of_images = toy_options(2, BatchNormMode::kLayer);
  DataParallelOptions of_batches = toy_options(2, BatchNormMode::kSync);
  of_batches.norm.options.track_running_stats = false;
  for (const DataParallelOptions& options : {of_images, of_batches}) {
    const auto run = make_toy(options), other = make_toy(options);
    train(*run, {5});
    train(*other, {5});
    run->freeze_statistics();
    train(*run, {4});
    train(*other, {4});
    CHECK(parameters(*run, 0) == parameters(*other, 0));
  }
}

TEST_CASE("renorm trains on several devices, each by its own running statistics") {
  DataParallelOptions options = toy_options(3, BatchNormMode::kRenorm, 9);
  options.norm.options.renorm_warmup = 1;
  const auto run = make_toy(options);
  train(*run, {9, 9, 7, 9});
  check_replicas_equal(*run, false);
  options.norm.options.mode = BatchNormMode::kLocal;
  const auto local = make_toy(options);
  train(*local, {9, 9, 7, 9});
  CHECK(parameters(*run, 0) != parameters(*local, 0));
  options.norm.options.mode = BatchNormMode::kRenorm;
  options.norm.options.renorm_warmup = 100;
  const auto warming_up = make_toy(options);
  train(*warming_up, {9, 9, 7, 9});
  CHECK(parameters(*warming_up, 0) == parameters(*local, 0));
}

TEST_CASE("renorm on W devices is renorm of W slices on one, each with running statistics") {
  // Slices of three and of two images are nodes of the tree of gradients, and pieces of them.
  const std::vector<std::int64_t> batches{12, 12, 7, 12, 11};
  const auto outcome = [&](int ranks, int slices, int warmup = 1) {
    DataParallelOptions options = toy_options(ranks, BatchNormMode::kRenorm, 12);
    options.norm.options.renorm_warmup = warmup;
    options.norm.options.renorm_slices = slices;
    DataParallel run(options);
    return model_outcome(run, train(run, batches));
  };
  const auto devices = outcome(4, 1);
  CHECK((outcome(1, 4) == devices));
  CHECK_FALSE((outcome(1, 2) == devices));
  CHECK_FALSE((outcome(1, 4, 100) == devices));  // there is something to correct
  CHECK((outcome(1, 5) == outcome(5, 1)));
}

TEST_CASE("renorm's slices begin with the loaded statistics, and are in no file of weights") {
  DataParallelOptions options = toy_options(1, BatchNormMode::kRenorm, 8);
  options.norm.options.renorm_warmup = 0;
  options.norm.options.renorm_slices = 4;
  const auto run = std::make_unique<DataParallel>(options);
  train(*run, {8, 8});
  const TensorMap state = run->state_dict();
  DataParallelOptions on_devices = toy_options(4, BatchNormMode::kRenorm, 8);
  on_devices.norm.options.renorm_warmup = 0;
  const auto devices = make_toy(on_devices);
  CHECK(state.size() == devices->state_dict().size());
  for (DataParallel* each : {run.get(), devices.get()}) {
    each->load_state_dict(state);
    each->set_optimizer_state(run->optimizer_state());
  }
  CHECK((model_outcome(*run, train(*run, {8, 8})) ==
         model_outcome(*devices, train(*devices, {8, 8}))));
}

TEST_CASE("delays change no bit") {
  for (const BatchNormMode mode : {BatchNormMode::kSync, BatchNormMode::kLocal}) {
    DataParallelOptions options = toy_options(4, mode);
    const Outcome undisturbed = toy_outcome(options);
    CHECK(toy_outcome(options) == undisturbed);
    options.communicator = random_delays(21);
    CHECK(toy_outcome(options) == undisturbed);
  }
}

TEST_CASE("sync groups share statistics among themselves only") {
  DataParallelOptions options = toy_options(4, BatchNormMode::kSync, 8);
  options.norm.options.process_groups = contiguous_groups(4, 2);
  const auto run = make_toy(options);
  for (std::int64_t step = 0; step < 2; ++step) run->train_step(toy_batch(8, step), step, 0.05F);
  CHECK(statistics(*run, 0) == statistics(*run, 1));
  CHECK(statistics(*run, 2) == statistics(*run, 3));
  CHECK(statistics(*run, 0) != statistics(*run, 2));
  check_replicas_equal(*run, false);

  // Groups of 2 over 4 devices are two devices with local statistics.
  const auto pair = make_toy(toy_options(2, BatchNormMode::kLocal, 8));
  for (std::int64_t step = 0; step < 2; ++step) pair->train_step(toy_batch(8, step), step, 0.05F);
  CHECK(distance(parameters(*run, 0), parameters(*pair, 0)) < 1e-6);
  CHECK(distance(statistics(*run, 2), statistics(*pair, 1)) < 1e-6);
}

TEST_CASE("dropout is a function of the sample, not of the device it lies on") {
  DataParallelOptions options = toy_options(1, BatchNormMode::kSync);
  options.model = dropout_net;
  DataParallel whole(options);
  const Outcome one = outcome_of(whole, train(whole));
  options.devices = cpus(3);
  DataParallel spread(options);
  check_close(outcome_of(spread, train(spread)), one);
  // Of the step, too: the mask is the same only when the step is.
  DataParallel same(options);
  CHECK(same.train_step(toy_batch(5, 0), 0, 0).loss == same.train_step(toy_batch(5, 0), 0, 0).loss);
  CHECK(same.train_step(toy_batch(5, 0), 0, 0).loss != same.train_step(toy_batch(5, 0), 1, 0).loss);
}

TEST_CASE("class weights enter loss and normalizer alike") {
  DataParallelOptions options = toy_options(1, BatchNormMode::kLocal);
  const Outcome plain = toy_outcome(options);
  options.losses[0].loss = CrossEntropyLoss{.class_weight = {2, 2, 2}};
  check_close(toy_outcome(options), plain);
  options.losses[0].loss = CrossEntropyLoss{.class_weight = {1, 4, 0.5F}};
  const Outcome weighted = toy_outcome(options);
  CHECK(distance(weighted.parameters, plain.parameters) > 1e-4);
  options.devices = cpus(3);
  options.norm.options.mode = BatchNormMode::kSync;
  check_close(toy_outcome(options), weighted);
  options.losses[0].loss = CrossEntropyLoss{.class_weight = {1, 2}};
  CHECK_THROWS_AS(DataParallel{options}, ConfigError);
}

TEST_CASE("fp16 on CPU devices is an error of the configuration that says what to do") {
  DataParallelOptions options = toy_options(2, BatchNormMode::kLocal);
  options.precision = DType::kFloat16;
  CHECK_THROWS_WITH_AS(DataParallel{options},
                       doctest::Contains("cpu:0 is asked for, and the CPU stores fp32 or bf16; use "
                                         "precision = \"bf16\""),
                       ConfigError);
}

TEST_CASE("a batch without a single label has loss 0 and teaches nothing") {
  DataParallelOptions options = toy_options(2, BatchNormMode::kSync);
  options.optimizer = Sgd{.weight_decay = 0};
  const auto run = make_toy(options);
  const std::vector<float> before = parameters(*run, 0);
  Batch batch = toy_batch(4, 0);
  std::fill(batch.labels.begin(), batch.labels.end(), Label{255});
  batch.class_pixels.assign(kClasses, 0);
  const StepResult nothing = run->train_step(batch, 0, 0.1F);
  CHECK(nothing.loss == 0);
  CHECK(nothing.grad_norm == 0);
  CHECK(parameters(*run, 0) == before);
}

TEST_CASE("a loss that is not finite names step and replica and leaves the weights alone") {
  for (const BatchNormMode mode : {BatchNormMode::kLocal, BatchNormMode::kSync}) {
    const auto run = make_toy(toy_options(4, mode));
    run->train_step(toy_batch(5, 0), 0, 0.1F);
    const std::vector<float> before = parameters(*run, 0);
    const OptimizerState momentum = run->optimizer_state();
    Batch batch = toy_batch(5, 1);
    const float nan = -std::numeric_limits<float>::quiet_NaN();  // whose sign nobody is told
    batch.images[2 * 3 * 16 * 16 + 5] = nan;                     // image 2: rank 1
    // Synchronized statistics spread it: every replica's loss is then not finite.
    const int first = mode == BatchNormMode::kLocal ? 1 : 0;
    const std::string expected =
        concat("step 1: the loss of replica ", first, " (cpu:", first, ") is nan;");
    CHECK_THROWS_WITH_AS(run->train_step(batch, 1, 0.1F), doctest::Contains(expected.c_str()),
                         NonFiniteError);
    for (int rank = 0; rank < 4; ++rank) CHECK(parameters(*run, rank) == before);
    CHECK(run->optimizer_state() == momentum);
  }
}

TEST_CASE("a forward pass alone changes nothing and shows the layers' moments") {
  const auto run = make_toy(toy_options(2, BatchNormMode::kSync));
  const std::vector<float> weights = parameters(*run, 0);
  const std::vector<float> running = statistics(*run, 1);
  run->forward(toy_batch(5, 0));
  CHECK(parameters(*run, 0) == weights);
  CHECK(statistics(*run, 1) == running);
  const auto layers = batch_norms_of(run->replica(1).network());
  CHECK(layers.front()->local_moments().front().count == 2 * 16 * 16);
}

TEST_CASE("momentum is gathered, and restored to its owners") {
  const auto a = make_toy(toy_options(3, BatchNormMode::kSync));
  train(*a);
  const auto b = make_toy(toy_options(2, BatchNormMode::kSync));
  b->set_optimizer_state(a->optimizer_state());
  CHECK(b->optimizer_state() == a->optimizer_state());
  OptimizerState other = a->optimizer_state();
  other.slots["momentum_buffer"].resize(3);
  CHECK_THROWS_WITH_AS(b->set_optimizer_state(other),
                       doctest::Contains("has 3 values of momentum_buffer"), DataError);
  other.optimizer = "adamw";
  CHECK_THROWS_WITH_AS(b->set_optimizer_state(other),
                       doctest::Contains("is of 'adamw', this run trains with 'sgd'"), DataError);
}

TEST_CASE("batches that do not fit are refused") {
  const auto run = make_toy(toy_options(2, BatchNormMode::kSync));
  CHECK_THROWS_AS(run->train_step(toy_batch(6, 0), 0, 0.1F), Error);
  CHECK_THROWS_AS(run->train_step(toy_batch(2, 0, {8, 16}), 0, 0.1F), Error);
  Batch batch = toy_batch(2, 0);
  batch.class_pixels.pop_back();
  CHECK_THROWS_AS(run->train_step(batch, 0, 0.1F), Error);
  CHECK(run->train_step(toy_batch(1, 0), 0, 0.1F).loss > 0);
}

TEST_CASE("batches in memory of somebody else, channels first or last, are the same batches") {
  const auto outcome = [](bool foreign, ImageLayout layout) {
    DataParallelOptions options = toy_options(2, BatchNormMode::kSync);
    options.accumulate = 2;
    const auto run = make_toy(options);
    std::vector<double> losses;
    for (std::int64_t step = 0; step < 3; ++step) {
      const Batch own = toy_batch(5 - step, step);
      const ForeignBatch elsewhere(own, layout);
      losses.push_back(run->train_step(foreign ? elsewhere.batch : own, step, 0.1F).loss);
    }
    std::vector<ForeignBatch> kept;
    kept.reserve(3);
    const auto load = [&](std::int64_t index) -> Batch {
      return foreign ? kept[static_cast<std::size_t>(index)].batch : toy_batch(2, 9 + index);
    };
    for (std::int64_t index = 0; index < 3; ++index)
      kept.emplace_back(toy_batch(2, 9 + index), layout);
    losses.push_back(run->evaluate(3, load).loss);
    return outcome_of(*run, losses);
  };
  const Outcome expected = outcome(false, ImageLayout::kChannelsLast);
  CHECK(expected.losses[0] != expected.losses[1]);
  CHECK(outcome(true, ImageLayout::kChannelsLast) == expected);
  CHECK(outcome(true, ImageLayout::kChannelsFirst) == expected);
}

TEST_CASE("a batch has its images, and its labels, in one place") {
  const auto run = make_toy(toy_options(2, BatchNormMode::kSync));
  Batch batch = toy_batch(2, 0);
  batch.image_view = batch.images;
  CHECK_THROWS_WITH_AS(run->train_step(batch, 0), doctest::Contains("images and an image_view"),
                       Error);
  batch = toy_batch(2, 0);
  batch.label_view = batch.labels;
  CHECK_THROWS_WITH_AS(run->train_step(batch, 0), doctest::Contains("labels and a label_view"),
                       Error);
  batch = toy_batch(2, 0);
  const std::vector<float> few(batch.images.begin(), batch.images.end() - 1);
  batch.images.clear();
  batch.image_view = few;
  CHECK_THROWS_WITH_AS(run->train_step(batch, 0), doctest::Contains("values of images"), Error);
}

TEST_CASE("a step says what its time went to") {
  DataParallelOptions options = toy_options(2, BatchNormMode::kSync);
  options.communicator.hook = [](int rank, const SyncCall& call) {
    if (rank == 1 && call.index == 0 && call.direction == Direction::kForward) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return true;
  };
  const StepTimes times = make_toy(options)->train_step(toy_batch(5, 0), 0, 0.1F).times;
  CHECK(times.batch_norm_wait > 0.005);
  CHECK(times.compute > 0);
  CHECK(times.gradient_exchange > 0);
}

TEST_CASE("a step says what each rank did") {
  constexpr std::chrono::milliseconds kSleep{20};
  DataParallelOptions options = toy_options(3, BatchNormMode::kSync);
  options.communicator.hook = [=](int rank, const SyncCall& call) {
    if (rank == 1 && call.index == 0 && call.direction == Direction::kForward) {
      std::this_thread::sleep_for(kSleep);
    }
    return true;
  };
  const auto run = make_toy(options);
  for (std::int64_t step = 0; step < 2; ++step) {
    const StepResult result = run->train_step(toy_batch(5, step), step, 0.1F);
    REQUIRE(result.ranks.size() == 3);
    double loss = 0, compute = 0, wait = 0, exchange = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const RankStep& part = result.ranks[static_cast<std::size_t>(rank)];
      loss += part.loss;
      compute += part.times.compute / 3;
      wait += part.times.batch_norm_wait / 3;
      exchange += part.times.gradient_exchange / 3;
      CHECK(part.times.compute > 0);
      CHECK(part.times.batch_norm_wait > 0);
      CHECK(part.times.gradient_exchange > 0);
      const Backend& backend = run->replica(rank).backend();
      CHECK(part.memory_bytes == backend.allocated_bytes());
      CHECK(part.peak_memory_bytes == backend.peak_allocated_bytes());
      CHECK(part.memory_bytes > 0);
    }
    CHECK(loss == doctest::Approx(result.loss));
    CHECK(compute == doctest::Approx(result.times.compute));
    CHECK(wait == doctest::Approx(result.times.batch_norm_wait));
    CHECK(exchange == doctest::Approx(result.times.gradient_exchange));
    CHECK(result.ranks[1].times.compute >= std::chrono::duration<double>(kSleep).count());
    CHECK(result.ranks[0].loss > 0);
    CHECK(result.ranks[2].loss == 0);  // the last image has no label
  }
}

TEST_CASE("evaluation counts every image once, on any number of ranks, and touches no barrier") {
  const auto load = [](std::int64_t index) {
    const bool wide = index == 3 || index == 4;
    return toy_batch(1, 100 + index, wide ? Size{8, 24} : kSize);
  };
  DataParallelOptions options = toy_options(1, BatchNormMode::kSync);
  const auto expected = make_toy(options)->evaluate(7, load);
  std::int64_t pixels = 0;
  for (const std::int64_t count : expected.confusion) pixels += count;
  CHECK(pixels == 5 * 16 * 16 + 2 * 8 * 24);
  CHECK(expected.loss > 0);
  for (const int ranks : {2, 4, 8}) {
    options.devices = cpus(ranks);
    std::atomic<int> exchanges{0};
    options.communicator.hook = [&](int, const SyncCall&) { return ++exchanges, true; };
    const auto run = make_toy(options);
    const auto result = run->evaluate(7, load);
    CHECK(result.confusion == expected.confusion);
    CHECK(result.loss == expected.loss);
    CHECK(exchanges == 0);
    CHECK(run->evaluate(0, load).loss == 0);
    // Training goes on as if nothing had been evaluated.
    CHECK(run->train_step(toy_batch(5, 0), 0, 0.1F).loss > 0);
  }
}

}  // namespace lockstep::test
