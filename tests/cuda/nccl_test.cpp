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
#include "kernels/transport/gpu_communicator.h"
#include "lockstep/core/check.h"
#include "lockstep/sync/all_reduce.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep::gpu {
namespace {

using test::contains;
using test::is_a;
using test::run_ranks;
using test::text_of;

const Run kRuns[] = {{1, 1}, {2, 2}, {3, 3}, {4, 4, 2}, {8, 8}};
constexpr std::int64_t kBuckets = 4, kBucket = 200;  // of the gradients: [kBuckets, kBucket]

std::unique_ptr<CommunicatorGroup> make_nccl(std::span<const Device> devices,
                                             const CommunicatorOptions& options) {
  CommunicatorOptions nccl = options;
  nccl.transport = "nccl";
  return make_communicators(devices, nccl);
}

struct Transport {
  const char* name;
  MakeGpuCommunicators make;
  bool merges;
};
const Transport kTransports[] = {{"host", make_gpu_host_communicators, true},
                                 {"event", make_event_communicators, false},
                                 {"nccl", make_nccl, false}};

float gradient_of(int rank, int step, std::int64_t element) {
  return static_cast<float>((rank + 1) * (step + 1)) + static_cast<float>(element);
}

/// One rank's steps: exchanges of statistics go on while buckets are summed, as in a backward pass.
void sum_beside_exchanges(Communicator& own, StreamBackend& backend, const Run& run, bool merged,
                          std::atomic<int>& wrong) {
  StatisticsOfRank statistics(own, backend, run, merged);
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
      own.start_all_reduce(gradients + begin, kBucket);
      statistics.exchange(call++, 5, wrong);
    }
    own.finish_all_reduces();
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
  for (const Run& run : kRuns) {
    CAPTURE(run.ranks);
    check_exchanges(make_nccl, run, false);
  }
  CHECK(fake_nccl::take_overlaps() == 0);
  CHECK(fake_nccl::communicators() == 0);
}

TEST_CASE("sums of gradients run beside any transport, one collective of a GPU at a time") {
  for (const Transport& transport : kTransports) {
    for (const Run& run : kRuns) {
      CAPTURE(transport.name);
      CAPTURE(run.ranks);
      fake_runtime::use({.devices = run.gpus});
      CommunicatorOptions options;
      options.sync_group = run.sync_group;
      options.all_reduce = true;
      const auto communicators = transport.make(devices_of(run), options);
      std::atomic<int> wrong{0};
      Replicas replicas(devices_of(run));
      const auto thrown = run_ranks(run.ranks, [&](int rank) {
        Communicator& own = communicators->at(rank);
        sum_beside_exchanges(own, replicas.attach(own), run, transport.merges, wrong);
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
  for (const Transport& transport : kTransports) {
    CAPTURE(transport.name);
    fake_runtime::use({.devices = run.gpus});
    CommunicatorOptions options;
    options.all_reduce = true;
    std::promise<void> release;
    const std::shared_future<void> released = release.get_future().share();
    const auto communicators = transport.make(devices_of(run), options);
    Replicas replicas(devices_of(run));
    const auto thrown = run_ranks(
        run.ranks,
        [&](int rank) {
          Communicator& own = communicators->at(rank);
          StreamBackend& backend = replicas.attach(own);
          if (rank == 1) fake_runtime::enqueue(backend.stream(), [released] { released.wait(); });
          own.start_all_reduce(backend.values(), kBucket);
          own.finish_all_reduces();
          if (rank == 1) {
            communicators->abort(std::make_exception_ptr(Error("broken on purpose")));
            throw Error("broken on purpose");
          }
          backend.synchronize();
          own.start_all_reduce(backend.values(), kBucket);
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
  for (const Transport& transport : kTransports) {
    CAPTURE(transport.name);
    fake_runtime::use({.devices = run.gpus});
    CommunicatorOptions options;
    options.all_reduce = true;
    const auto communicators = transport.make(devices_of(run), options);
    Replicas replicas(devices_of(run));
    const auto thrown = run_ranks(
        run.ranks,
        [&](int rank) {
          Communicator& own = communicators->at(rank);
          StreamBackend& backend = replicas.attach(own);
          own.barrier("start");
          if (rank == 0) fake_nccl::get_stuck(0);
          own.barrier("stuck");
          own.start_all_reduce(backend.values(), kBucket);
          if (rank == 0) return;
          while (!fake_nccl::is_stuck()) std::this_thread::yield();
          communicators->abort(std::make_exception_ptr(Error("the watchdog has seen enough")));
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
  CHECK_THROWS_WITH_AS(make_nccl(devices_of({2, 2}), {}),
                       doctest::Contains("set NCCL_SOCKET_IFNAME=lo"), Error);
  fake_nccl::refuse_ids(false);
}

TEST_CASE("a rank that never connects does not hold up the others once the run fails") {
  const Run run{2, 2};
  fake_runtime::use({.devices = run.gpus});
  CommunicatorOptions options;
  options.all_reduce = true;
  const auto communicators = make_event_communicators(devices_of(run), options);
  Replicas replicas(devices_of(run));
  const auto thrown = run_ranks(
      run.ranks,
      [&](int rank) {
        if (rank == 0) replicas.attach(communicators->at(0));
        communicators->abort(std::make_exception_ptr(Error("no memory")));
      },
      std::chrono::seconds(20));
  CHECK(is_a<PeerAborted>(thrown[0]));
}

TEST_CASE("replicas that share a GPU have no NCCL") {
  const Run run{3, 2};
  fake_runtime::use({.devices = run.gpus});
  CHECK_THROWS_WITH_AS(
      make_nccl(devices_of(run), {}),
      "the transport 'nccl' needs a GPU per replica, but cuda:0 and cuda:0#1 share "
      "one; use the transport 'event'",
      ConfigError);
  CHECK_THROWS_WITH_AS(make_all_reduces(devices_of(run)),
                       doctest::Contains("run.gradient_exchange = \"all_reduce\" needs a GPU per"),
                       ConfigError);
}

TEST_CASE("whether all GPUs reach each other's memory") {
  for (const bool access : {true, false}) {
    fake_runtime::use({.devices = 3, .peer_access = access});
    CHECK(gpu_all_reduce()->reach_each_other(devices_of({3, 3})) == access);
    CHECK(gpu_all_reduce()->reach_each_other(devices_of({2, 1})));
  }
}

TEST_CASE("an all-reduce without a backend, or with one of the CPU, is an error") {
  fake_runtime::use({.devices = 1});
  const AllReduces sums = make_all_reduces(devices_of({1, 1}));
  CHECK_THROWS_WITH_AS(sums[0]->finish(), doctest::Contains("not attached"), Error);
  const auto cpu = make_backend(Device{}, 1);
  CHECK_THROWS_WITH_AS(sums[0]->attach(*cpu), doctest::Contains("one between GPUs"), Error);
}

}  // namespace
}  // namespace lockstep::gpu
