// Networks whose images go through a few at a time, and which compute again what they do not keep,
// beside the same networks of whole batches: the same bits.

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/models.h"
#include "lockstep/sync/sync_group.h"
#include "nn/harness.h"
#include "nn/random_network.h"
#include "support/devices.h"
#include "support/errors.h"
#include "support/with_timeout.h"
#include "support/with_variable.h"

namespace lockstep::test {
namespace {

/// Weights, statistics and what a few steps of some batches come to.
struct Outcome {
  std::vector<StepResult> steps;
  std::vector<Floats> statistics;
  std::vector<std::int64_t> tracked;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

struct TiledCase {
  Describe describe;
  Shape input;
  BatchNormOptions norm = {};
  std::vector<std::int64_t> batches = {};  // none: the planned one
  StepContext context = {.seed = 9, .sample_offset = 3};
  bool freeze = false;  // once planned
};

Outcome outcome_of(const TiledCase& test, const PlanOptions& plan) {
  TestNetwork net(test.describe, test.input, plan, test.norm);
  for (BatchNormLayer* layer : batch_norms_of(*net.network)) {
    if (test.freeze) layer->freeze();
  }
  Outcome outcome;
  std::vector<std::int64_t> batches = test.batches;
  if (batches.empty()) batches = {test.input.batch(), test.input.batch()};
  for (std::uint32_t step = 0; const std::int64_t batch : batches) {
    net.network->set_batch(batch);
    const Floats images = random_floats(test.input.with_batch(batch).elements(), 40 + step);
    outcome.steps.push_back(net.step(images, ++step, test.context));
  }
  for (const auto& state : net.store.batch_norms()) {
    outcome.statistics.push_back(download(*net.backend, state->running_mean, state->channels));
    outcome.statistics.push_back(download(*net.backend, state->running_var, state->channels));
    outcome.tracked.push_back(state->num_batches_tracked);
  }
  return outcome;
}

PlanOptions tiles_of(std::int64_t images) { return {.input_grad = true, .tile = images}; }

/// In tiles of every size, and in one with what need not be kept computed again.
void check_tiles(const TiledCase& test) {
  const Outcome whole = outcome_of(test, {.input_grad = true});
  CHECK(outcome_of(test, {.input_grad = true, .recompute = true}) == whole);
  for (std::int64_t tile = 1; tile < test.input.batch(); ++tile) {
    CAPTURE(tile);
    CHECK(outcome_of(test, tiles_of(tile)) == whole);
    PlanOptions apart = tiles_of(tile);
    apart.share_memory = false;
    CHECK(outcome_of(test, apart) == whole);
  }
}

}  // namespace

TEST_CASE("random networks: images a few at a time come to the same bits") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    const WithVariable engine("LOCKSTEP_CONVOLUTION", seed % 3 == 0 ? "onednn" : "winograd8");
    check_tiles(
        {.describe = [=](NetworkBuilder& net, Value* x) { return random_network(net, x, seed); },
         .input = {5, 4, 4, 2}});
  }
}

