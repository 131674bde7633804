// What is issued to NCCL, on the fake one: the transport "nccl", sums of gradients beside any
// transport, and their end when the run fails.

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "cuda/exchange_checks.h"
#include "cuda/fake_nccl.h"
#include "cuda/fake_runtime.h"
#include "kernels/transport/gpu_transport.h"
#include "lockstep/core/check.h"
#include "step/toy_training.h"
#include "support/errors.h"
#include "support/with_timeout.h"
#include "sync/all_reduce.h"

namespace lockstep::gpu {
namespace {

using test::contains;
using test::is_a;
using test::run_ranks;
using test::text_of;

const Run kNcclRuns[] = {{1, 1},    {2, 2}, {3, 3},
                         {4, 4, 2}, {8, 8}, {5, 5, 0, true, {{0, 3}, {1, 2, 4}}}};
constexpr std::int64_t kBuckets = 4, kBucket = 200;  // of the gradients: [kBuckets, kBucket]

constexpr TransportKind kTransports[] = {TransportKind::kHost, TransportKind::kEvent,
                                         TransportKind::kNccl};

SyncGroupOptions summing(TransportKind transport) {
  SyncGroupOptions options;
  options.transport = transport;
  options.all_reduce = true;
  return options;
}

float gradient_of(int rank, int step, std::int64_t element) {
  return static_cast<float>((rank + 1) * (step + 1)) + static_cast<float>(element);
}

/// One rank's steps: exchanges of statistics go on while buckets are summed, as in a backward pass.
void sum_beside_exchanges(Communicator& own, AllReduce& sums, StreamBackend& backend,
                          const Run& run, std::atomic<int>& wrong) {
  StatisticsOfRank statistics(own, backend, run);
  float* gradients = backend.values() + StreamBackend::kValues - kBuckets * kBucket;
  const int rank = own.rank();
  int call = 0;
  for (int step = 0; step < 20; ++step) {
    for (std::int64_t bucket = 0; bucket < kBuckets; ++bucket) {
      const std::int64_t begin = bucket * kBucket;
      fake_runtime::enqueue(backend.stream(), [=] {
        for (std::int64_t i = begin; i < begin + kBucket; ++i) {
          gradients[i] = gradient_of(rank, step, i);
        }
      });
      sums.start(gradients + begin, kBucket);
      statistics.exchange(call++, 5, wrong);
    }
    sums.finish();
    fake_runtime::enqueue(backend.stream(), [=, ranks = run.ranks, &wrong] {
      for (std::int64_t i = 0; i < kBuckets * kBucket; ++i) {
        float sum = 0;
        for (int peer = 0; peer < ranks; ++peer) sum += gradient_of(peer, step, i);
        wrong += gradients[i] != sum;
      }
    });
    if (step % 3 == 2) own.barrier("end of step");
  }
  own.barrier("end");
  backend.synchronize();
}

TEST_CASE("nccl: every stream reads what its peers wrote in the same call") {
  for (const Run& run : kNcclRuns) {
    CAPTURE(run.ranks);
    check_exchanges(TransportKind::kNccl, run);
  }
  CHECK(fake_nccl::take_overlaps() == 0);
  CHECK(fake_nccl::communicators() == 0);
  CHECK(fake_nccl::take_aborts() == 0);  // of a run that ends well
}

TEST_CASE("sums of gradients run beside any transport, one collective of a GPU at a time") {
  for (const TransportKind transport : kTransports) {
    for (const Run& run : kNcclRuns) {
      CAPTURE(to_string(transport));
      CAPTURE(run.ranks);
      fake_runtime::use({.devices = run.gpus});
      SyncGroup group(devices_of(run), summing(transport));
      std::atomic<int> wrong{0};
      Replicas replicas(devices_of(run));
      const auto thrown = run_ranks(run.ranks, [&](int rank) {
        Communicator& own = group.at(rank);
        sum_beside_exchanges(own, *group.all_reduce(rank), replicas.attach(own), run, wrong);
      });
      for (const auto& failure : thrown) CHECK(text_of(failure) == "");
      CHECK(wrong == 0);
      CHECK(fake_nccl::take_overlaps() == 0);
    }
  }
}

// Rank 1's GPU is held up, so that the others' collectives wait on theirs, and fails then.
TEST_CASE("an abort ends collectives that wait for a rank, and those that come after it") {
  const Run run{3, 3};
  for (const TransportKind transport : kTransports) {
    CAPTURE(to_string(transport));
    fake_runtime::use({.devices = run.gpus});
    std::promise<void> release;
    const std::shared_future<void> released = release.get_future().share();
    SyncGroup group(devices_of(run), summing(transport));
    Replicas replicas(devices_of(run));
    const auto thrown = run_ranks(
        run.ranks,
        [&](int rank) {
          Communicator& own = group.at(rank);
          AllReduce& sums = *group.all_reduce(rank);
          StreamBackend& backend = replicas.attach(own);
          if (rank == 1) fake_runtime::enqueue(backend.stream(), [released] { released.wait(); });
          sums.start(backend.values(), kBucket);
          sums.finish();
          if (rank == 1) {
            group.abort(std::make_exception_ptr(Error("broken on purpose")));
            throw Error("broken on purpose");
          }
          backend.synchronize();
          sums.start(backend.values(), kBucket);
        },
        std::chrono::seconds(20));
    release.set_value();
    CHECK(is_a<PeerAborted>(thrown[0]));
    CHECK(text_of(thrown[1]) == "broken on purpose");
    CHECK(is_a<PeerAborted>(thrown[2]));
    CHECK(fake_nccl::communicators() == 0);
  }
  fake_nccl::take_overlaps();
}

TEST_CASE("an abort gets at a rank that is stuck inside NCCL") {
  const Run run{2, 2};
  for (const TransportKind transport : kTransports) {
    CAPTURE(to_string(transport));
    fake_runtime::use({.devices = run.gpus});
    SyncGroup group(devices_of(run), summing(transport));
    Replicas replicas(devices_of(run));
    const auto thrown = run_ranks(
        run.ranks,
        [&](int rank) {
          Communicator& own = group.at(rank);
          AllReduce& sums = *group.all_reduce(rank);
          StreamBackend& backend = replicas.attach(own);
          own.barrier("start");
          if (rank == 0) fake_nccl::get_stuck(0);
          own.barrier("stuck");
          sums.start(backend.values(), kBucket);
          if (rank == 0) return;
          while (!fake_nccl::is_stuck()) std::this_thread::yield();
          group.abort(std::make_exception_ptr(Error("the watchdog has seen enough")));
        },
        std::chrono::seconds(20));
    CHECK(is_a<PeerAborted>(thrown[0]));
    CHECK(text_of(thrown[1]) == "");
    CHECK(fake_nccl::communicators() == 0);
  }
  fake_nccl::take_overlaps();
}

TEST_CASE("a machine without a network interface gets advice") {
  fake_runtime::use({.devices = 2});
  fake_nccl::refuse_ids(true);
  CHECK_THROWS_WITH_AS(SyncGroup(devices_of({2, 2}), {.transport = TransportKind::kNccl}),
                       doctest::Contains("set NCCL_SOCKET_IFNAME=lo"), Error);
  fake_nccl::refuse_ids(false);
}

TEST_CASE("a lack of shared memory is named, with what to do about it") {
  fake_runtime::use({.devices = 2});
  fake_nccl::fail_set_up(
      "Error while creating shared memory segment /dev/shm/nccl-ab (size 5967872)");
  SyncGroup group(devices_of({2, 2}), summing(TransportKind::kEvent));
  Replicas replicas(devices_of({2, 2}));
  const auto thrown = run_ranks(2, [&](int rank) { replicas.attach(group.at(rank)); });
  fake_nccl::fail_set_up("");
  for (const auto& failure : thrown) {
    CHECK(contains(text_of(failure), "/dev/shm/nccl-ab (size 5967872); between GPUs"));
    CHECK(contains(text_of(failure), " MiB here, "));
    CHECK(contains(text_of(failure), "start the container with --shm-size=1g"));
    CHECK_FALSE(contains(text_of(failure), "NCCL_SOCKET_IFNAME"));
  }
}

TEST_CASE("a rank that never connects does not hold up the others once the run fails") {
  const Run run{2, 2};
  fake_runtime::use({.devices = run.gpus});
  SyncGroup group(devices_of(run), summing(TransportKind::kEvent));
  Replicas replicas(devices_of(run));
  const auto thrown = run_ranks(
      run.ranks,
      [&](int rank) {
        if (rank == 0) replicas.attach(group.at(0));
        group.abort(std::make_exception_ptr(Error("no memory")));
      },
      std::chrono::seconds(20));
  CHECK(is_a<PeerAborted>(thrown[0]));
}

SumTransports sums_between(const std::vector<Device>& devices) {
  return make_sum_transports(make_rank_layout(World::alone(), devices),
                             [](const Bytes& own) { return own; });
}

TEST_CASE("replicas that share a GPU have no NCCL") {
  const Run run{3, 2};
  fake_runtime::use({.devices = run.gpus});
  CHECK_THROWS_WITH_AS(
      SyncGroup(devices_of(run), {.transport = TransportKind::kNccl}),
      "the transport 'nccl' needs a GPU per replica, but cuda:0 and cuda:0#1 share "
      "one; use the transport 'event'",
      ConfigError);
  CHECK_THROWS_WITH_AS(sums_between(devices_of(run)),
                       doctest::Contains("gradient_exchange = \"all_reduce\" needs a GPU per"),
                       ConfigError);
}

TEST_CASE("how GPUs get at each other's memory") {
  const auto link = [](bool access, bool links, const Run& run) {
    fake_runtime::use({.devices = 3, .peer_access = access, .links = links});
    return gpu_all_reduce()->link_between(devices_of(run));
  };
  CHECK(link(true, true, {3, 3}) == PeerLink::kLink);
  CHECK(link(true, false, {3, 3}) == PeerLink::kBus);
  CHECK(link(false, false, {3, 3}) == PeerLink::kNone);
  CHECK(link(false, false, {2, 1}) == PeerLink::kLink);
}

TEST_CASE("over PCIe gradients are summed beside the backward pass, over NVLink by their owners") {
  const auto chosen = [](bool links) {
    fake_runtime::use({.devices = 2, .links = links});
    DataParallelOptions options = test::toy_options(2, BatchNormMode::kSync);
    options.devices = devices_of({2, 2});
    return DataParallel(options).gradient_exchange().kind;
  };
  CHECK(chosen(true) == GradientExchangeKind::kOwner);
  CHECK(chosen(false) == GradientExchangeKind::kAllReduce);
}

TEST_CASE("an all-reduce without a backend, or with one of the CPU, is an error") {
  fake_runtime::use({.devices = 1});
  const SumTransports sums = sums_between(devices_of({1, 1}));
  CHECK_THROWS_WITH_AS(sums[0]->finish(), doctest::Contains("not attached"), Error);
  const auto cpu = make_backend(Device{}, 1);
  CHECK_THROWS_WITH_AS(sums[0]->attach(*cpu), doctest::Contains("one between GPUs"), Error);
}

}  // namespace
}  // namespace lockstep::gpu
