#pragma once
// A CUDA runtime without a GPU, for tests of what is issued to streams: device memory is host
// memory, every stream is a thread that does its work in order and takes its time, and nothing else
// orders work. Under ThreadSanitizer a missing event is a data race.

#include <functional>
#include <set>
#include <vector>

#include "kernels/device/stream.h"

namespace lockstep::fake_runtime {

/// Of a GPU. So few that blocks have several parts of the work, and few threads are emulated.
inline constexpr int kMultiprocessors = 2;

struct Machine {
  int devices = 1;
  bool peer_access = true;
  int upload_milliseconds = 0;    // of every copy from the host
  int download_milliseconds = 0;  // of every copy to it
  int compute_capability = 9;     // its major number
  bool links = true;              // NVLink between the GPUs
  int count_error = 0;            // of cudaGetDeviceCount, where it is not 0
  int driver = 13000;             // its version
};
/// Of the calls that follow. No stream exists.
void use(const Machine& machine);

/// Work as a kernel would do it.
void enqueue(gpu::Stream stream, std::function<void()> work);

/// What every pair of events is apart from now on.
void set_milliseconds(float milliseconds);

/// Devices that have been chosen since `use`, by any thread: a process has memory of the driver's
/// on each of them.
std::set<int> chosen_devices();

/// Copies between memory of different devices since `use`.
int peer_copies();
/// Copies to the host since `use` that do not name their kind, as the device's memory to pinned
/// memory.
int copies_to_pinned();

/// What the graph that was instantiated last, since `use`, consists of.
struct GraphNodes {
  int kernels = 0, copies = 0, fills = 0, empty = 0;

  bool operator==(const GraphNodes&) const = default;
};
GraphNodes last_graph();
/// Its edges from a node of one device to that of another.
int edges_between_devices_of_last_graph();

/// A host's wait for a copy to pinned memory, by an event that was recorded right behind the copy.
struct ReadbackWait {
  int copy = 0;    // the how manieth of these copies it waited for
  int issued = 0;  // how many had been issued by then
  bool operator==(const ReadbackWait&) const = default;
};
/// Since `use`, in their order.
std::vector<ReadbackWait> readback_waits();

/// How often the host has had to wait for a device: for an event that was not reached, or for a
/// stream that had work left.
struct HostStalls {
  int all = 0;
  int spinning = 0;  // of them by a thread that keeps its core busy
};
/// Since `use`, or since the last call.
HostStalls take_host_stalls();

/// How often streams were given a wait for an event of another one, since `use` or the last call.
int take_stream_waits();
/// How often this one was, ever.
int waits_given_to(gpu::Stream stream);

}  // namespace lockstep::fake_runtime
