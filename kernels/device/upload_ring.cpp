#include "kernels/device/upload_ring.h"

#include <algorithm>
#include <cstring>

#include "kernels/device/check_cuda.h"

namespace lockstep::gpu {

UploadRing::UploadRing(int ordinal) : buffers_{Buffer(ordinal), Buffer(ordinal), Buffer(ordinal)} {}

void UploadRing::upload(void* destination, const void* source, std::size_t bytes, Stream stream) {
  for (std::size_t begin = 0; begin < bytes; begin += kBufferBytes) {
    const std::size_t size = std::min(kBufferBytes, bytes - begin);
    Buffer& buffer = buffers_[next_];
    next_ = (next_ + 1) % buffers_.size();
    buffer.fetched.synchronize();
    std::memcpy(buffer.memory.data(), static_cast<const std::byte*>(source) + begin, size);
    check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(destination) + begin, buffer.memory.data(),
                               size, cudaMemcpyHostToDevice, stream),
               "cudaMemcpyAsync to the device");
    buffer.fetched.record(stream);
  }
}

}  // namespace lockstep::gpu
