#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "backend/moments.h"
#include "core/rng.h"
#include "lockstep/core/check.h"
#include "lockstep/sync/sync_group.h"
#include "support/devices.h"
#include "support/errors.h"
#include "support/with_timeout.h"
#include "sync/all_reduce.h"

namespace lockstep {
namespace {

using test::contains;
using test::cpus;
using test::is_a;
using test::run_ranks;
using test::text_of;

constexpr std::int64_t kChannels = 5;

SyncCall bn_call(int index, Direction direction = Direction::kForward) {
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

/// Whether the slots are what the ranks of `set` have handed in in call `index`, in this order.
bool right(std::span<const StatSlot> slots, const std::vector<int>& set, int index) {
  if (slots.size() != set.size()) return false;
  for (std::size_t place = 0; place < set.size(); ++place) {
    const Local local(set[place], index);
    if (slots[place].count != local.slot.count) return false;
    if (!std::equal(local.data.begin(), local.data.end(), slots[place].data)) return false;
  }
  return true;
}

const std::vector<int>& set_of(int rank, const RankPartition& sets) {
  return *std::find_if(sets.begin(), sets.end(), [&](const std::vector<int>& set) {
    return std::find(set.begin(), set.end(), rank) != set.end();
  });
}

/// A rank's statistics of all calls, which its peers may read at any time.
class Memory {
 public:
  explicit Memory(int rank) {
    for (int index = 0; index < kCalls; ++index) locals_.emplace_back(rank, index);
  }
  const StatSlot& slot(int index) const { return locals_[static_cast<std::size_t>(index)].slot; }

  static constexpr int kCalls = 100;

 private:
  std::vector<Local> locals_;
};

std::vector<Memory> memory_of(int ranks) {
  std::vector<Memory> memory;
  for (int rank = 0; rank < ranks; ++rank) memory.emplace_back(rank);
  return memory;
}

/// Exchanges in the given partitions in turn; `sets` ascending.
void check_exchanges(int ranks, const std::vector<RankPartition>& partitions) {
  SyncGroup group(cpus(ranks));
  const std::vector<Memory> memory = memory_of(ranks);
  std::atomic<int> wrong{0};
  const auto thrown = run_ranks(ranks, [&](int rank) {
    Communicator& own = group.at(rank);
    std::vector<int> numbers;
    for (const RankPartition& sets : partitions) numbers.push_back(own.join(sets));
    for (int index = 0; index < Memory::kCalls; ++index) {
      const std::size_t turn = static_cast<std::size_t>(index) % partitions.size();
      SyncCall at = bn_call(index, index % 3 == 0 ? Direction::kForward : Direction::kBackward);
      at.partition = numbers[turn];
      const auto slots = own.all_show(at, memory[rank].slot(index));
      wrong += !right(slots, set_of(rank, partitions[turn]), index);
      if (index % 10 == 9) own.barrier("end of step");
    }
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  CHECK(wrong == 0);
  CHECK_FALSE(group.failure());
}

SyncGroupOptions options_with(std::function<bool(int rank, const SyncCall& call)> hook,
                              int stall_milliseconds = 60'000) {
  SyncGroupOptions options;
  options.hook = std::move(hook);
  options.stall_timeout = std::chrono::milliseconds(stall_milliseconds);
  return options;
}

/// Ranks make `calls` exchanges in groups of `width` and a barrier per step, for 3 steps.
std::vector<std::exception_ptr> run_steps(SyncGroup& group, int calls, int width = 0) {
  const std::vector<Memory> memory = memory_of(group.size());
  return run_ranks(
      group.size(),
      [&](int rank) {
        Communicator& own = group.at(rank);
        const int partition = own.join(contiguous_groups(group.size(), width));
        for (int step = 0; step < 3; ++step) {
          own.begin_step(step);
          for (int index = 0; index < calls; ++index) {
            SyncCall at = bn_call(index);
            at.partition = partition;
            own.all_show(at, memory[rank].slot(index));
          }
          own.barrier("gradient exchange");
        }
      },
      std::chrono::seconds(20));
}

}  // namespace

TEST_CASE("every rank gets the slots of its group, in rank order") {
  for (const int ranks : {1, 2, 3, 4, 8}) check_exchanges(ranks, {contiguous_groups(ranks, 0)});
  check_exchanges(4, {contiguous_groups(4, 2)});
  check_exchanges(4, {contiguous_groups(4, 1)});
  check_exchanges(6, {contiguous_groups(6, 3)});
}

TEST_CASE("process groups of any shape, several in one run") {
  check_exchanges(4, {{{0, 3}, {1, 2}}});
  check_exchanges(5, {{{0, 2, 4}, {1}, {3}}});
  check_exchanges(6, {contiguous_groups(6, 0),
                      {{0, 2, 4}, {1, 3, 5}},
                      contiguous_groups(6, 2),
                      {{0, 5}, {1, 2, 3}, {4}}});
}

// What makes per-rank slots give the bits of a merge that one rank does for all: the result is
// rounded to fp32 once, and a single slot comes out of a merge as it went in.
TEST_CASE("slots that are merged before, and merged again alone, have the bits of one merge") {
  for (const int ranks : {1, 2, 3, 8}) {
    const std::vector<Memory> memory = memory_of(ranks);
    for (int index = 0; index < Memory::kCalls; ++index) {
      std::vector<StatSlot> slots;
      for (const Memory& own : memory) slots.push_back(own.slot(index));
      std::vector<float> once(2 * kChannels), twice(2 * kChannels);
      std::int64_t count = merge_moments(slots, kChannels, once.data());
      StatSlot merged{count, once.data()};
      CHECK(merge_moments({&merged, 1}, kChannels, twice.data()) == count);
      CHECK(once == twice);
      count = merge_sums(slots, kChannels, once.data());
      CHECK(merge_sums({&merged, 1}, kChannels, twice.data()) == count);
      CHECK(once == twice);
    }
  }
}

TEST_CASE("equal partitions share a number, however their ranks are written") {
  SyncGroup group(cpus(4));
  std::vector<std::vector<int>> numbers(4);
  const auto thrown = run_ranks(4, [&](int rank) {
    Communicator& own = group.at(rank);
    for (const RankPartition& sets :
         {RankPartition{{0, 1}, {2, 3}}, RankPartition{{3, 2}, {1, 0}},
          RankPartition{{0, 2}, {1, 3}}, RankPartition{{3, 1, 0, 2}}, contiguous_groups(4, 2)}) {
      numbers[rank].push_back(own.join(sets));
    }
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  for (const auto& own : numbers) CHECK(own == std::vector<int>{1, 1, 2, 0, 1});
}

TEST_CASE("what is no partition of the ranks is a configuration error") {
  SyncGroup group(cpus(3));
  for (const RankPartition& sets :
       {RankPartition{}, RankPartition{{0, 1}}, RankPartition{{0, 1, 2}, {}},
        RankPartition{{0, 1}, {1, 2}}, RankPartition{{0, 1}, {2, 3}}, RankPartition{{0, 1, 2, 2}},
        RankPartition{{-1, 0, 1, 2}}}) {
    CHECK_THROWS_WITH_AS(group.at(0).join(sets),
                         doctest::Contains("give each of the 3 ranks from 0 to 2 in exactly one"),
                         ConfigError);
  }
  CHECK_THROWS_WITH_AS(group.at(0).join({{0, 1}, {1, 2}}), doctest::Contains("{0, 1}, {1, 2}"),
                       ConfigError);
  CHECK_THROWS_WITH_AS(contiguous_groups(4, 3),
                       doctest::Contains("sync_group = 3 does not divide the 4 devices"),
                       ConfigError);
  CHECK_THROWS_AS(contiguous_groups(4, -2), ConfigError);
  SyncCall at = bn_call(0);
  at.partition = 1;
  CHECK_THROWS_WITH_AS(group.at(0).all_show(at, {}), doctest::Contains("has not joined"), Error);
}

TEST_CASE("ranks that join different process groups are told so") {
  SyncGroup group(cpus(3));
  const auto thrown = run_ranks(3, [&](int rank) {
    group.at(rank).join(rank == 2 ? RankPartition{{0}, {1, 2}} : RankPartition{{0, 1}, {2}});
  });
  for (const auto& failure : thrown) {
    CHECK(is_a<ReplicaError>(failure));
    CHECK(contains(text_of(failure),
                   "replica 2 joins the process groups {0}, {1, 2} while replica "
                   "0 joins {0, 1}, {2}"));
  }
}

TEST_CASE("ends know who they are, and waiting is measured") {
  SyncGroup group(cpus(2));
  CHECK(group.size() == 2);
  CHECK(group.at(1).rank() == 1);
  CHECK(group.at(0).size() == 2);
  CHECK(group.progress().ranks() == 2);
  CHECK(group.recorder(0) == nullptr);
  CHECK(group.all_reduce(0) == nullptr);
  const std::vector<Memory> memory = memory_of(2);
  run_ranks(2, [&](int rank) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    group.at(rank).all_show(bn_call(0), memory[rank].slot(0));
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    group.at(rank).barrier("end");
  });
  CHECK(group.at(0).exchange_wait_seconds() > 0.01);
  CHECK(group.at(1).barrier_wait_seconds() > 0.01);
}

// Two blocks of memory in turn, written anew as soon as the contract allows it.
TEST_CASE("what a rank has to do meanwhile, it does before it waits for the others") {
  SyncGroup group(cpus(2));
  std::atomic<bool> done{false};
  bool in_time = false;
  const auto thrown = run_ranks(2, [&](int rank) {
    const Local local(rank, 0);
    if (rank == 1) {
      const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (!done && std::chrono::steady_clock::now() < patience) std::this_thread::yield();
      in_time = done;
    }
    group.at(rank).all_show(bn_call(0), local.slot, [&] { done = true; });
    group.at(rank).barrier("the end");
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  CHECK(in_time);
}

TEST_CASE("statistics may be written again when the next exchange of the group has returned") {
  SyncGroup group(cpus(4));
  std::vector<std::array<Local, 2>> memory;
  for (int rank = 0; rank < 4; ++rank) memory.push_back({Local(rank, 0), Local(rank, 0)});
  std::atomic<int> wrong{0};
  const auto thrown = run_ranks(4, [&](int rank) {
    const int partition = group.at(rank).join({{0, 2}, {1, 3}});
    for (int index = 0; index < 500; ++index) {
      Local& local = memory[rank][static_cast<std::size_t>(index) % 2];
      const std::vector<float> values = Local(rank, index).data;
      std::copy(values.begin(), values.end(), local.data.begin());
      SyncCall at = bn_call(index);
      at.partition = partition;
      const auto slots = group.at(rank).all_show(at, local.slot);
      if ((index + rank) % 3 == 0) std::this_thread::yield();
      wrong += !right(slots, {rank % 2, rank % 2 + 2}, index);
    }
    group.at(rank).barrier("end");
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  CHECK(wrong == 0);
}

/// Pairs of ranks, pairs of pairs and so on: of up to 8 ranks.
float tree_sum(const std::vector<std::vector<float>>& data, std::size_t i) {
  std::vector<float> sums;
  for (const auto& own : data) sums.push_back(own[i]);
  while (sums.size() > 1) {
    std::vector<float> pairs;
    for (std::size_t k = 0; k < sums.size(); k += 2) {
      pairs.push_back(k + 1 < sums.size() ? sums[k] + sums[k + 1] : sums[k]);
    }
    sums = pairs;
  }
  return sums.front();
}

TEST_CASE("an all-reduce is the sum in a binary tree over all ranks of the run") {
  for (const int width : {0, 1, 2}) {
    for (const int ranks : {1, 2, 3, 4, 7, 8}) {
      if (width > 0 && ranks % width != 0) continue;
      SyncGroupOptions options;
      options.all_reduce = true;
      SyncGroup group(cpus(ranks), options);
      run_ranks(ranks, [&](int rank) { group.at(rank).join(contiguous_groups(ranks, width)); });
      std::vector<std::vector<float>> data(static_cast<std::size_t>(ranks));
      for (const std::size_t count : {1U, 7U, 512U, 5001U}) {
        for (int rank = 0; rank < ranks; ++rank) {
          Rng rng(3, RngPurpose::kTest, static_cast<std::uint64_t>(rank));
          std::vector<float>& own = data[static_cast<std::size_t>(rank)];
          own.resize(count);
          for (float& value : own) value = rng.uniform(-1, 1);
        }
        std::vector<float> sums(count);
        for (std::size_t i = 0; i < count; ++i) sums[i] = tree_sum(data, i);
        const auto thrown = run_ranks(ranks, [&](int rank) {
          float* own = data[static_cast<std::size_t>(rank)].data();
          group.all_reduce(rank)->start(own, static_cast<std::int64_t>(count));
          group.all_reduce(rank)->finish();
        });
        for (const auto& failure : thrown) CHECK(text_of(failure) == "");
        for (const auto& own : data) CHECK(own == sums);
      }
      CHECK(group.all_reduce(0)->seconds() > 0);
    }
  }
}

// Nothing but the meetings orders the ranks' pieces: each rank writes its values anew as soon as
// the sums before are read.
TEST_CASE("sums under way at the same time are all there at the end, with or without a barrier") {
  constexpr int kRanks = 4, kBuckets = 3;
  constexpr std::int64_t kCount = 701;
  SyncGroupOptions options;
  options.all_reduce = true;
  SyncGroup group(cpus(kRanks), options);
  std::vector<std::vector<float>> data(kRanks, std::vector<float>(kBuckets * kCount));
  std::atomic<int> wrong{0};
  const auto thrown = run_ranks(kRanks, [&](int rank) {
    float* own = data[rank].data();
    for (int step = 0; step < 200; ++step) {
      for (std::int64_t bucket = 0; bucket < kBuckets; ++bucket) {
        float* values = own + bucket * kCount;
        std::fill_n(values, kCount, static_cast<float>(step + rank));
        group.all_reduce(rank)->start(values, kCount);
      }
      if (step % 2 == 0) group.at(rank).barrier("gradient exchange");
      group.all_reduce(rank)->finish();
      const auto sum = static_cast<float>(kRanks * step + kRanks * (kRanks - 1) / 2);
      wrong += static_cast<int>(
          std::count_if(own, own + kBuckets * kCount, [sum](float value) { return value != sum; }));
    }
  });
  for (const auto& failure : thrown) CHECK(text_of(failure) == "");
  CHECK(wrong == 0);
}

TEST_CASE("ranks that sum different numbers of values, or one that does not, are named") {
  SyncGroupOptions options;
  options.all_reduce = true;
  std::vector<float> data(30);
  SyncGroup group(cpus(3), options);
  const auto thrown = run_ranks(3, [&](int rank) {
    group.all_reduce(rank)->start(&data[static_cast<std::size_t>(10 * rank)], rank == 1 ? 4 : 5);
  });
  for (const auto& failure : thrown) {
    CHECK(contains(text_of(failure),
                   "replica 1 is at the exchange 0 of gradients (4 values) while replicas 0 and "
                   "2 are at the exchange 0 of gradients (5 values)"));
  }
}

TEST_CASE("a rank that leaves out a call is named at once") {
  SyncGroup group(cpus(4), options_with([](int rank, const SyncCall& at) {
                    return rank != 2 || at.index != 1;
                  }));
  const auto thrown = run_steps(group, 4);
  for (const auto& failure : thrown) {
    CHECK(
        text_of(failure) ==
        "replica 2 is at the forward call 2 of 'bn' (5 channels) while replicas 0, 1 and 3 are at "
        "the forward call 1 of 'bn' (5 channels): every replica must make the same BatchNorm "
        "calls in the same order");
  }
  CHECK(group.failure() == thrown[0]);
}

TEST_CASE("a rank that leaves out the last call of a step is named at the barrier") {
  const auto hook = [](int rank, const SyncCall& at) { return rank != 0 || at.index != 3; };
  for (const int width : {0, 2}) {
    SyncGroup group(cpus(4), options_with(hook));
    const auto thrown = run_steps(group, 4, width);
    CHECK(contains(text_of(thrown[0]), "replica 0 is at the barrier 'gradient exchange'"));
    CHECK(contains(text_of(thrown[0]), "the forward call 3 of 'bn' (5 channels)"));
    CHECK_FALSE(is_a<PeerAborted>(thrown[0]));
    CHECK(group.failure() == thrown[0]);
    // The other process group saw no mismatch of its own and still ends.
    for (const auto& failure : thrown) CHECK(is_a<ReplicaError>(failure));
  }
}

TEST_CASE("the watchdog names who waits, where, and where the missing replica was last seen") {
  const auto hook = [](int rank, const SyncCall& at) {
    if (rank == 1 && at.index == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    return true;
  };
  SyncGroup group(cpus(3), options_with(hook, 200));
  const auto thrown = run_steps(group, 4);
  for (const auto& failure : thrown) CHECK(is_a<PeerAborted>(failure));
  const std::string text = text_of(group.failure());
  CHECK(is_a<StalledError>(group.failure()));
  CHECK(contains(text, "stalled: no progress within 0.2 s: replica 0 has waited "));
  CHECK(contains(text, " s in the forward call 2 of 'bn' (5 channels); replica 2 has waited "));
  CHECK(contains(text, "replica 1 is missing; last seen: replica 1: forward in bn, step 0, for "));
}

TEST_CASE("the watchdog sees ranks that wait for another process group") {
  const auto hook = [](int rank, const SyncCall& at) {
    if (rank == 3 && at.index == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return true;
  };
  SyncGroup group(cpus(4), options_with(hook, 100));
  run_steps(group, 2, 2);
  const std::string text = text_of(group.failure());
  CHECK(contains(text, " s in the forward call 1 of 'bn' (5 channels); replica 3 is missing"));
  CHECK(contains(text, "last seen: replica 3: forward in bn, step 0"));
  CHECK(contains(text, "replica 0 has waited "));
  CHECK(contains(text, "replica 1 has waited "));
  CHECK(contains(text, " s in the barrier 'gradient exchange'"));
  CHECK(contains(text, "replicas 2 and 3 are missing"));
}

TEST_CASE("after an abort everything throws, for ever") {
  SyncGroup group(cpus(2));
  group.abort(std::make_exception_ptr(DataError("first")));
  group.abort(std::make_exception_ptr(Error("second")));
  CHECK(is_a<DataError>(group.failure()));
  const Local local(0, 0);
  for (int round = 0; round < 3; ++round) {
    CHECK_THROWS_AS(group.at(0).all_show(bn_call(0), local.slot), PeerAborted);
    CHECK_THROWS_AS(group.at(1).barrier("end"), PeerAborted);
    CHECK_THROWS_AS(group.at(1).join({{0}, {1}}), PeerAborted);
  }
}

namespace {

RankLayout layout_of(const std::vector<Device>& devices) {
  return make_rank_layout(World::alone(), devices);
}

}  // namespace

TEST_CASE("the transport that auto means") {
  const std::vector<Device> gpu{{DeviceKind::kCuda, 0, 0}};
  CHECK(resolve_transport(TransportKind::kAuto, layout_of(cpus(2))) == TransportKind::kHost);
  CHECK(resolve_transport(TransportKind::kAuto, layout_of(gpu)) == TransportKind::kEvent);
  CHECK(resolve_transport(TransportKind::kNccl, layout_of(gpu)) == TransportKind::kNccl);
  RankLayout other = layout_of(gpu);
  other.first.push_back(2);  // another process has the other one
  CHECK(resolve_transport(TransportKind::kAuto, other) == TransportKind::kHost);
}

TEST_CASE("no devices and wrong transports are configuration errors") {
  CHECK_THROWS_AS(SyncGroup(std::vector<Device>()), ConfigError);
  CHECK_THROWS_WITH_AS(SyncGroup(cpus(1), {.transport = TransportKind::kNccl}),
                       doctest::Contains("no CUDA backend"), ConfigError);
  const std::vector<Device> gpu{{DeviceKind::kCuda, 0, 0}};
  CHECK_THROWS_WITH_AS(SyncGroup{gpu}, doctest::Contains("cuda:0"), ConfigError);
  CHECK_THROWS_WITH_AS(make_sum_transports(layout_of(gpu), nullptr),
                       doctest::Contains("use \"owner\""), ConfigError);
}

}  // namespace lockstep
