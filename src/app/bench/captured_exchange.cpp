// A training step on a GPU is best recorded: no host takes part in it, and an exchange is what its
// edges and the merge of the ranks' statistics cost. A chain of many is timed, so that the launch
// of the recording and the wait for its end count for nothing.

#include <algorithm>
#include <chrono>
#include <memory>

#include "app/bench/bench.h"
#include "core/percentiles.h"
#include "core/seconds_since.h"
#include "lockstep/backend/backend.h"
#include "lockstep/sync/sync_group.h"
#include "step/replica_group.h"
#include "sync/transport.h"

namespace lockstep {
namespace {

constexpr std::int64_t kRows = 64;  // few: the kernels are as short as kernels can be

/// A rank's backend and BatchNorm's memory there.
struct CapturedRank {
  CapturedRank(const Device& device, std::int64_t channels)
      : backend(make_backend(device, 1)),
        memory(backend->allocate(static_cast<std::size_t>((2 * kRows + 7) * channels) *
                                 sizeof(float))) {
    auto* floats = static_cast<float*>(memory.data());
    x = Tensor(floats, Shape{kRows, channels});
    y = Tensor(floats + kRows * channels, Shape{kRows, channels});
    moments = floats + 2 * kRows * channels;
    saved = moments + 4 * channels;
    backend->fill(x, 0.5F);
  }

  std::unique_ptr<Backend> backend;
  Storage memory;
  Tensor x, y;
  float* moments = nullptr;  // [2, 2, C], used in turn: peers may read the last call's
  float* saved = nullptr;    // [3, C]
};

class Chain {
 public:
  Chain(std::span<const Device> devices, std::int64_t channels, int exchanges)
      : channels_(channels),
        exchanges_(exchanges),
        communicators_(devices),
        ranks_(devices.size()),
        group_(devices, communicators_) {
    group_.run([&](int rank) {
      auto& own = ranks_[static_cast<std::size_t>(rank)];
      own = std::make_unique<CapturedRank>(devices[static_cast<std::size_t>(rank)], channels);
      communicators_.at(rank).attach(*own->backend);
    });
  }

  bool can_be_recorded() { return communicators_.recorder(0) != nullptr; }

  /// Seconds of one replay, one figure per iteration.
  std::vector<double> replay(bool synchronized, int iters) {
    group_.run([&](int rank) { issue(rank, synchronized); });
    group_.run([&](int rank) {
      communicators_.recorder(rank)->record([&] { issue(rank, synchronized); });
    });
    seconds_of_replay();
    std::vector<double> seconds;
    for (int i = 0; i < iters; ++i) seconds.push_back(seconds_of_replay());
    return seconds;
  }

 private:
  void issue(int rank, bool synchronized) {
    const CapturedRank& own = *ranks_[static_cast<std::size_t>(rank)];
    Communicator& communicator = communicators_.at(rank);
    for (int i = 0; i < exchanges_; ++i) {
      float* moments = own.moments + i % 2 * 2 * channels_;
      own.backend->norms().batch_norm_moments(own.x, moments, 1);
      const StatSlot local{kRows, moments};
      std::span<const StatSlot> slots(&local, 1);
      if (synchronized) {
        slots = communicator.all_show({"bench", Direction::kForward, i, channels_}, local);
      }
      BatchNormForward forward;
      forward.x = own.x;
      forward.y = own.y;
      forward.slots = slots;
      forward.saved = {own.saved};
      own.backend->norms().batch_norm_forward(forward);
    }
    communicator.barrier("the end of the chain");
  }

  double seconds_of_replay() {
    const auto start = std::chrono::steady_clock::now();
    group_.run([&](int rank) {
      communicators_.recorder(rank)->replay();
      ranks_[static_cast<std::size_t>(rank)]->backend->synchronize();
    });
    return seconds_since(start);
  }

  const std::int64_t channels_;
  const int exchanges_;
  SyncGroup communicators_;
  std::vector<std::unique_ptr<CapturedRank>> ranks_;
  ReplicaGroup group_;
};

}  // namespace

std::vector<double> captured_exchange_microseconds(std::span<const Device> devices,
                                                   std::int64_t channels, int exchanges,
                                                   int iters) {
  Chain chain(devices, channels, exchanges);
  if (!chain.can_be_recorded()) return {};
  std::vector<double> microseconds = chain.replay(true, iters);
  const double without = percentiles(chain.replay(false, iters)).median;
  for (double& value : microseconds) value = 1e6 * (value - without) / exchanges;
  return microseconds;
}

}  // namespace lockstep
