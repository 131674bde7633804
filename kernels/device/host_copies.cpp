#include "kernels/device/host_copies.h"

#include <algorithm>
#include <cstring>

#include "backend/operand_checks.h"
#include "kernels/device/check_cuda.h"

namespace lockstep::gpu {

UploadRing::UploadRing(int ordinal, HostWaits& waits, Stream stream)
    : waits_(waits), stream_(stream), buffers_{Buffer(ordinal), Buffer(ordinal), Buffer(ordinal)} {}

void UploadRing::upload(void* destination, const void* source, std::size_t bytes) {
  for (std::size_t begin = 0; begin < bytes; begin += kBufferBytes) {
    const std::size_t size = std::min(kBufferBytes, bytes - begin);
    Buffer& buffer = buffers_[next_];
    next_ = (next_ + 1) % buffers_.size();
    waits_.wait_for(buffer.fetched);
    std::memcpy(buffer.memory.data(), static_cast<const std::byte*>(source) + begin, size);
    check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(destination) + begin, buffer.memory.data(),
                               size, cudaMemcpyHostToDevice, stream_),
               "cudaMemcpyAsync to the device");
    buffer.fetched.record(stream_);
  }
}

PinnedReadback::PinnedReadback(int ordinal, HostWaits& waits, Stream stream, const Tensor& source,
                               int slots)
    : ordinal_(ordinal), waits_(waits), stream_(stream), source_(source) {
  check_transfer(source);
  for (int i = 0; i < slots; ++i) {
    slots_.push_back(
        {PinnedMemory(ordinal, dense_bytes(source)), Event(ordinal, Event::Kind::kHost)});
  }
}

PinnedReadback::~PinnedReadback() { static_cast<void>(cudaStreamSynchronize(stream_)); }

void PinnedReadback::start(int slot) {
  const DeviceGuard guard(ordinal_);
  check_cuda(cudaMemcpyAsync(at(slot).memory.data(), source_.data, dense_bytes(source_),
                             cudaMemcpyDeviceToHost, stream_),
             "cudaMemcpyAsync from the device");
  at(slot).copied.record(stream_);
}

const void* PinnedReadback::wait(int slot) {
  const DeviceGuard guard(ordinal_);
  waits_.wait_for(at(slot).copied);
  return at(slot).memory.data();
}

}  // namespace lockstep::gpu
