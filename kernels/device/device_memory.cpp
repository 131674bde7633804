#include "kernels/device/device_memory.h"

#include <algorithm>

#include "kernels/device/check_cuda.h"
#include "kernels/device/device.h"

namespace lockstep::gpu {
namespace {

constexpr std::size_t kAlignment = 256;  // of cudaMalloc

/// After the device has done what may still use the memory. A failure has nobody to be told to.
void release(int ordinal, void* memory) {
  static_cast<void>(cudaSetDevice(ordinal));
  static_cast<void>(cudaDeviceSynchronize());
  static_cast<void>(cudaFree(memory));
}

bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

DeviceMemory::DeviceMemory(int ordinal, HostWaits& waits, Stream stream)
    : ordinal_(ordinal),
      waits_(waits),
      stream_(stream),
      allocated_(std::make_shared<AllocationCount>()) {}

Storage DeviceMemory::allocate(std::size_t bytes) {
  make_current(ordinal_);
  const std::size_t rounded =
      std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, rounded);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw_no_memory({.kind = DeviceKind::kCuda, .ordinal = ordinal_}, bytes, *allocated_);
  }
  check_cuda(status, "cudaMalloc");
  allocated_->add(rounded);
  Storage storage(data, bytes, [ordinal = ordinal_, allocated = allocated_, rounded](void* memory) {
    allocated->remove(rounded);
    release(ordinal, memory);
  });
  check_cuda(cudaMemsetAsync(data, 0, rounded, stream_), "cudaMemsetAsync");
  // Other streams may be the first to use the memory.
  const HostWaits::Wait wait(waits_);
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  return storage;
}

void* DeviceScratch::get(std::size_t bytes) {
  if (bytes > storage_.bytes()) {
    if (recorded_) kept_.push_back(std::move(storage_));
    recorded_ = false;
    storage_ = Storage();  // gives the old block back first
    storage_ = memory_.allocate(bytes);
  }
  recorded_ = recorded_ || is_capturing(stream_);
  return storage_.data();
}

}  // namespace lockstep::gpu
