// Layers whose backward pass has two halves: when the gradient of the weights is computed.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/nn/layer.h"
#include "lockstep/nn/network.h"
#include "lockstep/sync/sync_group.h"
#include "nn/harness.h"
#include "support/devices.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep::test {
namespace {

/// Hands its input on. Its two halves of a backward pass tell of themselves.
class SplitLayer final : public Layer {
 public:
  SplitLayer(Value* input, Value* output, std::function<void(const char*)> tell)
      : Layer("split", {input}, output), tell_(std::move(tell)) {}
  LayerTraits traits() const override { return {.splits_backward = true}; }
  void forward(Backend& backend, const StepContext&) override {
    backend.copy(inputs()[0]->data, output()->data, false);
  }
  void backward(Backend& backend, const StepContext&, std::span<const GradTarget> grads) override {
    tell_("inputs");
    backend.copy(output()->grad, grads[0].tensor, grads[0].accumulate);
  }
  void backward_weights(Backend&, const StepContext&) override { tell_("weights"); }

 private:
  std::function<void(const char*)> tell_;
};

/// A BatchNorm that meets others, a layer that leads there, and one whose backward pass is split.
Describe split_behind_batch_norm(std::function<void(const char*)> tell) {
  return [tell = std::move(tell)](NetworkBuilder& net, Value* x) {
    Value* y = net.conv2d(x, "a", {.out_channels = 3});
    y = net.relu(net.batch_norm(y, "n"));
    Value* z = net.value("split", y->shape);
    return net.append(std::make_unique<SplitLayer>(y, z, tell));
  };
}

}  // namespace

TEST_CASE("weight gradients that can wait are computed while a BatchNorm waits for other ranks") {
  const Shape shape{2, 4, 4, 3};
  std::atomic<bool> computed{false};
  // Rank 1 comes to its exchange when rank 0 has computed its weight gradients behind its own.
  SyncGroupOptions options;
  options.hook = [&](int rank, const SyncCall& call) {
    while (rank == 1 && call.direction == Direction::kBackward && !computed) {
      std::this_thread::yield();
    }
    return true;
  };
  SyncGroup group(cpus(2), options);
  std::vector<std::string> told;
  std::vector<std::size_t> left_behind;
  const auto thrown = run_ranks(
      2,
      [&](int rank) {
        const auto tell = [&, rank](const char* what) {
          if (rank != 0) return;
          told.push_back(concat(what, " after ", left_behind.size()));
          if (told.size() == 2) computed = true;
        };
        TestNetwork net(split_behind_batch_norm(tell), shape, {true, true},
                        {.mode = BatchNormMode::kSync});
        const StepContext context{.communicator = group.at(rank)};
        upload(*net.backend, net.network->input(), random_floats(shape.elements(), 3));
        net.network->forward(context);
        net.network->backward(context, [&](std::size_t layer) {
          if (rank == 0) left_behind.push_back(layer);
        });
      },
      std::chrono::seconds(10));
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  CHECK(told == std::vector<std::string>{"inputs after 0", "weights after 0"});
  CHECK(left_behind == std::vector<std::size_t>{3, 2, 1, 0});
}

TEST_CASE("weight gradients are computed at once where nobody is waited for") {
  std::vector<std::string> told;
  const auto tell = [&](const char* what) { told.emplace_back(what); };
  const Shape shape{2, 4, 4, 3};
  const BatchNormOptions sync{.mode = BatchNormMode::kSync};
  TestNetwork net(split_behind_batch_norm(tell), shape, {true, true}, sync);
  const std::vector<std::string> in_order{"weights", "inputs"};
  net.step(random_floats(shape.elements(), 3), 4);
  CHECK(told == in_order);
  SyncGroup group(cpus(1));
  told.clear();
  net.step(random_floats(shape.elements(), 3), 4, {.communicator = group.at(0)});
  CHECK(told == in_order);
}

TEST_CASE("who observes a network hears weight gradients as their own layer's, not as a wait's") {
  struct Deaf : LayerObserver {
    void begin(std::size_t, Direction) override {}
    void end(std::size_t, Direction) override {}
  };
  const Shape shape{2, 4, 4, 3};
  SyncGroup group(cpus(2));
  std::vector<std::vector<std::string>> told(2);
  const auto thrown = run_ranks(2, [&](int rank) {
    const auto tell = [&, rank](const char* what) { told[rank].emplace_back(what); };
    TestNetwork net(split_behind_batch_norm(tell), shape, {true, true},
                    {.mode = BatchNormMode::kSync});
    Deaf observer;
    net.network->observe(&observer);
    net.step(random_floats(shape.elements(), 3), 4, {.communicator = group.at(rank)});
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  for (const auto& each : told) CHECK(each == std::vector<std::string>{"weights", "inputs"});
}

TEST_CASE("the weights of a frozen layer get no gradient, and the layers before it theirs") {
  const Shape shape{2, 4, 4, 3};
  const auto describe = [](NetworkBuilder& net, Value* x) {
    Value* y = net.relu(net.conv2d(x, "first", {.out_channels = 3, .bias = true}));
    y = net.relu(net.conv2d(y, "middle", {.out_channels = 4, .bias = true}));
    return net.conv2d(y, "last", {.out_channels = 2});
  };
  const auto gradients = [&](const char* frozen) {
    PlanOptions plan{.training = true};
    plan.is_frozen = [frozen](const std::string& name) { return name.starts_with(frozen); };
    TestNetwork net(describe, shape, plan);
    upload(*net.backend, net.network->input(), random_floats(shape.elements(), 3));
    net.network->forward({});
    upload(*net.backend, net.network->output_grad(), random_floats(2 * 4 * 4 * 2, 4));
    net.network->zero_grad();
    net.network->backward({});
    std::map<std::string, std::vector<float>> all;
    for (const auto& parameter : net.store.parameters()) {
      all[parameter->name] = download(*net.backend, parameter->grad, parameter->elements);
    }
    return all;
  };
  const auto whole = gradients("none");
  for (const char* frozen : {"first", "middle", "last"}) {
    CAPTURE(frozen);
    for (const auto& [name, gradient] : gradients(frozen)) {
      CAPTURE(name);
      const bool stays = name.starts_with(frozen);
      if (!stays) CHECK(gradient == whole.at(name));
      if (stays) CHECK(gradient == std::vector<float>(gradient.size(), 0.0F));
    }
  }
}

}  // namespace lockstep::test
