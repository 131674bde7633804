#include "kernels/transport/gpu_communicator.h"

#include <algorithm>

#include "kernels/device/check_cuda.h"

namespace lockstep::gpu {
namespace {

std::vector<int> ordinals_of(std::span<const Device> devices) {
  std::vector<int> ordinals;
  for (const Device& device : devices) ordinals.push_back(device.ordinal);
  return ordinals;
}

}  // namespace

GpuRun::GpuRun(std::span<const Device> devices) : ordinals(ordinals_of(devices)), peers(ordinals) {}

void GpuEnd::attach(Backend& backend) {
  RendezvousEnd::attach(backend);
  backend_ = dynamic_cast<GpuOperations*>(&backend);
  LOCKSTEP_CHECK(backend_ != nullptr, "replica ", rank(), " is on ", to_string(backend.device()),
                 ", but its communicator is one between GPUs");
  barrier_events_.clear();
  for (int i = 0; i < 2; ++i) barrier_events_.emplace_back(ordinal());
}

GpuOperations& GpuEnd::backend() const {
  LOCKSTEP_CHECK(backend_ != nullptr, "the communicator of replica ", rank(),
                 " is not attached to a backend");
  return *backend_;
}

float* GpuEnd::grown(TwoBlocks& memory, std::size_t turn, std::int64_t floats) const {
  const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
  if (memory.blocks[turn].bytes() < bytes) {
    // Doubled, so that all outgrown blocks together are no larger than a present one.
    const std::size_t size = std::max(bytes, 2 * memory.blocks[turn].bytes());
    for (Storage& block : memory.blocks) {
      memory.outgrown.push_back(std::move(block));
      block = backend().allocate(size);
    }
  }
  return static_cast<float*>(memory.blocks[turn].data());
}

void GpuEnd::before_barrier() {
  const Stream own = stream();
  const DeviceGuard guard(ordinal());
  barrier_turn_ = 1 - barrier_turn_;
  barrier_events_[barrier_turn_].record(own);
}

// All ranks are in the same barrier, so that their turns are equal; the rendezvous has made what
// they recorded visible here.
void GpuEnd::after_barrier() {
  const DeviceGuard guard(ordinal());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const auto& end = static_cast<const GpuEnd&>(group().at(peer));
    end.barrier_events_[barrier_turn_].make_wait(stream());
  }
}

}  // namespace lockstep::gpu
