#include "cuda/fake_runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cuda/fake_capture.h"
#include "kernels/dispatch.h"

namespace lockstep::fake_runtime {
namespace {

/// A point in a stream, as one cudaEventRecord makes it.
struct Point {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;

  void reach() {
    {
      const std::lock_guard lock(mutex);
      reached = true;
    }
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return reached; });
  }
  bool is_reached() {
    const std::lock_guard lock(mutex);
    return reached;
  }
};

Machine machine;
std::atomic<float> milliseconds_between_events = 1;
std::atomic<int> copies_between_peers{0}, copies_to_pinned_memory{0};
std::atomic<int> stalls{0}, spinning_stalls{0}, stream_waits{0};
GraphNodes nodes_of_last_graph;
int edges_of_last_graph = 0;
std::atomic<unsigned> streams_made{0};
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
std::mutex memory_mutex;
std::map<const void*, std::pair<std::size_t, int>> memory;  // address: (bytes, device)
constexpr int kPinned = -2;                                 // instead of a device
std::set<std::pair<int, int>> enabled;                      // under memory_mutex
std::set<int> chosen;                                       // under memory_mutex
std::mutex streams_mutex;
std::set<CUstream_st*> streams;
std::mutex readbacks_mutex;
int readbacks_issued = 0;
std::vector<ReadbackWait> readbacks_waited_for;

/// What most calls of a thread that has chosen no device do: device 0 is its own then.
void choose_present() {
  const std::lock_guard lock(memory_mutex);
  chosen.insert(current_device);
}

cudaError_t fail(cudaError_t error) {
  last_error = error;
  return error;
}

void note_stall(bool spins) {
  ++stalls;
  if (spins) ++spinning_stalls;
}

int device_of(const void* address) {
  const std::lock_guard lock(memory_mutex);
  auto next = memory.upper_bound(address);
  if (next == memory.begin()) return -1;
  --next;
  const auto* begin = static_cast<const char*>(next->first);
  return static_cast<const char*>(address) < begin + next->second.first ? next->second.second : -1;
}

}  // namespace
}  // namespace lockstep::fake_runtime

using lockstep::fake_runtime::Capture;
using lockstep::fake_runtime::Kind;
using lockstep::fake_runtime::Point;

struct CUgraph_st {
  std::vector<lockstep::fake_runtime::Node> nodes;
};
struct CUgraphExec_st {
  std::vector<lockstep::fake_runtime::Node> nodes;
  std::mt19937 random{1};
};

/// Whether it makes a stream wait for other memory or another stream.
bool holds_up(Kind kind) { return kind == Kind::kCopy || kind == Kind::kWait; }

struct CUstream_st {
  explicit CUstream_st(int owner) : device(owner), thread([this] { work(); }) {}
  ~CUstream_st() {
    capture = nullptr;
    enqueue(nullptr);
    thread.join();
  }

  void enqueue(std::function<void()> task, Kind kind = Kind::kKernel) {
    ends_with_download = false;
    ends_with_kernel = kind == Kind::kKernel || (!holds_up(kind) && ends_with_kernel);
    if (capture != nullptr) {
      const std::size_t node = capture->add({std::move(task), kind, tail, device});
      tail.assign(1, node);
      return;
    }
    {
      const std::lock_guard lock(mutex);
      tasks.push_back(std::move(task));
    }
    changed.notify_all();
  }

  void work() {
    std::mt19937 random(lockstep::fake_runtime::streams_made++);
    while (true) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return !tasks.empty(); });
        task = std::move(tasks.front());
        tasks.pop_front();
        busy = true;
      }
      if (!task) return;
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      task();
      const std::lock_guard lock(mutex);
      busy = false;
    }
  }

  bool is_idle() {
    const std::lock_guard lock(mutex);
    return tasks.empty() && !busy;
  }

  std::shared_ptr<Point> record() {
    auto point = std::make_shared<Point>();
    enqueue([point] { point->reach(); }, Kind::kRecord);
    return point;
  }

  const int device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  bool busy = false;  // with a task that was one of them
  std::atomic<int> waits{0};
  bool ends_with_download = false;
  bool ends_with_kernel = true;      // records of events aside; or has had nothing
  std::shared_ptr<Capture> capture;  // null: tasks are done
  std::vector<std::size_t> tail;     // of the capture: what the next task follows
  std::thread thread;
};

struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  CUstream_st* stream = nullptr;  // it was recorded in last
  int readback = 0;  // number of the copy to the host that was recorded; 0: something else
  std::mutex mutex;
  std::shared_ptr<Point> point;
  std::shared_ptr<Capture> capture;  // instead of a point
  std::vector<std::size_t> tail;

  std::shared_ptr<Point> recorded() {
    const std::lock_guard lock(mutex);
    return point;
  }
};

namespace lockstep::fake_runtime {

void set_milliseconds(float milliseconds) { milliseconds_between_events = milliseconds; }

void use(const Machine& next) {
  machine = next;
  copies_between_peers = copies_to_pinned_memory = 0;
  take_host_stalls();
  take_stream_waits();
  nodes_of_last_graph = {};
  {
    const std::lock_guard lock(readbacks_mutex);
    readbacks_issued = 0;
    readbacks_waited_for.clear();
  }
  const std::lock_guard lock(memory_mutex);
  enabled.clear();
  chosen.clear();
}

void enqueue(gpu::Stream stream, std::function<void()> work) { stream->enqueue(std::move(work)); }

namespace {

// The emulation runs one kernel at a time.
void enqueue_kernel(gpu::Stream stream, std::function<void()> work, bool early) {
  if (early && !stream->ends_with_kernel) {
    throw std::logic_error("a kernel may start early, and in front of it is none");
  }
  stream->enqueue([work = std::move(work)] {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    work();
  });
}

const bool kernels_wait_their_turn = (emulation::dispatch() = enqueue_kernel, true);

/// A copy that does not say from where to where: its memory is known.
cudaError_t copy_anywhere(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  const int target = device_of(to), source = device_of(from);
  if (target == -1 || source == -1) return fail(cudaErrorInvalidValue);
  if (target == kPinned) ++copies_to_pinned_memory;
  if (target >= 0 && source >= 0 && target != source) ++copies_between_peers;
  stream->enqueue([=] { std::memcpy(to, from, bytes); }, Kind::kCopy);
  return cudaSuccess;
}

/// An operation that a capture does not allow.
cudaError_t spoil(cudaStream_t stream) {
  stream->capture->valid = false;
  return fail(cudaErrorStreamCaptureUnsupported);
}

}  // namespace

std::set<int> chosen_devices() {
  const std::lock_guard lock(memory_mutex);
  return chosen;
}
int peer_copies() { return copies_between_peers; }
int copies_to_pinned() { return copies_to_pinned_memory; }
GraphNodes last_graph() { return nodes_of_last_graph; }
int edges_between_devices_of_last_graph() { return edges_of_last_graph; }

HostStalls take_host_stalls() { return {stalls.exchange(0), spinning_stalls.exchange(0)}; }
int take_stream_waits() { return stream_waits.exchange(0); }
int waits_given_to(gpu::Stream stream) { return stream->waits; }

std::vector<ReadbackWait> readback_waits() {
  const std::lock_guard lock(readbacks_mutex);
  return readbacks_waited_for;
}

}  // namespace lockstep::fake_runtime

using namespace lockstep::fake_runtime;

