#include "kernels/device/device.h"

#include <algorithm>
#include <cstdio>

#include "kernels/device/check_cuda.h"

namespace lockstep::gpu {
namespace {

/// Whether `status` only says that there is no GPU to use here.
bool means_no_device(cudaError_t status) {
  return status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver ||
         status == cudaErrorStubLibrary || status == cudaErrorSystemDriverMismatch ||
         status == cudaErrorCompatNotSupportedOnDevice;
}

int attribute(int ordinal, cudaDeviceAttr name) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, name, ordinal), "cudaDeviceGetAttribute");
  return value;
}

/// False where the machine cannot, or the device has as many peers as it may.
bool enable_access(int device, int peer) {
  int possible = 0;
  check_cuda(cudaDeviceCanAccessPeer(&possible, device, peer), "cudaDeviceCanAccessPeer");
  if (possible == 0) return false;
  make_current(device);
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled || status == cudaErrorTooManyPeers) {
    static_cast<void>(cudaGetLastError());  // expected: no later call is to find it
    return status == cudaErrorPeerAccessAlreadyEnabled;
  }
  check_cuda(status, "cudaDeviceEnablePeerAccess");
  return true;
}

unsigned flags_of(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::kOrder:
      break;
    case Event::Kind::kHost:
      return cudaEventDisableTiming | cudaEventBlockingSync;
    case Event::Kind::kTime:
      return cudaEventDefault;
  }
  return cudaEventDisableTiming;  // waiting for an event costs the least then
}

}  // namespace

std::string version_text(int version) { return concat(version / 1000, ".", version % 1000 / 10); }

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (means_no_device(status)) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  check_cuda(status, "cudaGetDeviceCount");
  return count;
}

std::string why_no_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (status == cudaErrorSystemDriverMismatch) {
    return "the driver's library and its kernel module are of different versions: restart the "
           "machine, or load the module that was installed with the library";
  }
  int driver = 0, runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));  // 0 where there is none
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  if (status != cudaErrorInsufficientDriver || driver == 0) return "";
  return concat("NVIDIA's driver is too old: it is for CUDA ", version_text(driver),
                ", and this build is for ", version_text(runtime), "; install a driver for CUDA ",
                version_text(runtime), " or newer, or build with an older Toolkit");
}

DeviceDescription describe_device(int ordinal) {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties");
  DeviceDescription device;
  device.name = properties.name;
  device.bytes = properties.totalGlobalMem;
  device.major = properties.major;
  device.minor = properties.minor;
  device.multiprocessors = attribute(ordinal, cudaDevAttrMultiProcessorCount);
  check_cuda(cudaDriverGetVersion(&device.driver), "cudaDriverGetVersion");
  check_cuda(cudaRuntimeGetVersion(&device.runtime), "cudaRuntimeGetVersion");
  return device;
}

std::string to_string(const DeviceDescription& device) {
  char gibibytes[32];
  std::snprintf(gibibytes, sizeof gibibytes, "%.1f", static_cast<double>(device.bytes) / (1 << 30));
  return concat(device.name, " (", gibibytes, " GiB, sm_", device.major, device.minor, ", ",
                device.multiprocessors, " multiprocessors, driver ", version_text(device.driver),
                ", runtime ", version_text(device.runtime), ")");
}

PeerAccess::PeerAccess(std::span<const int> ordinals) {
  std::vector<int> devices(ordinals.begin(), ordinals.end());
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  for (const int device : devices) {
    for (const int peer : devices) {
      if (device == peer || enable_access(device, peer)) granted_.emplace_back(device, peer);
    }
  }
}

bool PeerAccess::between(int device, int peer) const {
  return std::find(granted_.begin(), granted_.end(), std::pair(device, peer)) != granted_.end();
}

bool PeerAccess::between_all(std::span<const int> ordinals) const {
  return std::all_of(ordinals.begin(), ordinals.end(), [&](int device) {
    return std::all_of(ordinals.begin(), ordinals.end(),
                       [&](int peer) { return between(device, peer); });
  });
}

bool have_link(int device, int peer) {
  if (device == peer) return true;
  int native_atomics = 0;
  check_cuda(
      cudaDeviceGetP2PAttribute(&native_atomics, cudaDevP2PAttrNativeAtomicSupported, device, peer),
      "cudaDeviceGetP2PAttribute");
  return native_atomics != 0;
}

void make_current(int ordinal) { check_cuda(cudaSetDevice(ordinal), "cudaSetDevice"); }

void ReleaseStream::operator()(CUstream_st* stream) const {
  static_cast<void>(cudaStreamDestroy(stream));
}
void ReleaseEvent::operator()(CUevent_st* event) const {
  static_cast<void>(cudaEventDestroy(event));
}
void ReleasePinned::operator()(void* memory) const { static_cast<void>(cudaFreeHost(memory)); }

StreamOwner::StreamOwner(int ordinal) {
  make_current(ordinal);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
             "cudaStreamCreateWithFlags");
  stream_.reset(stream);
}

Event::Event(int ordinal, Kind kind) {
  make_current(ordinal);
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, flags_of(kind)), "cudaEventCreateWithFlags");
  event_.reset(event);
}

void Event::record(Stream stream) {
  check_cuda(cudaEventRecord(event_.get(), stream), "cudaEventRecord");
}

void Event::make_wait(Stream stream) const {
  check_cuda(cudaStreamWaitEvent(stream, event_.get(), cudaEventWaitDefault),
             "cudaStreamWaitEvent");
}

void Event::synchronize() const {
  check_cuda(cudaEventSynchronize(event_.get()), "cudaEventSynchronize");
}

float Event::milliseconds_until(const Event& end) const {
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, event_.get(), end.event_.get()),
             "cudaEventElapsedTime");
  return milliseconds;
}

PinnedMemory::PinnedMemory(int ordinal, std::size_t bytes) : bytes_(bytes) {
  make_current(ordinal);
  void* memory = nullptr;
  check_cuda(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
             "cudaHostAlloc");
  memory_.reset(memory);
}

}  // namespace lockstep::gpu
