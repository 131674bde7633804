#include "cuda/exchange_checks.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "cuda/fake_runtime.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep::gpu {
namespace {

constexpr std::int64_t kExchangedChannels = 5;
constexpr std::int64_t kHalf = 100;  // floats

float value_of(int rank, int call, std::int64_t element) {
  return static_cast<float>(rank * 1000 + call * 10) + static_cast<float>(element) / 16;
}

std::int64_t count_of(int rank, int call) { return rank == 2 ? 0 : rank + call + 1; }

/// What a consumer must find in the slots of `call`.
bool right(std::span<const StatSlot> slots, const std::vector<int>& ranks, int call,
           std::int64_t channels) {
  if (slots.size() != ranks.size()) return false;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (slots[i].count != count_of(ranks[i], call)) return false;
    for (std::int64_t e = 0; e < 2 * channels; ++e) {
      if (slots[i].data[e] != value_of(ranks[i], call, e)) return false;
    }
  }
  return true;
}

}  // namespace

StreamBackend::StreamBackend(const Device& device)
    : device_(device), stream_(device.ordinal), memory_(device.ordinal, *waits(), stream_.get()) {
  context().stream = stream_.get();
  values_ = memory_.allocate(kValues * sizeof(float));
}

void StreamBackend::synchronize() {
  Event end(device_.ordinal);
  end.record(stream_.get());
  end.synchronize();
}

std::vector<Device> devices_of(const Run& run) {
  std::vector<Device> devices;
  for (int rank = 0; rank < run.ranks; ++rank) {
    devices.push_back({DeviceKind::kCuda, rank % run.gpus, rank / run.gpus});
  }
  return devices;
}

StreamBackend& Replicas::attach(Communicator& end) {
  const auto rank = static_cast<std::size_t>(end.rank());
  backends_[rank] = std::make_unique<StreamBackend>(devices_[rank]);
  end.attach(*backends_[rank]);
  return *backends_[rank];
}

void Replicas::synchronize() {
  for (const auto& backend : backends_) {
    if (backend) backend->synchronize();
  }
}

StatisticsOfRank::StatisticsOfRank(Communicator& own, StreamBackend& backend, const Run& run)
    : own_(own), backend_(backend) {
  join(run.sets.empty() ? contiguous_groups(run.ranks, run.sync_group) : run.sets);
  if (!run.sets.empty()) join(contiguous_groups(run.ranks, 0));
}

void StatisticsOfRank::join(const RankPartition& sets) {
  const auto has_own = [rank = own_.rank()](const std::vector<int>& ranks) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  joined_.push_back({*std::find_if(sets.begin(), sets.end(), has_own), own_.join(sets)});
}

void StatisticsOfRank::exchange(int call, std::int64_t channels, std::atomic<int>& wrong) {
  const std::size_t turn = static_cast<std::size_t>(call) % joined_.size();
  Joined& joined = joined_[turn];
  float* data = backend_.values() + (2 * static_cast<std::int64_t>(turn) + joined.half) * kHalf;
  joined.half = 1 - joined.half;
  const int rank = own_.rank();
  fake_runtime::enqueue(backend_.stream(), [=] {
    for (std::int64_t e = 0; e < 2 * channels; ++e) data[e] = value_of(rank, call, e);
  });
  const SyncCall at{"bn", Direction::kForward, call, channels, joined.number};
  const auto slots = own_.all_show(at, {count_of(rank, call), data});
  const std::vector<StatSlot> copy(slots.begin(), slots.end());
  fake_runtime::enqueue(backend_.stream(), [copy, set = joined.ranks, call, channels, &wrong] {
    wrong += !right(copy, set, call, channels);
  });
}

void check_exchanges(TransportKind transport, const Run& run) {
  fake_runtime::use({.devices = run.gpus, .peer_access = run.peer_access});
  const std::vector<Device> devices = devices_of(run);
  SyncGroup group(devices, {.transport = transport});
  std::atomic<int> wrong{0};
  Replicas replicas(devices);
  const auto thrown = test::run_ranks(run.ranks, [&](int rank) {
    Communicator& own = group.at(rank);
    StreamBackend& backend = replicas.attach(own);
    StatisticsOfRank statistics(own, backend, run);
    for (int call = 0; call < kExchanges; ++call) {
      statistics.exchange(call, call < 20 ? kExchangedChannels : 2 * kExchangedChannels,
                          wrong);  // buffers grow
      if (call % 7 != 6) continue;
      own.barrier("end of step");
      statistics.reuse_memory();
    }
    own.barrier("end");
    backend.synchronize();
  });
  for (const auto& failure : thrown) CHECK(test::text_of(failure) == "");
  CHECK(wrong == 0);
}

}  // namespace lockstep::gpu
