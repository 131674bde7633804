#include "cuda/exchange_checks.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "cuda/fake_runtime.h"
#include "lockstep/backend/moments.h"
#include "support/errors.h"
#include "support/with_timeout.h"

namespace lockstep::gpu {
namespace {

constexpr std::int64_t kChannels = 5;
constexpr std::int64_t kHalf = 100;  // floats

float value_of(int rank, int call, std::int64_t element) {
  return static_cast<float>(rank * 1000 + call * 10) + static_cast<float>(element) / 16;
}

std::int64_t count_of(int rank, int call) { return rank == 2 ? 0 : rank + call + 1; }

/// What a consumer must find in the slots of `call`: one per rank of the group, or one merged.
bool right(std::span<const StatSlot> slots, int first, int width, int call, std::int64_t channels,
           bool merged) {
  std::vector<std::vector<float>> values(static_cast<std::size_t>(width));
  std::vector<StatSlot> expected;
  for (int i = 0; i < width; ++i) {
    for (std::int64_t e = 0; e < 2 * channels; ++e) {
      values[static_cast<std::size_t>(i)].push_back(value_of(first + i, call, e));
    }
    expected.push_back({count_of(first + i, call), values[static_cast<std::size_t>(i)].data()});
  }
  std::vector<float> result(static_cast<std::size_t>(2 * channels));
  if (merged) {
    const std::int64_t count = merge_moments(expected, channels, result.data());
    expected.assign(1, {count, result.data()});
  }
  if (slots.size() != expected.size()) return false;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].count != expected[i].count) return false;
    if (!std::equal(expected[i].data, expected[i].data + 2 * channels, slots[i].data)) return false;
  }
  return true;
}

}  // namespace

StreamBackend::StreamBackend(const Device& device)
    : device_(device), stream_(device.ordinal), memory_(device.ordinal, stream_.get()) {
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

StatisticsOfRank::StatisticsOfRank(Communicator& own, StreamBackend& backend, const Run& run,
                                   bool merged)
    : own_(own),
      backend_(backend),
      width_(run.sync_group == 0 ? run.ranks : run.sync_group),
      merged_(merged) {}

void StatisticsOfRank::exchange(int call, std::int64_t channels, std::atomic<int>& wrong) {
  float* data = backend_.values() + half_ * kHalf;
  half_ = 1 - half_;
  const int rank = own_.rank();
  fake_runtime::enqueue(backend_.stream(), [=] {
    for (std::int64_t e = 0; e < 2 * channels; ++e) data[e] = value_of(rank, call, e);
  });
  const SyncCall at{"bn", Direction::kForward, call, channels};
  const auto slots = own_.exchange(at, {count_of(rank, call), data});
  const std::vector<StatSlot> copy(slots.begin(), slots.end());
  std::int64_t count = 0;
  for (const StatSlot& slot : copy) count += slot.count;
  wrong += count != own_.last_count();
  fake_runtime::enqueue(backend_.stream(),
                        [=, first = rank / width_ * width_, width = width_, merged = merged_,
                         &wrong] { wrong += !right(copy, first, width, call, channels, merged); });
}

void check_exchanges(MakeGpuCommunicators make, const Run& run, bool merged) {
  fake_runtime::use({.devices = run.gpus, .peer_access = run.peer_access});
  const std::vector<Device> devices = devices_of(run);
  const auto communicators = make(devices, {.sync_group = run.sync_group});
  std::atomic<int> wrong{0};
  Replicas replicas(devices);
  const auto thrown = test::run_ranks(run.ranks, [&](int rank) {
    Communicator& own = communicators->at(rank);
    StreamBackend& backend = replicas.attach(own);
    StatisticsOfRank statistics(own, backend, run, merged);
    for (int call = 0; call < 60; ++call) {
      statistics.exchange(call, call < 20 ? kChannels : 2 * kChannels, wrong);  // buffers grow
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
