// What waits in memory of the host between the passes, on the fake runtime, whose streams go their
// own ways where no event holds them: a copy that is not waited for shows in the bits.

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <tuple>

#include "cuda/fake_runtime.h"
#include "cuda/tiny_run.h"
#include "kernels/operations/gpu_operations.h"
#include "lockstep/core/check.h"
#include "lockstep/nn/network.h"
#include "step/toy_training.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;

constexpr Size kLargeSize{40, 40};  // a value is worth the way to the host

DataParallelOptions large_on_one_gpu(int ranks, BatchNormMode mode) {
  DataParallelOptions options = toy_options(ranks, mode);
  options.input = {6, kLargeSize.height, kLargeSize.width, 3};
  for (int rank = 0; rank < ranks; ++rank) options.devices[rank] = {DeviceKind::kCuda, 0, rank};
  return options;
}

struct Offloaded {
  Outcome outcome;
  std::size_t bytes = 0;  // planned, of rank 0
};

Offloaded trained_large(const DataParallelOptions& options) {
  const auto run = make_toy(options);
  CHECK((run->replica(0).network().offloaded_bytes() > 0) == options.offload);
  std::vector<double> losses;
  for (std::int64_t step = 0; step < 3; ++step) {
    const std::int64_t images = step == 1 ? 4 : 6;
    losses.push_back(run->train_step(toy_batch(images, step, kLargeSize), step, 0.05F).loss);
  }
  return {outcome_of(*run, std::move(losses)), run->replica(0).network().planned_bytes()};
}

TEST_CASE("offload: steps have the bits of steps that keep everything, issued and recorded") {
  for (const auto& [ranks, mode, graph, recompute] :
       {std::tuple{1, BatchNormMode::kLocal, false, true},
        std::tuple{2, BatchNormMode::kSync, true, false}}) {
    CAPTURE(ranks);
    CAPTURE(graph);
    fake_runtime::use({.devices = 1, .upload_milliseconds = 10, .download_milliseconds = 10});
    DataParallelOptions options = large_on_one_gpu(ranks, mode);
    options.recompute = recompute;
    options.cuda_graph = graph;
    const Offloaded kept = trained_large(options);
    options.offload = true;
    const Offloaded sent = trained_large(options);
    CHECK(sent.outcome == kept.outcome);
    CHECK(sent.bytes < kept.bytes);
  }
}

TEST_CASE("offload: micro-batches that are together have the bits of the whole batch") {
  fake_runtime::use({.devices = 1});
  DataParallelOptions options = large_on_one_gpu(2, BatchNormMode::kSync);
  options.placement_invariant = true;
  const Offloaded whole = trained_large(options);
  options.accumulate = 3;
  options.accumulated_statistics = MicroBatches::kTogether;
  options.offload = true;
  CHECK(trained_large(options).outcome == whole.outcome);
}

TEST_CASE("offload: copies wait for what is issued, and what is issued for copies") {
  fake_runtime::use({.devices = 1, .upload_milliseconds = 20});
  const auto backend = make_backend({DeviceKind::kCuda, 0, 0}, 1);
  const Storage memory = backend->allocate(2048);
  auto* bytes = static_cast<unsigned char*>(memory.data());
  const std::vector<Tensor> halves{{bytes, Shape{1, 1024}, DType::kUInt8},
                                   {bytes + 1024, Shape{1, 1024}, DType::kUInt8}};
  const auto offload = backend->make_offload(halves);
  const gpu::Stream stream = dynamic_cast<gpu::GpuOperations&>(*backend).stream();
  const auto write = [&](int half, int value) {
    fake_runtime::enqueue(stream, [=] {
      std::this_thread::sleep_for(milliseconds(20));
      std::memset(bytes + 1024 * half, value, 1024);
    });
  };
  static_cast<void>(fake_runtime::take_host_stalls());
  write(0, 1);
  offload->send(0);
  offload->wait(0);
  write(0, 2);  // another's, in the same place
  write(1, 3);
  offload->send(1);
  offload->fetch(0);
  offload->wait(0);
  offload->wait(1);
  int seen = 0;
  fake_runtime::enqueue(stream, [&] { seen = bytes[0] + 10 * bytes[1023] + 100 * bytes[1024]; });
  CHECK(fake_runtime::take_host_stalls().all == 0);  // the host has gone on all the time
  backend->synchronize();
  CHECK(seen == 1 + 10 + 300);
}

/// Fails in the backward pass of a layer.
class BreakingObserver final : public LayerObserver {
 public:
  explicit BreakingObserver(std::size_t layer) : layer_(layer) {}
  void begin(std::size_t layer, Direction direction) override {
    if (direction == Direction::kBackward && layer == layer_) throw Error("broken on purpose");
  }
  void end(std::size_t, Direction) override {}

 private:
  std::size_t layer_;
};

TEST_CASE("offload: what a pass that failed has under way does not arrive in the next one") {
  fake_runtime::use({.devices = 1, .upload_milliseconds = 100});
  const auto backend = make_backend({DeviceKind::kCuda, 0, 0}, 1);
  ParameterStore store;
  NetworkBuilder net(*backend, store);
  Value* x = net.input({2, 48, 48, 4});
  for (int i = 0; i < 10; ++i) {
    x = net.conv2d(x, concat("l", i), {.out_channels = 4, .kernel = 3, .padding = 1});
  }
  const auto network = net.build(x, {.offload = true});
  REQUIRE(network->offloaded_bytes() > 0);
  network->set_batch(2);
  initialize_parameters(store, *backend, 3);
  std::vector<float> images(2 * 48 * 48 * 4);
  for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<float>(i % 13) - 6;
  const auto step = [&] {
    network->zero_grad();
    network->forward({});
    backend->copy(network->output(), network->output_grad(), false);
    network->backward({});
  };
  const auto result = [&] {
    std::vector<float> grads(static_cast<std::size_t>(store.elements()));
    backend->download(grads.data(), Tensor(store.grads(), Shape{1, store.elements()}));
    backend->synchronize();
    return grads;
  };
  const Storage memory = backend->allocate(images.size() * sizeof(float));
  const Tensor given(memory.data(), network->input().shape);
  backend->upload(given, images.data());
  backend->copy(given, network->input(), false);
  step();
  const std::vector<float> whole = result();
  BreakingObserver breaking(2);  // when the first layers' values are on their way
  network->observe(&breaking);
  backend->fill(network->input(), 1);
  CHECK_THROWS_WITH_AS(step(), "broken on purpose", Error);
  network->observe(nullptr);
  backend->copy(given, network->input(), false);
  step();
  CHECK(result() == whole);
}

TEST_CASE("offload: a run on a GPU; on CPU devices it is refused, as they have no other memory") {
  fake_runtime::use({.devices = 1, .upload_milliseconds = 1});
  const TemporaryFolder folder;
  TrainRequest one =
      request(folder, "run", {"memory.offload=true", "data.size=[48,48]", "run.max_iters=2"});
  one.devices = "cuda:0x1";
  CHECK_NOTHROW(train(one));
  one.devices = "cpu:2";
  one.output = folder.path() / "cpu";
  CHECK_THROWS_WITH_AS(train(one), doctest::Contains("memory.offload = true needs GPUs, but cpu:0"),
                       ConfigError);
}

}  // namespace
}  // namespace lockstep::test
