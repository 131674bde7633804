#include "kernels/device/pinned_readback.h"

#include "backend/operand_checks.h"
#include "kernels/device/check_cuda.h"

namespace lockstep::gpu {

PinnedReadback::PinnedReadback(int ordinal, Stream stream, const Tensor& source, int slots)
    : ordinal_(ordinal), stream_(stream), source_(source) {
  check_transfer(source);
  for (int i = 0; i < slots; ++i) {
    slots_.push_back({PinnedMemory(ordinal, dense_bytes(source)), Event(ordinal)});
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
  at(slot).copied.synchronize();
  return at(slot).memory.data();
}

}  // namespace lockstep::gpu
