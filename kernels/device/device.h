#pragma once
// GPUs and the objects of the CUDA runtime that have an owner: streams, events, pinned memory.
// Every object belongs to the device it was made for, whatever the calling thread's current device
// is. Only the runtime is used, never libcuda: a build with CUDA starts on a machine without a
// driver.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/stream.h"

struct CUevent_st;

namespace lockstep::gpu {

/// GPUs that answer; 0 without a driver, with one that is too old, or without a GPU.
int device_count();
/// Why none answers though a driver is here, and what to do; empty: there is none, or no GPU.
std::string why_no_device();

struct DeviceDescription {
  std::string name;
  std::size_t bytes = 0;     // of memory
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int driver = 0, runtime = 0;  // versions, 1000 * major + 10 * minor
};
/// REQUIRES: the device is there (throws Error otherwise).
DeviceDescription describe_device(int ordinal);
/// "NVIDIA H100 (79.1 GiB, sm_90, 132 multiprocessors, driver 13.0, runtime 13.0)".
std::string to_string(const DeviceDescription& device);
/// "13.0" of 13000, as drivers and runtimes say their versions.
std::string version_text(int version);

/// Whether the first device's kernels may read and write the second one's memory.
class PeerAccess {
 public:
  /// Enables it both ways between all of `ordinals` (repetitions count once), wherever the machine
  /// can.
  explicit PeerAccess(std::span<const int> ordinals);

  bool between(int device, int peer) const;
  /// Between every two of `ordinals`, both ways.
  bool between_all(std::span<const int> ordinals) const;

 private:
  std::vector<std::pair<int, int>> granted_;  // (device, peer)
};

/// Whether two GPUs with peer access have a link of their own (NVLink), and not only PCIe: such a
/// link alone does all atomic operations.
bool have_link(int device, int peer);

/// Makes a device the thread's current one until another one is made so. Nobody goes back to the
/// one before: a thread that has chosen none is on device 0, and to choose it puts the driver's
/// memory for this process there, on a GPU that the run may not use and that may be full.
void make_current(int ordinal);

struct ReleaseStream {
  void operator()(CUstream_st* stream) const;
};
struct ReleaseEvent {
  void operator()(CUevent_st* event) const;
};
struct ReleasePinned {
  void operator()(void* memory) const;
};

/// A stream that does not wait for the null stream, nor it for this one.
class StreamOwner {
 public:
  explicit StreamOwner(int ordinal);
  Stream get() const { return stream_.get(); }

 private:
  std::unique_ptr<CUstream_st, ReleaseStream> stream_;
};

/// A point in a stream, for other streams and hosts to wait for. Before the first `record` there is
/// nothing to wait for.
class Event {
 public:
  /// For streams to wait for; for hosts, which sleep meanwhile; for the time between two.
  enum class Kind { kOrder, kHost, kTime };

  explicit Event(int ordinal, Kind kind = Kind::kOrder);

  /// What `stream` has been given until now. REQUIRES: a stream of this event's device.
  void record(Stream stream);
  /// `stream`, of any device, goes on when what was recorded is done.
  void make_wait(Stream stream) const;
  /// The host waits for what was recorded: asleep, where the event is of Kind::kHost, and else with
  /// its core busy.
  void synchronize() const;
  /// From this event to `end`, both done. REQUIRES: both are of Kind::kTime.
  float milliseconds_until(const Event& end) const;

 private:
  std::unique_ptr<CUevent_st, ReleaseEvent> event_;
};

/// Host memory that every GPU copies from and to without the driver's staging, and reads and writes
/// where it lies.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  /// `ordinal`: a device that uses it.
  PinnedMemory(int ordinal, std::size_t bytes);

  void* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::unique_ptr<void, ReleasePinned> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep::gpu
