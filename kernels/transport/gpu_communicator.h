#pragma once
// What the transports between GPUs have in common: a rank's stream, and the barrier that makes all
// ranks' streams wait for each other. Data never waits on the host there: the host rendezvous only
// makes sure that events are recorded before they are waited for, and streams do the waiting. Every
// wait is issued after what it waits for, so no order of streams can make them wait in a circle.

#include <array>
#include <memory>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/operations/gpu_operations.h"
#include "lockstep/core/device.h"
#include "sync/rendezvous.h"

namespace lockstep::gpu {

/// Where the ranks of a run are.
struct GpuRun {
  explicit GpuRun(std::span<const Device> devices);

  const std::vector<int> ordinals;  // [rank]
  const PeerAccess peers;
};

/// One rank's end of a transport between GPUs.
class GpuEnd : public RendezvousEnd {
 public:
  GpuEnd(RendezvousGroup& group, int rank, std::shared_ptr<const GpuRun> run)
      : RendezvousEnd(group, rank), run_(std::move(run)) {}

  void attach(Backend& backend) override;

 protected:
  void before_barrier() override;
  void after_barrier() override;

  const GpuRun& run() const { return *run_; }
  int ordinal() const { return run_->ordinals[static_cast<std::size_t>(rank())]; }
  /// REQUIRES: attached (throws Error otherwise).
  GpuOperations& backend() const;
  Stream stream() const { return backend().stream(); }
  /// Two blocks of device memory that calls use in turn.
  struct TwoBlocks {
    std::array<Storage, 2> blocks;
    std::vector<Storage> outgrown;  // kept: a recorded step, or the last call's slots, may use them
  };
  /// Block `turn` with at least this many floats. Both grow together, in the first step: which call
  /// takes which block may change from step to step, and a step that is recorded allocates nothing.
  float* grown(TwoBlocks& memory, std::size_t turn, std::int64_t floats) const;

 private:
  const std::shared_ptr<const GpuRun> run_;
  GpuOperations* backend_ = nullptr;
  // Used in turn: nobody records barrier i + 2 before all have left barrier i + 1, and so have
  // issued their waits for barrier i.
  std::vector<Event> barrier_events_;
  std::size_t barrier_turn_ = 0;
};

/// The transport "event": each rank reads its peers' statistics where they lie.
std::unique_ptr<CommunicatorGroup> make_event_communicators(std::span<const Device> devices,
                                                            const CommunicatorOptions& options);

/// The transport "host": statistics go through host memory and are merged as those of CPU replicas.
/// The reference for the others.
std::unique_ptr<CommunicatorGroup> make_gpu_host_communicators(std::span<const Device> devices,
                                                               const CommunicatorOptions& options);

}  // namespace lockstep::gpu
