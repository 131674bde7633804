#pragma once
// What the transports between GPUs have in common: a rank's stream, and the barrier that makes all
// ranks' streams wait for each other. Data never waits on the host there: the meeting of the ranks
// only makes sure that events are recorded before they are waited for, and streams do the waiting.
// Every wait is issued after what it waits for, so no order of streams can make them wait in a
// circle.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/operations/gpu_operations.h"
#include "lockstep/core/device.h"
#include "sync/transport.h"

namespace lockstep::gpu {

/// Where the ranks of a run are: those of this process, which count from 0 here.
struct GpuRun {
  explicit GpuRun(std::span<const Device> devices);

  const std::vector<int> ordinals;  // [rank]
  const PeerAccess peers;
};

/// How many floats one slot of a call has, and several.
inline std::int64_t floats_of(const SyncCall& call, const StatSlot& slot) {
  return slot.parts * 2 * call.channels;
}
inline std::int64_t floats_of(const SyncCall& call, std::span<const StatSlot> slots) {
  std::int64_t floats = 0;
  for (const StatSlot& slot : slots) floats += floats_of(call, slot);
  return floats;
}

/// One rank's transport between GPUs.
class GpuTransport : public Transport {
 public:
  GpuTransport(std::shared_ptr<const GpuRun> run, int rank) : run_(std::move(run)), rank_(rank) {}

  /// An override calls this first.
  void attach(Backend& backend, SumTransport* sums) override;
  void* arrive() override;
  void depart(std::span<void* const> handles) override;
  std::optional<HostWaits::Clock::duration> device_wait() const override;

  int rank() const { return rank_; }
  int ordinal() const { return run_->ordinals[static_cast<std::size_t>(rank_)]; }
  /// Both throw Error unless the transport is attached.
  GpuOperations& backend() const;
  Stream stream() const { return backend().stream(); }

 protected:
  const GpuRun& run() const { return *run_; }
  /// Device memory of the calls in turn: each has what it needs behind what the one before has
  /// issued to the same stream.
  struct Growing {
    Storage block;
    std::vector<Storage> outgrown;  // kept: a recorded step, or the last call's slots, may use them
  };
  /// The block with at least this many floats.
  float* grown(Growing& memory, std::int64_t floats) const;

 private:
  const std::shared_ptr<const GpuRun> run_;
  const int rank_;
  GpuOperations* backend_ = nullptr;
  std::atomic<std::shared_ptr<const HostWaits>> waits_;  // of the backend, which may go
  // Used in turn: nobody records barrier i + 2 before all have left barrier i + 1, and so have
  // issued their waits for barrier i.
  std::vector<Event> barrier_events_;
  std::size_t barrier_turn_ = 0;
};

/// The transport "event": each rank reads its peers' statistics where they lie.
Transports make_event_transports(const RankLayout& layout, const Broadcast& broadcast);

/// The transport "host": statistics go through host memory, and from process to process. The
/// reference for the others.
Transports make_gpu_host_transports(const RankLayout& layout, const Broadcast& broadcast);

}  // namespace lockstep::gpu
