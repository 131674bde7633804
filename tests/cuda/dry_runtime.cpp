#include "cuda/dry_runtime.h"

#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "kernels/dispatch.h"

namespace lockstep::dry {
namespace {

std::mutex mutex;
Counts counted;  // outside of captures
Nodes captured;  // of the capture that is open, or was last
Nodes instantiated;
bool capturing = false;
int devices = 1;
bool peers = true;
thread_local int current_device = 0;

/// Counts where it happens: at once, or as a node.
template <typename Count>
void note(const Count& count) {
  const std::lock_guard lock(mutex);
  count(counted, capturing);
}

}  // namespace
}  // namespace lockstep::dry

struct CUstream_st {
  const int device = lockstep::dry::current_device;
  std::map<int, int> tail = {};  // of the capture, what its next node follows: node, device
};
struct CUevent_st {
  std::map<int, int> tail = {};
};

namespace lockstep::dry {
namespace {

std::vector<CUstream_st*> streams;  // under mutex

/// In a capture: the stream's next node is there.
void follow(CUstream_st* stream) {
  static int nodes = 0;
  const std::lock_guard lock(mutex);
  if (!capturing) return;
  for (const auto& [node, device] : stream->tail) {
    captured.edges_between_devices += device == stream->device ? 0 : 1;
  }
  stream->tail = {{++nodes, stream->device}};
}

void note_kernel(gpu::Stream stream, const std::function<void()>&) {
  note([](Counts& now, bool in_graph) { ++(in_graph ? captured.kernels : now.kernels); });
  follow(stream);
}
const bool kernels_are_counted = (
    emulation::dispatch() = [](gpu::Stream stream, std::function<void()> work,
                               bool) { note_kernel(stream, work); },
    true);

std::map<const void*, std::size_t> pinned;  // begin: bytes, under mutex

bool is_pinned(const void* address) {
  auto next = pinned.upper_bound(address);
  if (next == pinned.begin()) return false;
  --next;
  return static_cast<const char*>(address) < static_cast<const char*>(next->first) + next->second;
}

void note_copy(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
               cudaStream_t stream) {
  follow(stream);
  const auto size = static_cast<std::int64_t>(bytes);
  note([&](Counts& now, bool in_graph) {
    if (in_graph) {
      ++captured.copies;
    } else if (kind == cudaMemcpyHostToDevice || (kind == cudaMemcpyDefault && is_pinned(from))) {
      ++now.uploads, now.uploaded_bytes += size;
    } else if (kind == cudaMemcpyDeviceToHost || (kind == cudaMemcpyDefault && is_pinned(to))) {
      ++now.downloads, now.downloaded_bytes += size;
    } else {
      ++now.copies, now.copied_bytes += size;
    }
  });
}

cudaError_t wait_of_host() {
  note([](Counts& now, bool) { ++now.host_waits; });
  return cudaSuccess;
}

}  // namespace

Counts counts() {
  const std::lock_guard lock(mutex);
  return counted;
}
Nodes last_graph() {
  const std::lock_guard lock(mutex);
  return instantiated;
}
void use(int count, bool peer_access) { devices = count, peers = peer_access; }

}  // namespace lockstep::dry

using namespace lockstep::dry;

// NOLINTBEGIN(readability-identifier-naming): the runtime's names
struct CUgraph_st {};
struct CUgraphExec_st {};

extern "C" {

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the dry runtime"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorDry"; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "Dry");
  properties->totalGlobalMem = std::size_t{139} << 30;
  properties->major = 9;
  properties->multiProcessorCount = 132;
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
cudaError_t cudaDeviceSynchronize() { return wait_of_host(); }
cudaError_t cudaDeviceCanAccessPeer(int* possible, int device, int peer) {
  *possible = peers && device != peer ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr, int, int) {
  *value = peers ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  attributes->type = cudaMemoryTypeDevice;
  attributes->devicePointer = const_cast<void*>(address);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{139} << 30;
  return cudaSuccess;
}
// Pages come when they are touched, which nothing does.
cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  *address = mmap(nullptr, bytes + 1, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *address == MAP_FAILED ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void*) { return cudaSuccess; }  // the program is short
cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  cudaMalloc(address, bytes);
  const std::lock_guard lock(mutex);
  pinned[*address] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void*) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  note_copy(to, from, bytes, kind, stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t stream) {
  note_copy(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t, const void* from, std::size_t,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  note_copy(to, from, width * height, kind, stream);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void*, int, std::size_t bytes, cudaStream_t stream) {
  follow(stream);
  note([&](Counts& now, bool in_graph) {
    if (in_graph) {
      ++captured.fills;
    } else {
      ++now.fills, now.filled_bytes += static_cast<std::int64_t>(bytes);
    }
  });
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::lock_guard lock(mutex);
  *stream = streams.emplace_back(new CUstream_st);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  std::erase(streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return wait_of_host(); }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  note([&](Counts& now, bool in_graph) {
    now.stream_waits += in_graph ? 0 : 1;
    if (in_graph) stream->tail.insert(event->tail.begin(), event->tail.end());
  });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  note([&](Counts& now, bool in_graph) {
    now.records += in_graph ? 0 : 1;
    event->tail = stream->tail;
  });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) { return wait_of_host(); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return wait_of_host(); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  const std::lock_guard lock(mutex);
  captured = {}, capturing = true;
  for (CUstream_st* stream : streams) stream->tail.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t* graph,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                     std::size_t*) {
  *graph = reinterpret_cast<cudaGraph_t>(stream);
  return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t*, cudaGraph_t graph, const cudaGraphNode_t*,
                                  std::size_t) {
  follow(reinterpret_cast<cudaStream_t>(graph));
  return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*,
                                                const cudaGraphEdgeData*, std::size_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  const std::lock_guard lock(mutex);
  capturing = false;
  *graph = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t, unsigned long long) {
  const std::lock_guard lock(mutex);
  instantiated = captured;
  *executable = new CUgraphExec_st;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
  note([](Counts& now, bool) { ++now.graph_launches; });
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
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// --- cuDNN: one engine for everything, channels-last ---

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
const char* cudnnGetErrorString(cudnnStatus_t) { return "an error of the dry cuDNN"; }
void cudnnGetLastErrorString(char* text, std::size_t size) {
  if (size > 0) text[0] = '\0';
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t,
                                           cudnnBackendDescriptor_t* descriptor) {
  *descriptor = std::malloc(1);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  std::free(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                       cudnnBackendAttributeType_t, std::int64_t, const void*) {
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, std::int64_t,
                                       std::int64_t* count, void* values) {
  *count = 0;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE) *count = 1;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE || name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX) {
    *count = 1;
    std::memset(values, 0, sizeof(std::int64_t));
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t,
                                  cudnnBackendDescriptor_t) {
  follow(handle->stream);
  note([](Counts& now, bool in_graph) { ++(in_graph ? captured.convolutions : now.convolutions); });
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
