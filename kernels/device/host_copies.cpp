#include "kernels/device/host_copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/operand_checks.h"
#include "backend/operands.h"
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

PinnedReadback::PinnedReadback(int ordinal, HostWaits& waits, Stream stream,
                               std::function<void()> copying, const Tensor& source, int slots)
    : ordinal_(ordinal),
      waits_(waits),
      stream_(stream),
      copying_(std::move(copying)),
      source_(source) {
  check_transfer(source);
  for (int i = 0; i < slots; ++i) {
    slots_.push_back(
        {PinnedMemory(ordinal, dense_bytes(source)), Event(ordinal, Event::Kind::kHost)});
  }
}

PinnedReadback::~PinnedReadback() {
  static_cast<void>(cudaSetDevice(ordinal_));
  static_cast<void>(cudaStreamSynchronize(stream_));
}

void PinnedReadback::start(int slot) {
  make_current(ordinal_);
  check_cuda(cudaMemcpyAsync(at(slot).memory.data(), source_.data, dense_bytes(source_),
                             cudaMemcpyDeviceToHost, stream_),
             "cudaMemcpyAsync from the device");
  copying_();
  at(slot).copied.record(stream_);
}

const void* PinnedReadback::wait(int slot) {
  make_current(ordinal_);
  waits_.wait_for(at(slot).copied);
  return at(slot).memory.data();
}

PinnedOffload::PinnedOffload(int ordinal, Stream stream, std::function<void(const Event&)> wait_for,
                             std::span<const Tensor> tensors)
    : ordinal_(ordinal),
      stream_(stream),
      wait_for_(std::move(wait_for)),
      copies_(ordinal),
      issued_(ordinal) {
  for (const Tensor& tensor : tensors) {
    check_transfer(tensor);
    places_.push_back({tensor, PinnedMemory(ordinal, dense_bytes(tensor)), Event(ordinal)});
  }
}

PinnedOffload::~PinnedOffload() {
  static_cast<void>(cudaSetDevice(ordinal_));
  static_cast<void>(cudaStreamSynchronize(copies_.get()));
}

void PinnedOffload::send(int tensor) { copy(at(tensor), true); }
void PinnedOffload::fetch(int tensor) { copy(at(tensor), false); }

// Copies are done in their order: memory is not filled again before what lay there has left.
void PinnedOffload::copy(Place& place, bool to_host) {
  make_current(ordinal_);
  issued_.record(stream_);
  issued_.make_wait(copies_.get());
  void* host = place.memory.data();
  void* device = place.tensor.data;
  check_cuda(
      cudaMemcpyAsync(to_host ? host : device, to_host ? device : host, place.memory.bytes(),
                      to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, copies_.get()),
      to_host ? "cudaMemcpyAsync from the device" : "cudaMemcpyAsync to the device");
  place.copied.record(copies_.get());
}

void PinnedOffload::wait(int tensor) {
  make_current(ordinal_);
  wait_for_(at(tensor).copied);
}

}  // namespace lockstep::gpu
