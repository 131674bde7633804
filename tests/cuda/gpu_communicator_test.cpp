// The transports between GPUs on the fake runtime: streams that take their time, several replicas
// on one GPU, GPUs that cannot reach each other's memory.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/exchange_checks.h"
#include "cuda/fake_runtime.h"
#include "kernels/device/host_copies.h"
#include "kernels/transport/gpu_transport.h"
#include "kernels/transport/peer_staging.h"
#include "step/toy_training.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep::gpu {
namespace {

using test::contains;
using test::run_ranks;
using test::text_of;

const Run kCommunicatorRuns[] = {{1, 1},
                                 {2, 1},
                                 {4, 2},
                                 {3, 3},
                                 {8, 2},
                                 {6, 2, 3},
                                 {4, 2, 1},
                                 {4, 4},
                                 {8, 8, 4},
                                 {5, 5, 0, true, {{0, 3}, {1, 2, 4}}},
                                 {4, 2, 0, true, {{0, 3}, {1, 2}}},
                                 {5, 2, 0, true, {{0, 2, 4}, {1}, {3}}}};

TEST_CASE("event: every stream reads what its peers wrote in the same call") {
  for (Run run : kCommunicatorRuns) {
    CAPTURE(run.ranks);
    CAPTURE(run.sync_group);
    check_exchanges(TransportKind::kEvent, run);
    CHECK(fake_runtime::peer_copies() == 0);
    CHECK(fake_runtime::copies_to_pinned() == 0);
    run.peer_access = false;
    check_exchanges(TransportKind::kEvent, run);
    CHECK(fake_runtime::peer_copies() == 0);
    // One for each rank and call, however many peers read it.
    if (run.sets.empty()) {
      const bool apart = run.gpus > 1 && run.sync_group != 1;
      CHECK(fake_runtime::copies_to_pinned() == (apart ? kExchanges * run.ranks : 0));
    }
  }
}

TEST_CASE("host: every stream reads what its peers wrote in the same call") {
  for (const Run& run : kCommunicatorRuns) {
    CAPTURE(run.ranks);
    CAPTURE(run.sync_group);
    check_exchanges(TransportKind::kHost, run);
  }
}

/// What a rank's stream, and all streams together, are given to wait for in one exchange.
struct Waits {
  int of_rank = 0, of_all = 0;
  bool operator==(const Waits&) const = default;
};

Waits waits_per_exchange(const Run& run, int rank) {
  constexpr int kCalls = 20;
  fake_runtime::use({.devices = run.gpus});
  SyncGroup group(devices_of(run), {.transport = TransportKind::kEvent});
  std::atomic<int> wrong{0}, of_rank{0};
  Replicas replicas(devices_of(run));
  const auto thrown = run_ranks(run.ranks, [&](int own) {
    StreamBackend& backend = replicas.attach(group.at(own));
    StatisticsOfRank statistics(group.at(own), backend, run);
    for (int call = 0; call < kCalls; ++call) statistics.exchange(call, 5, wrong);
    if (own == rank) of_rank = fake_runtime::waits_given_to(backend.stream());
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  replicas.synchronize();
  CHECK(wrong == 0);
  return {of_rank / kCalls, fake_runtime::take_stream_waits() / kCalls};
}

TEST_CASE("over four GPUs and more a rank waits once in an exchange, whatever their number") {
  CHECK((waits_per_exchange({2, 2}, 1) == Waits{1, 2}));
  CHECK((waits_per_exchange({3, 3}, 1) == Waits{2, 6}));
  CHECK((waits_per_exchange({4, 1}, 1) == Waits{3, 12}));  // of one GPU: nothing crosses a bus
  for (const int ranks : {4, 8}) {
    CAPTURE(ranks);
    for (const int rank : {0, 1})
      CHECK((waits_per_exchange({ranks, ranks}, rank) == Waits{1, 2 * ranks}));
  }
  CHECK((waits_per_exchange({8, 8, 4}, 5) == Waits{1, 16}));  // two groups of four
}

// Each rank writes its part of every rank's memory after the first barrier and reads all of its own
// after the second, as the gradient exchange does.
void exchange_weights(const Run& run) {
  fake_runtime::use({.devices = run.gpus});
  const std::vector<Device> devices = devices_of(run);
  SyncGroup group(devices);
  std::atomic<int> wrong{0};
  std::vector<Storage> memory(devices.size());
  Replicas replicas(devices);
  const auto body = [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    Communicator& own = group.at(rank);
    StreamBackend& backend = replicas.attach(own);
    own.join(contiguous_groups(run.ranks, run.sync_group));
    memory[index] = backend.allocate(devices.size() * sizeof(float));
    own.barrier("set-up");
    const Stream stream = backend.stream();
    for (int step = 0; step < 30; ++step) {
      fake_runtime::enqueue(stream, [&, index, step] {
        const auto* all = static_cast<const float*>(memory[index].data());
        for (std::size_t r = 0; step > 0 && r < devices.size(); ++r) {
          wrong += all[r] != static_cast<float>(step - 1) * 100 + static_cast<float>(r);
        }
      });
      own.barrier("gradient exchange");
      fake_runtime::enqueue(stream, [&, index, step] {
        for (const Storage& storage : memory) {
          static_cast<float*>(storage.data())[index] =
              static_cast<float>(step) * 100 + static_cast<float>(index);
        }
      });
      own.barrier("weight update");
    }
    backend.synchronize();
  };
  for (const auto& failure : run_ranks(run.ranks, body)) CHECK(text_of(failure) == "");
  CHECK(wrong == 0);
}

TEST_CASE("a barrier orders all ranks' streams, also across process groups") {
  for (const Run& run : kCommunicatorRuns) exchange_weights(run);
}

TEST_CASE("a rank that leaves out a call is named, and nobody waits on") {
  const Run run{4, 2};
  fake_runtime::use({.devices = run.gpus});
  SyncGroupOptions options;
  options.hook = [](int rank, const SyncCall& at) { return rank != 2 || at.index != 3; };
  SyncGroup group(devices_of(run), options);
  std::atomic<int> wrong{0};
  Replicas replicas(devices_of(run));
  const auto thrown = run_ranks(4, [&](int rank) {
    Communicator& own = group.at(rank);
    StreamBackend& backend = replicas.attach(own);
    StatisticsOfRank statistics(own, backend, run);
    for (int call = 0; call < 10; ++call) statistics.exchange(call, 5, wrong);
  });
  for (const auto& failure : thrown) {
    CHECK(contains(text_of(failure), "replica 2 is at the forward call 4 of 'bn'"));
  }
  replicas.synchronize();
}

// Peers out of reach, so that statistics are copied to the host.
TEST_CASE("a recorded step allocates nothing") {
  const Run run{2, 2, 0, false};
  fake_runtime::use({.devices = run.gpus, .peer_access = run.peer_access});
  SyncGroup group(devices_of(run));
  std::atomic<int> wrong{0}, grown{0};
  Replicas replicas(devices_of(run));
  const auto thrown = run_ranks(run.ranks, [&](int rank) {
    Communicator& own = group.at(rank);
    StreamBackend& backend = replicas.attach(own);
    StatisticsOfRank statistics(own, backend, run);
    const auto step = [&] {
      for (const int channels : {5, 10, 40}) statistics.exchange(channels, channels, wrong);
      own.barrier("end of step");
    };
    step();
    const std::size_t bytes = backend.allocated_bytes();
    group.recorder(rank)->record(step);
    grown += backend.allocated_bytes() != bytes;
    for (int i = 0; i < 3; ++i) group.recorder(rank)->replay();
    backend.synchronize();
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  CHECK(grown == 0);
  CHECK(wrong == 0);
}

TEST_CASE("the program asks for a queue to the GPU for every stream") {
  const char* queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  REQUIRE(queues != nullptr);
  CHECK(std::string(queues) == "32");
}

TEST_CASE("an end without a backend, or with one of the CPU, is an error") {
  fake_runtime::use({.devices = 1});
  SyncGroup group(devices_of({1, 1}));
  CHECK_THROWS_WITH_AS(group.at(0).barrier("end"), doctest::Contains("not attached"), Error);
  const auto cpu = make_backend(Device{}, 1);
  CHECK_THROWS_WITH_AS(group.at(0).attach(*cpu), doctest::Contains("one between GPUs"), Error);
}

TEST_CASE("device memory is zeroed and counted, and its lack is an error with a way out") {
  fake_runtime::use({.devices = 2});
  StreamBackend backend({DeviceKind::kCuda, 1, 0});
  const std::size_t before = backend.allocated_bytes();
  {
    const Storage storage = backend.allocate(1000);
    for (int i = 0; i < 250; ++i) CHECK(static_cast<const float*>(storage.data())[i] == 0.0F);
    CHECK(backend.allocated_bytes() == before + 1024);
  }
  CHECK(backend.allocated_bytes() == before);
  CHECK_THROWS_WITH_AS(
      backend.allocate(std::size_t{1} << 41),
      doctest::Contains("use smaller images or crops, a smaller batch or a smaller model"), Error);
  CHECK(device_count() == 2);  // and the failed allocation is not told again
  CHECK(describe_device(1).multiprocessors == fake_runtime::kMultiprocessors);
  fake_runtime::use({.devices = 0});
  CHECK(device_count() == 0);
}

TEST_CASE("a run takes nothing of a GPU that is not its own") {
  for (const TransportKind transport : {TransportKind::kEvent, TransportKind::kHost}) {
    fake_runtime::use({.devices = 3});
    std::thread([transport] {  // one that has chosen no GPU yet
      DataParallelOptions options = test::toy_options(3, BatchNormMode::kSync);
      options.devices = {
          {DeviceKind::kCuda, 1, 0}, {DeviceKind::kCuda, 2, 0}, {DeviceKind::kCuda, 1, 1}};
      options.communicator.transport = transport;
      const auto run = test::make_toy(options);
      run->train_step(test::toy_batch(5, 0), 0, 0.05F);
      static_cast<void>(run->evaluate(2, [](std::int64_t i) { return test::toy_batch(1, i); }));
      static_cast<void>(run->state_dict());
    })
        .join();
    CHECK(fake_runtime::chosen_devices() == std::set<int>{1, 2});
  }
}

TEST_CASE("uploads take the source at once, whatever its size") {
  fake_runtime::use({.devices = 1});
  StreamBackend backend({DeviceKind::kCuda, 0, 0});
  UploadRing ring(0, *backend.waits(), backend.stream());
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{5}, std::size_t{5} << 20, (std::size_t{21} << 20) + 3}) {
    std::vector<unsigned char> source(size), wanted;
    for (std::size_t i = 0; i < size; ++i) {
      source[i] = static_cast<unsigned char>(i * 7 + (i >> 22) * 31);
    }
    wanted = source;
    const Storage storage = backend.allocate(size);
    fake_runtime::enqueue(backend.stream(), [] {  // the host is far ahead
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    });
    ring.upload(storage.data(), source.data(), size);
    source.assign(size, 0);
    backend.synchronize();
    CHECK(std::equal(wanted.begin(), wanted.end(),
                     static_cast<const unsigned char*>(storage.data())));
  }
}

TEST_CASE("a shard out of reach is staged: the same elements, and the others untouched") {
  fake_runtime::use({.devices = 2, .peer_access = false});
  StreamBackend first({DeviceKind::kCuda, 0, 0}), second({DeviceKind::kCuda, 1, 0});
  constexpr int kBlock = kNormBlock, kElements = kBlock + 10;  // the shard begins in a second block
  const std::size_t bytes = kElements * sizeof(float);
  const Storage grads[] = {first.allocate(bytes), second.allocate(bytes)};
  const Storage weights[] = {first.allocate(bytes), second.allocate(bytes)};
  for (int i = 0; i < kElements; ++i) {
    for (const Storage& g : grads) static_cast<float*>(g.data())[i] = static_cast<float>(i);
  }
  const float* grad_data[] = {static_cast<float*>(grads[0].data()),
                              static_cast<float*>(grads[1].data())};
  float* weight_data[] = {static_cast<float*>(weights[0].data()),
                          static_cast<float*>(weights[1].data())};
  float velocity[kElements] = {}, squares[kElements] = {};
  double squared_norm = 0;
  const ParameterRange ranges[] = {{kBlock + 3, kBlock + 4, 0.5F, 10},
                                   {kBlock + 6, kBlock + 7, 0.25F}};
  const OptimizerShard shard{.grads = grad_data,
                             .weights = weight_data,
                             .state = {velocity, squares},
                             .ranges = ranges,
                             .lr = 1.0F,
                             .squared_norm = &squared_norm};
  PeerStaging staging(0);
  CHECK_FALSE(staging.reaches(shard));
  Storage scratch;
  const auto staged = staging.stage(shard, first.stream(), [&](std::size_t wanted) {
    scratch = first.allocate(wanted);
    return scratch.data();
  });
  REQUIRE(staged.shard.ranges.size() == 2);
  CHECK(staged.shard.ranges[0].begin == 3);
  CHECK(staged.shard.ranges[0].end == 4);
  CHECK(staged.shard.ranges[0].weight_decay == 0.5F);
  CHECK(staged.shard.ranges[0].lr_scale == 10);
  CHECK(staged.shard.ranges[1].begin == 6);
  CHECK(staged.shard.ranges[1].end == 7);
  CHECK(staged.shard.ranges[1].weight_decay == 0.25F);
  CHECK(staged.shard.ranges[1].lr_scale == 1);
  CHECK(staged.shard.state[0] == velocity + kBlock);
  CHECK(staged.shard.state[1] == squares + kBlock);
  CHECK(staged.shard.squared_norm == &squared_norm);
  fake_runtime::enqueue(first.stream(), [&] {
    for (int i = 0; i < 7; ++i) {
      for (float* w : staged.shard.weights) {
        w[i] = staged.shard.grads[0][i] + 10 * staged.shard.grads[1][i];
      }
    }
  });
  staging.write_back(shard, staged, first.stream());
  first.synchronize();
  for (int i = 0; i < kElements; ++i) {
    for (const float* w : weight_data) CHECK(w[i] == (i < kBlock || i >= kBlock + 7 ? 0 : 11 * i));
  }
  fake_runtime::use({.devices = 2, .peer_access = true});
  CHECK(PeerStaging(0).reaches(shard));
}

}  // namespace
}  // namespace lockstep::gpu
