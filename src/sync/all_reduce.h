#pragma once
// Sums gradients over all ranks: the ranks meet on the host, then the devices do the sum.
// Which one a run has depends on its devices only, not on the transport of BatchNorm's statistics.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/backend/backend.h"
#include "sync/transport.h"

namespace lockstep {

class Communicator;

/// One rank's device in it. Used by the rank's thread, except `abort`; owned by the AllReduce.
class SumTransport {
 public:
  virtual ~SumTransport() = default;

  /// As Communicator::attach. May wait for the other ranks where nothing ends its wait.
  /// REQUIRES: all ranks have said on the host that they come.
  virtual void attach(Backend&) {}

  /// Begins to sum data[0, count) over all ranks, where it lies in each, behind what the rank's
  /// stream has been given until now; data[r]: of the ranks of this process. All ranks get the same
  /// bits. REQUIRES: all ranks make this call next, with the same data and count.
  virtual void start(std::span<float* const> data, std::int64_t count) = 0;
  /// What the rank's stream is given from now on follows all sums started.
  virtual void finish() {}
  /// Whether the sums may be read after `finish`. False: `start` returns when the rank has done its
  /// own share of the sum for all, and the ranks have to meet before it is read.
  virtual bool on_streams() const { return false; }

  /// Ends what is under way, when the run has failed; `start` and `finish` throw from now on. Safe
  /// from any thread.
  virtual void abort() {}
};

using SumTransports = std::vector<std::unique_ptr<SumTransport>>;  // [rank]

/// One rank's sums. Owned by the SyncGroup, used by the rank's thread.
class AllReduce final {
 public:
  /// `own` and `transport` outlive the object.
  AllReduce(Communicator& own, SumTransport& transport);

  /// Begins to sum data[0, count), device memory of this rank, in place over all ranks, behind what
  /// the rank's stream has been given until now; on a GPU beside what it is given next. All ranks
  /// get the same bits. A meeting like Communicator::all_show: all ranks make the same calls in the
  /// same order, and the one that does not is named.
  void start(float* data, std::int64_t count);
  /// What the rank's stream is given from now on follows all sums started. Until then their data is
  /// neither read nor written. Once per step, also when nothing was started.
  void finish();

  /// Seconds that the rank's thread has spent in `start` and `finish`, waiting and working.
  double seconds() const { return seconds_; }

 private:
  Communicator& own_;
  SumTransport& transport_;
  std::vector<float*> data_;    // [rank] of the present call
  int started_ = 0;             // since the last `finish`
  std::int64_t summed_at_ = 0;  // the meetings of all ranks that the last sum had behind it
  double seconds_ = 0;
};

/// Makes those of the ranks of this process. Throws ConfigError where the devices have none.
SumTransports make_sum_transports(const RankLayout& layout, const Broadcast& broadcast);

/// How GPUs get at each other's memory: not at all, over PCIe, by links of their own (NVLink).
enum class PeerLink : std::uint8_t { kNone, kBus, kLink };

/// What a build with NCCL has between GPUs.
struct GpuAllReduce {
  /// Throws ConfigError unless every device is a GPU of its own.
  SumTransports (*make)(const RankLayout& layout, const Broadcast& broadcast) = nullptr;
  /// Returns the slowest link between any two of them.
  PeerLink (*link_between)(std::span<const Device> devices) = nullptr;
};
/// Called by register_cuda() (lockstep/cuda.h).
void provide_gpu_all_reduce(const GpuAllReduce& all_reduce);
/// Null in a build without.
const GpuAllReduce* gpu_all_reduce();

}  // namespace lockstep
