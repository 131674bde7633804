#include "lockstep/sync/communicator.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "lockstep/backend/moments.h"
#include "lockstep/core/check.h"
#include "lockstep/core/rng.h"
#include "lockstep/sync/all_reduce.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep {
namespace {

using test::contains;
using test::is_a;
using test::run_ranks;
using test::text_of;

constexpr std::int64_t kChannels = 5;

std::vector<Device> cpus(int count) {
  std::vector<Device> devices;
  for (int k = 0; k < count; ++k) devices.push_back({DeviceKind::kCpu, k, 0});
  return devices;
}

SyncCall call(int index, Direction direction = Direction::kForward) {
  return {"bn", direction, index, kChannels};
}

/// Partial statistics of a rank in a call; rank 2 has no samples.
struct Local {
  Local(int rank, int index) : data(2 * kChannels) {
    Rng rng(11, RngPurpose::kTest, static_cast<std::uint64_t>(rank),
            static_cast<std::uint32_t>(index));
    for (float& value : data) value = rng.uniform(0.5F, 2);
    slot = {rank == 2 ? 0 : rank + 3, data.data()};
  }
  std::vector<float> data;
  StatSlot slot;
};

/// What ranks [first, last) merge to in call `index`.
std::vector<float> expected(int first, int last, int index, Direction direction) {
  std::vector<Local> locals;
  std::vector<StatSlot> slots;
  for (int rank = first; rank < last; ++rank) locals.emplace_back(rank, index);
  for (const Local& local : locals) slots.push_back(local.slot);
  std::vector<float> merged(2 * kChannels);
  direction == Direction::kForward ? merge_moments(slots, kChannels, merged.data())
                                   : merge_sums(slots, kChannels, merged.data());
  return merged;
}

void check_exchanges(int ranks, int sync_group, Direction direction) {
  const auto group = make_communicators(cpus(ranks), {.sync_group = sync_group});
  const int width = sync_group == 0 ? ranks : sync_group;
  std::atomic<int> wrong{0};
  const auto thrown = run_ranks(ranks, [&](int rank) {
    Communicator& own = group->at(rank);
    const int first = rank / width * width;
    for (int index = 0; index < 100; ++index) {
      const Local local(rank, index);
      const auto slots = own.exchange(call(index, direction), local.slot);
      const std::vector<float> merged = expected(first, first + width, index, direction);
      wrong += slots.size() != 1 || slots[0].count != own.last_count();
      wrong += !std::equal(merged.begin(), merged.end(), slots[0].data);
      if (index % 10 == 9) own.barrier("end of step");
    }
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  CHECK(wrong == 0);
  CHECK_FALSE(group->failure());
}

/// Ranks make `calls` exchanges and a barrier per step, for 3 steps, under the given hook.
std::vector<std::exception_ptr> run_steps(CommunicatorGroup& group, int ranks, int calls,
                                          std::chrono::milliseconds limit) {
  return run_ranks(
      ranks,
      [&](int rank) {
        for (int step = 0; step < 3; ++step) {
          group.progress().set_step(rank, step);
          for (int index = 0; index < calls; ++index) {
            const Local local(rank, index);
            group.at(rank).exchange(call(index), local.slot);
          }
          group.at(rank).barrier("gradient exchange");
        }
      },
      limit);
}

}  // namespace

TEST_CASE("every rank gets the merged statistics of its group, bit by bit") {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const int ranks : {1, 2, 3, 4, 8}) check_exchanges(ranks, 0, direction);
    check_exchanges(4, 2, direction);
    check_exchanges(4, 1, direction);
    check_exchanges(6, 3, direction);
  }
}

TEST_CASE("ends know who they are, and waiting is measured") {
  const auto group = make_communicators(cpus(2), {});
  CHECK(group->at(1).rank() == 1);
  CHECK(group->at(0).size() == 2);
  CHECK(group->progress().ranks() == 2);
  run_ranks(2, [&](int rank) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    const Local local(rank, 0);
    group->at(rank).exchange(call(0), local.slot);
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    group->at(rank).barrier("end");
  });
  CHECK(group->at(0).exchange_wait_seconds() > 0.01);
  CHECK(group->at(1).barrier_wait_seconds() > 0.01);
}

