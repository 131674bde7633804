#include "cuda/fake_runtime.h"

#include <cuda_runtime_api.h>

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
#include <thread>
#include <vector>

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
};

Machine machine;
std::atomic<int> copies_between_peers{0};
std::atomic<unsigned> streams_made{0};
thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
std::mutex memory_mutex;
std::map<const void*, std::pair<std::size_t, int>> memory;  // address: (bytes, device)
std::set<std::pair<int, int>> enabled;                      // under memory_mutex
std::mutex streams_mutex;
std::set<CUstream_st*> streams;

cudaError_t fail(cudaError_t error) {
  last_error = error;
  return error;
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

using lockstep::fake_runtime::Point;

struct CUstream_st {
  explicit CUstream_st(int owner) : device(owner), thread([this] { work(); }) {}
  ~CUstream_st() {
    enqueue(nullptr);
    thread.join();
  }

  void enqueue(std::function<void()> task) {
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
      }
      if (!task) return;
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      task();
    }
  }

  std::shared_ptr<Point> record() {
    auto point = std::make_shared<Point>();
    enqueue([point] { point->reach(); });
    return point;
  }

  const int device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  std::thread thread;
};

struct CUevent_st {
  int device = 0;
  std::mutex mutex;
  std::shared_ptr<Point> point;

  std::shared_ptr<Point> recorded() {
    const std::lock_guard lock(mutex);
    return point;
  }
};

namespace lockstep::fake_runtime {

void use(const Machine& next) {
  machine = next;
  copies_between_peers = 0;
  const std::lock_guard lock(memory_mutex);
  enabled.clear();
}

void enqueue(gpu::Stream stream, std::function<void()> work) { stream->enqueue(std::move(work)); }

int peer_copies() { return copies_between_peers; }

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
  return machine.devices == 0 ? fail(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= machine.devices) return fail(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "Fake");
  properties->totalGlobalMem = std::size_t{80} << 30;
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 132;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
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
      if (stream->device == current_device) ends.push_back(stream->record());
    }
  }
  for (const auto& end : ends) end->wait();
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* possible, int device, int peer) {
  *possible = machine.peer_access && device != peer ? 1 : 0;
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

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  if (bytes > std::size_t{1} << 40) return fail(cudaErrorMemoryAllocation);
  *data = std::aligned_alloc(256, bytes);
  std::memset(*data, 0xff, bytes);  // NaN
  const std::lock_guard lock(memory_mutex);
  memory[*data] = {bytes, current_device};
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  {
    const std::lock_guard lock(memory_mutex);
    memory.erase(data);
  }
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  *data = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
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
  stream->enqueue([=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (to_device != (device_of(to) == stream->device) ||
      from_device != (device_of(from) == stream->device)) {
    return fail(cudaErrorInvalidValue);
  }
  stream->enqueue([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                std::size_t bytes, cudaStream_t stream) {
  if (device_of(to) != to_device || device_of(from) != from_device) {
    return fail(cudaErrorInvalidValue);
  }
  ++copies_between_peers;
  stream->enqueue([=] { std::memcpy(to, from, bytes); });
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
  {
    const std::lock_guard lock(streams_mutex);
    streams.erase(stream);
  }
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream->record()->wait();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto point = event->recorded()) stream->enqueue([point] { point->wait(); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  (*event)->device = current_device;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event->device != stream->device) return fail(cudaErrorInvalidResourceHandle);
  const auto point = stream->record();
  const std::lock_guard lock(event->mutex);
  event->point = point;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto point = event->recorded()) point->wait();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
