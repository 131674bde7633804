#pragma once
// Replicas of the fake runtime that exchange statistics: what a consumer reads in its stream must
// be what every peer wrote in the same call, although statistics are overwritten as soon as
// Communicator::all_show allows it.

#include <atomic>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "kernels/operations/gpu_operations.h"
#include "lockstep/sync/sync_group.h"

namespace lockstep::gpu {

/// Memory and a stream; no operations. What is issued to the stream may use `values` to its end.
class StreamBackend final : public GpuOperations {
 public:
  explicit StreamBackend(const Device& device);

  const Device& device() const override { return device_; }
  Storage allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  std::size_t allocated_bytes() const override { return memory_.allocated_bytes(); }
  std::size_t peak_allocated_bytes() const override { return memory_.peak_allocated_bytes(); }
  void upload(const Tensor&, const void*) override {}
  void download(void*, const Tensor&) override {}
  void synchronize() override;
  float* values() const { return static_cast<float*>(values_.data()); }  // [kValues]
  static constexpr std::int64_t kValues = 1200;

  ConvolutionOperations& convolutions() override { throw std::logic_error("no convolutions here"); }
  OptimizerOperations& optimizer() override { throw std::logic_error("no optimizer here"); }

 private:
  Storage values_;  // goes after the stream
  const Device device_;
  StreamOwner stream_;
  DeviceMemory memory_;
};

struct Run {
  int ranks = 4, gpus = 2, sync_group = 0;
  bool peer_access = true;
  RankPartition sets = {};  // instead of sync_group; exchanges of all ranks come between theirs
};

/// The replicas of a run, spread evenly over the GPUs in turn.
std::vector<Device> devices_of(const Run& run);

/// Replicas whose backends outlive what their threads have issued.
class Replicas {
 public:
  explicit Replicas(const std::vector<Device>& devices)
      : devices_(devices), backends_(devices.size()) {}

  /// Makes the backend of a rank and attaches its end. On the rank's thread.
  StreamBackend& attach(Communicator& end);
  StreamBackend& at(int rank) { return *backends_[static_cast<std::size_t>(rank)]; }
  void synchronize();

 private:
  const std::vector<Device> devices_;
  std::vector<std::unique_ptr<StreamBackend>> backends_;  // [rank]
};

/// What rank `own` hands in in a call, at the start of its backend's values, and a check of what it
/// gets: a slot per rank of its process group.
class StatisticsOfRank {
 public:
  StatisticsOfRank(Communicator& own, StreamBackend& backend, const Run& run);

  /// Exchanges; counts in `wrong` what the replica's "kernels" find wrong.
  void exchange(int call, std::int64_t channels, std::atomic<int>& wrong);
  /// After a barrier: the memory of the last call may be written again at once.
  void reuse_memory() {
    for (Joined& joined : joined_) joined.half = 1 - joined.half;
  }

 private:
  /// A partition, and the two parts of the memory that its calls use in turn.
  struct Joined {
    std::vector<int> ranks;  // this rank's set
    int number = 0;
    std::int64_t half = 0;  // for the next call
  };

  void join(const RankPartition& sets);

  Communicator& own_;
  StreamBackend& backend_;
  std::vector<Joined> joined_;  // used in turn
};

/// Ranks of a new run make kExchanges exchanges, and barriers; checks that all they read was right.
inline constexpr int kExchanges = 60;
void check_exchanges(TransportKind transport, const Run& run);

}  // namespace lockstep::gpu