namespace {

Value* small_unet(NetworkBuilder& net, Value* x) {
  const Conv2dOptions conv{.out_channels = 4, .kernel = 3, .padding = 1};
  Value* skip = net.batch_norm_relu(net.conv2d(x, "e0", conv), "e0.bn");
  Value* y = net.batch_norm_relu(net.conv2d(net.max_pool2d(skip, {}), "e1", conv), "e1.bn");
  y = net.concat({skip, net.upsample_bilinear(y, x->shape.height(), x->shape.width(), false)});
  y = net.dropout(net.batch_norm_relu(net.conv2d(y, "d0", conv), "d0.bn"), 0.25F);
  return net.conv2d(y, "head", {.out_channels = 3, .bias = true});
}

/// Residuals with a ReLU behind them, and a projection.
Value* small_resnet(NetworkBuilder& net, Value* x) {
  const Conv2dOptions conv{.out_channels = 4, .kernel = 3, .padding = 1};
  x = net.batch_norm_relu(net.conv2d(x, "stem", conv), "stem.bn");
  for (const char* name : {"a", "b", "c"}) {
    const std::string block = name;
    Value* y = net.batch_norm_relu(net.conv2d(x, block + ".1", conv), block + ".bn1");
    y = net.conv2d(y, block + ".2", conv);
    if (block == "b") x = net.batch_norm(net.conv2d(x, "down", {.out_channels = 4}), "down.bn");
    x = net.batch_norm_add_relu(y, x, block + ".bn2");
  }
  return net.linear(net.adaptive_avg_pool2d(x, 1, 1), "fc", 3);
}

/// Every sum adds to the one before it: who computed the last one again would come to the first.
Value* chain_of_sums(NetworkBuilder& net, Value* x) {
  x = net.conv2d(x, "stem", {.out_channels = 3});
  for (int i = 0; i < 25; ++i) {
    const std::string name = concat("l", i);
    Value* y = net.conv2d(x, name, {.out_channels = 3, .kernel = 3, .padding = 1});
    x = net.batch_norm(y, name + ".bn", NormCall{.residual = x});
  }
  return x;
}

/// One layer and one BatchNorm, three times, twice between the same norms.
Value* shared_layers(NetworkBuilder& net, Value* x) {
  const Conv2dOptions conv{.out_channels = 3, .kernel = 3, .padding = 1};
  x = net.conv2d(net.relu(net.conv2d(x, "twice", conv)), "twice", conv);
  x = net.batch_norm_relu(x, "bn");
  x = net.batch_norm_relu(net.conv2d(net.prelu(x, "slope"), "twice", conv), "bn");
  return net.conv2d(net.prelu(x, "slope"), "head", {.out_channels = 3, .bias = true});
}

Value* with_all_reduce(NetworkBuilder& net, Value* x) {
  x = net.batch_norm_relu(net.conv2d(x, "a", {.out_channels = 4}), "a.bn");
  Value* sums = net.all_reduce(net.adaptive_avg_pool2d(x, 1, 1));
  x = net.mul(x, net.activation(sums, ActivationKind::kSigmoid));
  return net.conv2d(net.batch_norm_relu(x, "b.bn"), "head", {.out_channels = 2});
}

/// A layer that says nothing of itself: it is given all images at once.
class MeanOfBatch final : public Layer {
 public:
  using Layer::Layer;
  LayerTraits traits() const override { return {}; }
  void forward(Backend&, const StepContext&) override {
    mean(inputs()[0]->data, output()->data, false);
  }
  void backward(Backend&, const StepContext&, std::span<const GradTarget> grads) override {
    mean(output()->grad, grads[0].tensor, grads[0].accumulate);
  }

 private:
  static void mean(const Tensor& from, const Tensor& to, bool accumulate) {
    const std::int64_t images = from.shape.batch(), rows = from.shape.rows_per_sample();
    for (std::int64_t row = 0; row < from.shape.rows(); ++row) {
      for (std::int64_t c = 0; c < from.shape.channels(); ++c) {
        float sum = 0;
        for (std::int64_t n = 0; n < images; ++n) {
          sum += from.floats()[(n * rows + row % rows) * from.row_stride + c];
        }
        float& target = to.floats()[row * to.row_stride + c];
        target = (accumulate ? target : 0.0F) + sum / static_cast<float>(images);
      }
    }
  }
};

Value* with_own_layer(NetworkBuilder& net, Value* x) {
  x = net.relu(net.conv2d(x, "a", {.out_channels = 4, .kernel = 3, .padding = 1}));
  Value* y = net.append(
      std::make_unique<MeanOfBatch>("own", std::vector<Value*>{x}, net.value("own", x->shape)));
  return net.conv2d(net.add(x, y), "head", {.out_channels = 2});
}

}  // namespace

TEST_CASE("tiles: batches of any size, an empty one too") {
  check_tiles({.describe = small_unet, .input = {5, 6, 4, 3}, .batches = {5, 3, 0, 1, 4, 5}});
}

TEST_CASE(
    "tiles: residuals, sums of sums, shared layers, sums over the batch, a layer of one's own") {
  for (const auto& describe :
       {small_resnet, chain_of_sums, shared_layers, with_all_reduce, with_own_layer}) {
    check_tiles({.describe = describe, .input = {5, 4, 6, 3}});
  }
}

TEST_CASE("tiles: whatever BatchNorm takes its statistics of") {
  for (const BatchNormOptions& norm :
       std::vector<BatchNormOptions>{{.mode = BatchNormMode::kGhost, .virtual_devices = 2},
                                     {.mode = BatchNormMode::kGhost, .virtual_devices = 5},
                                     {.mode = BatchNormMode::kRenorm},
                                     {.mode = BatchNormMode::kFrozen},
                                     {.mode = BatchNormMode::kInstance},
                                     {.momentum = std::nullopt, .affine = false},
                                     {.eps_mode = EpsMode::kClamp, .track_running_stats = false}}) {
    CAPTURE(to_string(norm.mode));
    for (const auto& describe : {small_unet, small_resnet}) {
      check_tiles({.describe = describe, .input = {5, 4, 4, 3}, .norm = norm});
    }
  }
}

