#include "kernels/transport/gpu_transport.h"

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

void GpuTransport::attach(Backend& backend, SumTransport*) {
  backend_ = dynamic_cast<GpuOperations*>(&backend);
  LOCKSTEP_CHECK(backend_ != nullptr, "replica ", rank(), " is on ", to_string(backend.device()),
                 ", but its communicator is one between GPUs");
  waits_ = backend_->waits();
  barrier_events_.clear();
  for (int i = 0; i < 2; ++i) barrier_events_.emplace_back(ordinal());
}

std::optional<HostWaits::Clock::duration> GpuTransport::device_wait() const {
  const std::shared_ptr<const HostWaits> waits = waits_.load();
  return waits == nullptr ? std::nullopt : waits->present();
}

GpuOperations& GpuTransport::backend() const {
  LOCKSTEP_CHECK(backend_ != nullptr, "the communicator of replica ", rank(),
                 " is not attached to a backend");
  return *backend_;
}

float* GpuTransport::grown(Growing& memory, std::int64_t floats) const {
  const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
  if (memory.block.bytes() < bytes) {
    // Doubled, so that all outgrown blocks together are no larger than the present one.
    const std::size_t size = std::max(bytes, 2 * memory.block.bytes());
    memory.outgrown.push_back(std::move(memory.block));
    memory.block = backend().allocate(size);
  }
  return static_cast<float*>(memory.block.data());
}

void* GpuTransport::arrive() {
  const Stream own = stream();
  make_current(ordinal());
  barrier_turn_ = 1 - barrier_turn_;
  Event& event = barrier_events_[barrier_turn_];
  event.record(own);
  return &event;
}

void GpuTransport::depart(std::span<void* const> handles) {
  make_current(ordinal());
  for (std::size_t peer = 0; peer < handles.size(); ++peer) {
    if (peer == static_cast<std::size_t>(rank())) continue;
    backend().wait_for(*static_cast<const Event*>(handles[peer]));
  }
}

}  // namespace lockstep::gpu
