// The transport "host" between GPUs: a rank brings its partial statistics to the host, the master's
// thread merges them as it does for replicas on the CPU, and every rank takes the merged ones back.

#include <array>
#include <cstring>

#include "kernels/device/check_cuda.h"
#include "kernels/transport/gpu_communicator.h"
#include "sync/host_communicator.h"

namespace lockstep::gpu {
namespace {

class GpuHostEnd final : public GpuEnd {
 public:
  using GpuEnd::GpuEnd;

 private:
  std::span<const StatSlot> exchange_in_group(const SyncCall& call,
                                              const StatSlot& local) override {
    const DeviceGuard guard(ordinal());
    const auto bytes = static_cast<std::size_t>(2 * call.channels) * sizeof(float);
    if (partial_.bytes() < bytes) {
      check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");  // may read merged_
      partial_ = PinnedMemory(ordinal(), bytes);
      merged_ = PinnedMemory(ordinal(), bytes);
    }
    check_cuda(
        cudaMemcpyAsync(partial_.data(), local.data, bytes, cudaMemcpyDeviceToHost, stream()),
        "cudaMemcpyAsync of statistics to the host");
    // Also ends the last call's copy from merged_.
    check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    const SyncAnswer answer = meet({call, local.count, partial_.data()});
    std::memcpy(merged_.data(), answer.payload, bytes);

    turn_ = 1 - turn_;
    float* data = grown(answers_, turn_, 2 * call.channels);
    check_cuda(cudaMemcpyAsync(data, merged_.data(), bytes, cudaMemcpyHostToDevice, stream()),
               "cudaMemcpyAsync of statistics from the host");
    slots_[turn_] = {answer.count, data};
    return {&slots_[turn_], 1};
  }

  PinnedMemory partial_, merged_;
  TwoBlocks answers_;  // [2, C] each
  std::array<StatSlot, 2> slots_{};
  std::size_t turn_ = 0;
};

}  // namespace

std::unique_ptr<CommunicatorGroup> make_gpu_host_communicators(std::span<const Device> devices,
                                                               const CommunicatorOptions& options) {
  const auto run = std::make_shared<const GpuRun>(devices);
  return std::make_unique<RendezvousGroup>(
      devices, options, [](int, int ranks) { return make_host_merge(ranks); },
      [run](RendezvousGroup& group, int rank) {
        return std::make_unique<GpuHostEnd>(group, rank, run);
      });
}

}  // namespace lockstep::gpu