TEST_CASE("tiles: passes by running statistics") {
  for (const StepContext& context :
       std::vector<StepContext>{{.training = false}, {.update_running_stats = false}}) {
    check_tiles({.describe = small_resnet, .input = {3, 4, 4, 3}, .context = context});
  }
  for (const BatchNormOptions& norm :
       std::vector<BatchNormOptions>{{}, {.mode = BatchNormMode::kGhost, .virtual_devices = 2}}) {
    check_tiles({.describe = small_resnet, .input = {3, 4, 4, 3}, .norm = norm, .freeze = true});
  }
}

TEST_CASE("tiles: gradients of several parts of the batch") {
  const Shape input{7, 4, 4, 3};
  const auto grads_of = [&](const PlanOptions& plan) {
    TestNetwork net(shared_layers, input, plan);
    net.store.reserve_gradient_parts(*net.backend, 3);
    std::vector<GradientPart> parts{{0, 1, net.store.grads()},
                                    {1, 4, net.store.grads_of_part(1)},
                                    {5, 2, net.store.grads_of_part(2)}};
    net.step(random_floats(input.elements(), 1), 2, {.gradient_parts = parts});
    std::vector<Floats> grads;
    for (const GradientPart& part : parts) {
      grads.push_back(download(*net.backend, part.grads, net.store.elements()));
    }
    return grads;
  };
  const std::vector<Floats> whole = grads_of({});
  CHECK(whole[1] != whole[2]);
  for (const std::int64_t tile : {1, 2, 3, 6}) {
    CAPTURE(tile);
    CHECK(grads_of({.tile = tile}) == whole);
  }
}

TEST_CASE("tiles: ranks meet once for all of a rank's images") {
  const Shape input{3, 4, 4, 3};
  for (const auto& describe : {small_unet, small_resnet, with_all_reduce}) {
    const auto outcomes = [&](std::int64_t tile) {
      SyncGroup group(cpus(2));
      std::vector<StepResult> results(2);
      const auto thrown = run_ranks(2, [&](int rank) {
        TestNetwork net(describe, input, {.tile = tile}, {.mode = BatchNormMode::kSync});
        const auto place = static_cast<std::size_t>(rank);
        net.network->set_batch(rank == 0 ? 3 : 2);  // two tiles and one
        const Floats images = random_floats(net.network->input().shape.elements(), 7);
        results[place] = net.step(images, 5, {.communicator = group.at(rank), .seed = 4});
        group.at(rank).barrier("the end");
      });
      for (const auto& failure : thrown) CHECK(text_of(failure) == "");
      return results;
    };
    CHECK(outcomes(2) == outcomes(0));
  }
}

TEST_CASE("tiles: an observer hears of every tile, and of what is computed again") {
  struct Listener : LayerObserver {
    void begin(std::size_t layer, Direction direction) override { begun = {layer, direction}; }
    void end(std::size_t layer, Direction direction) override {
      CHECK(begun == std::pair{layer, direction});
      ++times[begun];
    }
    std::pair<std::size_t, Direction> begun;
    std::map<std::pair<std::size_t, Direction>, int> times;
  };
  const Shape shape{5, 4, 4, 3};
  TestNetwork net(small_unet, shape, {.tile = 2});
  Listener listener;
  net.network->observe(&listener);
  net.step(random_floats(shape.elements(), 8), 4);
  constexpr std::size_t kConvolution = 0, kNorm = 1;
  CHECK(listener.times.at({kConvolution, Direction::kForward}) == 3);
  CHECK(listener.times.at({kConvolution, Direction::kBackward}) == 3);
  // All images once; then for the pooling and as a skip, forward and backward.
  CHECK(listener.times.at({kNorm, Direction::kForward}) == 1 + 2 * 3);
  CHECK(listener.times.at({kNorm, Direction::kBackward}) == 1 + 2 * 3);
}

