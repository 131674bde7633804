#pragma once
// The device's part of Communicator::start_all_reduce: how numbers are summed once every rank has
// said that it is in the same call. Which one a run has depends on its devices only, not on the
// transport of BatchNorm's statistics.

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/backend/backend.h"

namespace lockstep {

/// One rank's part. Used by the rank's thread, except `abort`; owned by the communicator group.
class AllReduce {
 public:
  virtual ~AllReduce() = default;

  /// As Communicator::attach. May wait for the other ranks where nothing ends its wait.
  /// REQUIRES: all ranks have said on the host that they come.
  virtual void attach(Backend& backend) { static_cast<void>(backend); }

  /// Begins to sum data[0, count), device memory of this rank, in place over all ranks, behind what
  /// the rank's stream has been given until now. All ranks get the same bits.
  /// REQUIRES: all ranks make this call next, with the same count.
  virtual void start(float* data, std::int64_t count) = 0;
  /// What the rank's stream is given from now on follows all sums started.
  virtual void finish() = 0;

  /// Ends what is under way; `start` and `finish` throw from now on. Safe from any thread.
  virtual void abort(const std::exception_ptr& cause) = 0;
};

using AllReduces = std::vector<std::unique_ptr<AllReduce>>;  // [rank]

/// Throws ConfigError where the devices have none.
AllReduces make_all_reduces(std::span<const Device> devices);

/// What a build with NCCL has between GPUs.
struct GpuAllReduce {
  /// Throws ConfigError unless every device is a GPU of its own.
  AllReduces (*make)(std::span<const Device> devices) = nullptr;
  /// Whether every GPU reads and writes the memory of every other one.
  bool (*reach_each_other)(std::span<const Device> devices) = nullptr;
};
/// Called before `main` by such a build.
void provide_gpu_all_reduce(const GpuAllReduce& all_reduce);
/// Null in a build without.
const GpuAllReduce* gpu_all_reduce();

}  // namespace lockstep