// NOLINTBEGIN(readability-identifier-naming): the runtime's names
extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake runtime"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorFake"; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = machine.devices;
  if (machine.count_error != 0) return fail(static_cast<cudaError_t>(machine.count_error));
  return machine.devices == 0 ? fail(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= machine.devices) return fail(cudaErrorInvalidDevice);
  current_device = device;
  const std::lock_guard lock(memory_mutex);
  chosen.insert(device);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "Fake");
  properties->totalGlobalMem = std::size_t{80} << 30;
  properties->major = machine.compute_capability;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = kMultiprocessors;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = machine.driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  std::vector<std::shared_ptr<Point>> ends;
  {
    const std::lock_guard lock(streams_mutex);
    for (CUstream_st* stream : streams) {
      if (stream->device != current_device) continue;
      if (stream->capture != nullptr) return spoil(stream);
      ends.push_back(stream->record());
    }
  }
  for (const auto& end : ends) end->wait();
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* possible, int device, int peer) {
  *possible = machine.peer_access && device != peer ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int, int) {
  if (attribute != cudaDevP2PAttrNativeAtomicSupported) return fail(cudaErrorInvalidValue);
  *value = machine.links ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  if (flags != 0) return fail(cudaErrorInvalidValue);
  if (!machine.peer_access || peer == current_device) return fail(cudaErrorInvalidDevice);
  const std::lock_guard lock(memory_mutex);
  if (!enabled.emplace(current_device, peer).second) {
    return fail(cudaErrorPeerAccessAlreadyEnabled);
  }
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{80} << 30;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  if (bytes > std::size_t{1} << 40) return fail(cudaErrorMemoryAllocation);
  *data = std::aligned_alloc(256, bytes);
  std::memset(*data, 0xff, bytes);  // NaN
  const std::lock_guard lock(memory_mutex);
  memory[*data] = {bytes, current_device};
  return cudaSuccess;
}
// Whatever it would wait for, a capture cannot hold.
cudaError_t cudaFree(void* data) {
  {
    const int device = device_of(data);
    const std::lock_guard lock(streams_mutex);
    for (CUstream_st* stream : streams) {
      if (stream->device == device && stream->capture != nullptr) return spoil(stream);
    }
  }
  {
    const std::lock_guard lock(memory_mutex);
    memory.erase(data);
  }
  std::free(data);
  return cudaSuccess;
}
// Pinned memory that is portable and mapped is every GPU's.
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned flags) {
  if (flags != (cudaHostAllocPortable | cudaHostAllocMapped)) return fail(cudaErrorInvalidValue);
  *data = std::malloc(bytes);
  const std::lock_guard lock(memory_mutex);
  memory[*data] = {bytes, kPinned};
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  choose_present();
  {
    const std::lock_guard lock(memory_mutex);
    memory.erase(data);
  }
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  attributes->device = device_of(address);
  attributes->type = attributes->device < 0 ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  stream->enqueue([=] { std::memset(data, value, bytes); }, Kind::kFill);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind == cudaMemcpyDefault) return copy_anywhere(to, from, bytes, stream);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (to_device != (device_of(to) == stream->device) ||
      from_device != (device_of(from) == stream->device)) {
    return fail(cudaErrorInvalidValue);
  }
  // The host would take part in a copy of memory that is not pinned.
  const bool pinned = device_of(to_device ? from : to) == kPinned;
  if (stream->capture != nullptr && kind != cudaMemcpyDeviceToDevice && !pinned) {
    return spoil(stream);
  }
  const std::chrono::milliseconds delay(kind == cudaMemcpyHostToDevice ? machine.upload_milliseconds
                                        : kind == cudaMemcpyDeviceToHost
                                            ? machine.download_milliseconds
                                            : 0);
  const auto copy = [=] {
    std::this_thread::sleep_for(delay);
    std::memcpy(to, from, bytes);
  };
  stream->enqueue(copy, Kind::kCopy);
  // What is downloaded to other memory has come when the call returns.
  stream->ends_with_download = kind == cudaMemcpyDeviceToHost && pinned;
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                std::size_t bytes, cudaStream_t stream) {
  if (device_of(to) != to_device || device_of(from) != from_device) {
    return fail(cudaErrorInvalidValue);
  }
  if (stream->capture != nullptr) return spoil(stream);  // nobody says that it can be captured
  ++copies_between_peers;
  stream->enqueue([=] { std::memcpy(to, from, bytes); }, Kind::kCopy);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking) return fail(cudaErrorInvalidValue);
  *stream = new CUstream_st(current_device);
  const std::lock_guard lock(streams_mutex);
  streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  choose_present();
  {
    const std::lock_guard lock(streams_mutex);
    streams.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  choose_present();
  if (stream->capture != nullptr) return spoil(stream);
  if (!stream->is_idle()) note_stall(true);
  stream->record()->wait();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(event->mutex);
  if (event->stream != nullptr && event->stream != stream) {
    ++stream_waits;
    ++stream->waits;
  }
  if (event->capture != nullptr) {
    if (event->capture->ended) return fail(cudaErrorCapturedEvent);
    if (stream->capture == nullptr) {
      stream->capture = event->capture;
      stream->tail.clear();
    }
    if (stream->capture != event->capture) return fail(cudaErrorStreamCaptureMerge);
    stream->tail.insert(stream->tail.end(), event->tail.begin(), event->tail.end());
    stream->ends_with_kernel = false;
    return cudaSuccess;
  }
  if (stream->capture != nullptr) {
    stream->capture->valid = false;
    return fail(cudaErrorStreamCaptureIsolation);
  }
  if (const auto point = event->point) stream->enqueue([point] { point->wait(); }, Kind::kWait);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->flags = flags;
  (*event)->device = current_device;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  choose_present();
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->device != stream->device) return fail(cudaErrorInvalidResourceHandle);
  {
    const std::lock_guard lock(readbacks_mutex);
    event->readback = stream->ends_with_download ? ++readbacks_issued : 0;
  }
  const auto point = stream->capture == nullptr ? stream->record() : nullptr;
  const std::lock_guard lock(event->mutex);
  event->stream = stream;
  event->point = point;
  event->capture = stream->capture;
  event->tail = stream->tail;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  choose_present();
  if (event->capture != nullptr) return fail(cudaErrorCapturedEvent);
  if (event->readback > 0) {
    const std::lock_guard lock(readbacks_mutex);
    readbacks_waited_for.push_back({event->readback, readbacks_issued});
  }
  if (const auto point = event->recorded()) {
    if (!point->is_reached()) note_stall((event->flags & cudaEventBlockingSync) == 0);
    point->wait();
  }
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (mode != cudaStreamCaptureModeRelaxed) return fail(cudaErrorNotSupported);
  if (stream->capture != nullptr) return fail(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>(stream);
  stream->tail.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status =
      stream->capture == nullptr ? cudaStreamCaptureStatusNone : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
// The graph is the stream's, for which alone a node is added; nodes count from 1.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t* graph,
                                     const cudaGraphNode_t** before, const cudaGraphEdgeData**,
                                     std::size_t* count) {
  if (stream->capture == nullptr) return fail(cudaErrorIllegalState);
  *status = cudaStreamCaptureStatusActive;
  *graph = reinterpret_cast<cudaGraph_t>(stream);
  *before = nullptr;
  *count = stream->tail.size();
  return cudaSuccess;
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t*,
                                  std::size_t count) {
  auto* const stream = reinterpret_cast<cudaStream_t>(graph);
  if (count != stream->tail.size()) return fail(cudaErrorInvalidValue);
  const std::size_t added =
      stream->capture->add({[] {}, Kind::kEmpty, stream->tail, stream->device});
  *node = reinterpret_cast<cudaGraphNode_t>(added + 1);
  return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                const cudaGraphEdgeData*, std::size_t count,
                                                unsigned flags) {
  if (count != 1 || flags != cudaStreamSetCaptureDependencies) return fail(cudaErrorInvalidValue);
  stream->tail.assign(1, reinterpret_cast<std::size_t>(nodes[0]) - 1);
  stream->ends_with_kernel = false;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr || capture->origin != stream) return fail(cudaErrorIllegalState);
  const bool joined = capture->all_lead_to(stream->tail);
  capture->ended = true;
  const std::lock_guard lock(streams_mutex);
  for (CUstream_st* member : streams) {
    if (member->capture == capture) member->capture = nullptr;
  }
  if (!capture->valid) return fail(cudaErrorStreamCaptureInvalidated);
  if (!joined) return fail(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{capture->nodes};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  *executable = new CUgraphExec_st{graph->nodes, {}};
  nodes_of_last_graph = {};
  for (const auto& node : graph->nodes) {
    ++(node.kind == Kind::kKernel  ? nodes_of_last_graph.kernels
       : node.kind == Kind::kCopy  ? nodes_of_last_graph.copies
       : node.kind == Kind::kEmpty ? nodes_of_last_graph.empty
                                   : nodes_of_last_graph.fills);
  }
  edges_of_last_graph = edges_between_devices(graph->nodes);
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  stream->enqueue([graph] { run_nodes(graph->nodes, graph->random); });
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = milliseconds_between_events;
  return cudaSuccess;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