TEST_CASE("tiles: layers are left behind in order, all of them") {
  for (const std::int64_t tile : {0, 2}) {
    const Shape shape{3, 4, 4, 3};
    TestNetwork net(small_resnet, shape, {.tile = tile});
    net.step(random_floats(shape.elements(), 8), 4);
    std::vector<std::size_t> heard, expected;
    for (std::size_t i = net.network->layers().size(); i-- > 0;) expected.push_back(i);
    net.network->forward({});
    net.network->backward({}, [&](std::size_t layer) { heard.push_back(layer); });
    CHECK(heard == expected);
  }
}

TEST_CASE("tiles: a step allocates nothing") {
  // oneDNN makes a list of arguments at each call.
  allocations_of_steps(small_unet, 5, {.tile = 2});
  CHECK(allocations_of_steps(
            [](NetworkBuilder& net, Value* x) {
              Value* skip = net.batch_norm_relu(net.prelu(x, "slope"), "a");
              Value* y = net.batch_norm_add_relu(net.max_pool2d(skip, {}),
                                                 net.relu(net.avg_pool2d(x, {})), "b");
              y = net.concat({skip, net.dropout(net.upsample_bilinear(y, 8, 8, true), 0.5F), x});
              return net.batch_norm(net.add(y, y), "c");
            },
            5, {.tile = 2}) == 0);
}

TEST_CASE("tiles: a layer's work is that of the batch") {
  const Shape shape{4, 4, 4, 3};
  TestNetwork whole(small_resnet, shape),
      tiled(small_resnet, shape, {.input_grad = true, .tile = 1});
  for (std::size_t i = 0; i < whole.network->layers().size(); ++i) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      CAPTURE(i);
      CHECK(tiled.network->work(i, direction).bytes == whole.network->work(i, direction).bytes);
      CHECK(tiled.network->work(i, direction).flops == whole.network->work(i, direction).flops);
    }
  }
}

// Enough of each value that the way to the host is worth it.
TEST_CASE("what waits on the host comes back with its bits, of whole batches and in tiles") {
  for (const Describe& describe : {Describe(small_unet), Describe(small_resnet)}) {
    // Synchronized: weight gradients may wait for an exchange, but do not on one device.
    const TiledCase test{.describe = describe,
                         .input = {6, 40, 40, 3},
                         .norm = {.mode = BatchNormMode::kSync},
                         .batches = {6, 5, 6}};
    const Outcome whole = outcome_of(test, {.input_grad = true});
    for (const PlanOptions& kept :
         {PlanOptions{.input_grad = true}, PlanOptions{.input_grad = true, .recompute = true},
          tiles_of(1), tiles_of(4)}) {
      CAPTURE(kept.tile);
      CAPTURE(kept.recompute);
      PlanOptions plan = kept;
      plan.offload = true;
      const TestNetwork here(describe, test.input, kept), sent(describe, test.input, plan);
      CHECK(here.network->offloaded_bytes() == 0);
      CHECK(sent.network->offloaded_bytes() > 0);
      CHECK(sent.network->planned_bytes() <= here.network->planned_bytes());
      CHECK(outcome_of(test, plan) == whole);
    }
  }
}

TEST_CASE("tiles: the memory of a U-Net") {
  const Model model = unet({.width = 16, .depth = 4, .num_classes = 11});
  const auto bytes_of = [&](const PlanOptions& plan) {
    const DeclaredModel declared(model, {8, 32, 48, 3}, plan);
    return static_cast<double>(declared.network->planned_bytes());
  };
  const double whole = bytes_of({});
  MESSAGE("recompute ", bytes_of({.recompute = true}) / whole, ", tiles of 4, 2 and 1 images ",
          bytes_of({.tile = 4}) / whole, ", ", bytes_of({.tile = 2}) / whole, ", ",
          bytes_of({.tile = 1}) / whole);
  MESSAGE("waiting on the host: whole batches ", bytes_of({.offload = true}) / whole,
          ", recomputed ", bytes_of({.recompute = true, .offload = true}) / whole,
          ", tiles of 4, 2 and 1 images ", bytes_of({.tile = 4, .offload = true}) / whole, ", ",
          bytes_of({.tile = 2, .offload = true}) / whole, ", ",
          bytes_of({.tile = 1, .offload = true}) / whole);
  CHECK(bytes_of({.offload = true}) < 0.75 * whole);
  CHECK(bytes_of({.recompute = true}) < 0.75 * whole);
  CHECK(bytes_of({.tile = 2}) < 0.6 * whole);
  CHECK(bytes_of({.tile = 1}) < 0.55 * whole);
}

}  // namespace lockstep::test