TEST_CASE("an answer lives until the second exchange after it") {
  const auto group = make_communicators(cpus(3), {});
  std::atomic<int> wrong{0};
  run_ranks(3, [&](int rank) {
    std::span<const StatSlot> previous;
    for (int index = 0; index < 50; ++index) {
      const Local local(rank, index);
      const auto slots = group->at(rank).exchange(call(index), local.slot);
      if (index > 0) {
        const auto merged = expected(0, 3, index - 1, Direction::kForward);
        wrong += !std::equal(merged.begin(), merged.end(), previous[0].data);
      }
      previous = slots;
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("an all-reduce is the sum in rank order over all ranks of the run") {
  for (const int sync_group : {0, 1, 2}) {
    for (const int ranks : {1, 2, 4, 8}) {
      if (sync_group > ranks) continue;
      CommunicatorOptions options;
      options.sync_group = sync_group;
      options.all_reduce = true;
      const auto group = make_communicators(cpus(ranks), options);
      std::vector<std::vector<float>> data(static_cast<std::size_t>(ranks));
      for (const std::size_t count : {1U, 7U, 512U, 5001U}) {
        std::vector<float> sums(count);
        for (int rank = 0; rank < ranks; ++rank) {
          Rng rng(3, RngPurpose::kTest, static_cast<std::uint64_t>(rank));
          std::vector<float>& own = data[static_cast<std::size_t>(rank)];
          own.resize(count);
          for (std::size_t i = 0; i < count; ++i) sums[i] += own[i] = rng.uniform(-1, 1);
        }
        const auto thrown = run_ranks(ranks, [&](int rank) {
          float* own = data[static_cast<std::size_t>(rank)].data();
          group->at(rank).start_all_reduce(own, static_cast<std::int64_t>(count));
          group->at(rank).finish_all_reduces();
        });
        for (const auto& failure : thrown) CHECK(text_of(failure) == "");
        for (const auto& own : data) CHECK(own == sums);
      }
      CHECK(group->at(0).all_reduce_seconds() > 0);
    }
  }
}

TEST_CASE("ranks that sum different numbers of values, or one that does not, are named") {
  CommunicatorOptions options;
  options.all_reduce = true;
  std::vector<float> data(30);
  const auto group = make_communicators(cpus(3), options);
  const auto thrown = run_ranks(3, [&](int rank) {
    group->at(rank).start_all_reduce(&data[static_cast<std::size_t>(10 * rank)], rank == 1 ? 4 : 5);
  });
  for (const auto& failure : thrown) {
    CHECK(contains(text_of(failure),
                   "replica 1 is at the all-reduce 0 of gradients (4 values) while replicas 0 and "
                   "2 are at the all-reduce 0 of gradients (5 values)"));
  }
  const auto without = make_communicators(cpus(1), {});
  CHECK_THROWS_WITH_AS(without->at(0).start_all_reduce(data.data(), 1),
                       doctest::Contains("all_reduce = true"), Error);
}

TEST_CASE("a rank that leaves out a call is named at once") {
  CommunicatorOptions options;
  options.hook = [](int rank, const SyncCall& at) { return rank != 2 || at.index != 1; };
  const auto group = make_communicators(cpus(4), options);
  const auto thrown = run_steps(*group, 4, 4, std::chrono::seconds(10));
  for (const auto& failure : thrown) {
    CHECK(
        text_of(failure) ==
        "replica 2 is at the forward call 2 of 'bn' (5 channels) while replicas 0, 1 and 3 are at "
        "the forward call 1 of 'bn' (5 channels): every replica must make the same BatchNorm "
        "calls in the same order");
  }
  CHECK(text_of(group->failure()) == text_of(thrown[0]));
}

TEST_CASE("a rank that leaves out the last call of a step is named at the barrier") {
  CommunicatorOptions options;
  options.hook = [](int rank, const SyncCall& at) { return rank != 0 || at.index != 3; };
  for (const int sync_group : {0, 2}) {
    options.sync_group = sync_group;
    const auto group = make_communicators(cpus(4), options);
    const auto thrown = run_steps(*group, 4, 4, std::chrono::seconds(10));
    CHECK(contains(text_of(thrown[0]), "replica 0 is at the barrier 'gradient exchange'"));
    CHECK(contains(text_of(thrown[0]), "the forward call 3 of 'bn' (5 channels)"));
    CHECK_FALSE(is_a<PeerAborted>(thrown[0]));
    CHECK(text_of(group->failure()) == text_of(thrown[0]));
    // The other sync group saw no mismatch of its own and still ends.
    for (const auto& failure : thrown) CHECK(is_a<ReplicaError>(failure));
  }
}

TEST_CASE("the watchdog names who waits, where, and where the missing replica was last seen") {
  CommunicatorOptions options;
  options.stall_timeout = std::chrono::milliseconds(200);
  options.hook = [](int rank, const SyncCall& at) {
    if (rank == 1 && at.index == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    return true;
  };
  const auto group = make_communicators(cpus(3), options);
  const auto thrown = run_steps(*group, 3, 4, std::chrono::seconds(20));
  for (const auto& failure : thrown) CHECK(is_a<PeerAborted>(failure));
  const std::string text = text_of(group->failure());
  CHECK(is_a<ReplicaError>(group->failure()));
  CHECK_FALSE(is_a<PeerAborted>(group->failure()));
  CHECK(contains(text, "stalled: no progress within 0.2 s: replica 0 has waited "));
  CHECK(contains(text, " s in the forward call 2 of 'bn' (5 channels); replica 2 has waited "));
  CHECK(contains(text, "replica 1 is missing; last seen: replica 1: forward in bn, step 0, for "));
}

TEST_CASE("the watchdog sees a rank that waits for another sync group") {
  CommunicatorOptions options;
  options.sync_group = 2;
  options.stall_timeout = std::chrono::milliseconds(100);
  options.hook = [](int rank, const SyncCall& at) {
    if (rank == 3 && at.index == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return true;
  };
  const auto group = make_communicators(cpus(4), options);
  run_steps(*group, 4, 2, std::chrono::seconds(20));
  const std::string text = text_of(group->failure());
  CHECK(contains(text, "replica 2 has waited"));
  CHECK(contains(text, "last seen: replica 3: forward in bn, step 0"));
  CHECK(contains(text, "replicas 0 and 1 waited up to"));
}

TEST_CASE("after an abort everything throws, for ever") {
  const auto group = make_communicators(cpus(2), {});
  group->abort(std::make_exception_ptr(DataError("first")));
  group->abort(std::make_exception_ptr(Error("second")));
  CHECK(is_a<DataError>(group->failure()));
  const Local local(0, 0);
  for (int round = 0; round < 3; ++round) {
    CHECK_THROWS_AS(group->at(0).exchange(call(0), local.slot), PeerAborted);
    CHECK_THROWS_AS(group->at(1).barrier("end"), PeerAborted);
  }
}

TEST_CASE("the transport that auto means") {
  CHECK(resolve_transport("auto", cpus(2)) == "host");
  CHECK(resolve_transport("auto", std::vector<Device>{{DeviceKind::kCuda, 0, 0}}) == "event");
  CHECK(resolve_transport("nccl", cpus(2)) == "nccl");
}

TEST_CASE("wrong groups and transports are configuration errors") {
  CHECK_THROWS_AS(make_communicators({}, {}), ConfigError);
  CHECK_THROWS_WITH_AS(make_communicators(cpus(4), {.sync_group = 3}),
                       doctest::Contains("bn.sync_group = 3 does not divide the 4 devices"),
                       ConfigError);
  CHECK_THROWS_AS(make_communicators(cpus(4), {.sync_group = -2}), ConfigError);
  CHECK_THROWS_AS(make_communicators(cpus(1), {.transport = "mpi"}), ConfigError);
  CHECK_THROWS_WITH_AS(make_communicators(cpus(1), {.transport = "nccl"}),
                       doctest::Contains("no CUDA backend"), ConfigError);
  const std::vector<Device> gpu{{DeviceKind::kCuda, 0, 0}};
  CHECK_THROWS_WITH_AS(make_communicators(gpu, {}), doctest::Contains("cuda:0"), ConfigError);
  CHECK_THROWS_WITH_AS(make_all_reduces(gpu), doctest::Contains("use \"owner\""), ConfigError);
}

}  // namespace lockstep
