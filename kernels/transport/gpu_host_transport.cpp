// The transport "host" between GPUs: a rank brings its partial statistics to the host, where they
// are merged or read by its peers as those of replicas on the CPU are, and takes what comes of it
// to its device.

#include <algorithm>
#include <array>

#include "kernels/device/check_cuda.h"
#include "kernels/transport/gpu_transport.h"

namespace lockstep::gpu {
namespace {

class GpuHostTransport final : public GpuTransport {
 public:
  using GpuTransport::GpuTransport;

  bool on_host() const override { return true; }

  StatPost post(const SyncCall& call, const Group& group, const StatSlot& local) override {
    make_current(ordinal());
    const std::size_t bytes = bytes_of(floats_of(call, local));
    auto* partial = static_cast<float*>(next_partial(group.partition, bytes));
    check_cuda(cudaMemcpyAsync(partial, local.data, bytes, cudaMemcpyDeviceToHost, stream()),
               "cudaMemcpyAsync of statistics to the host");
    // Also ends the last call's copy from all_. The thread keeps its core: to be woken would take
    // longer than the copy.
    const HostWaits::Wait wait(*backend().waits());
    check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    return {{local.count, partial, local.parts}, nullptr};
  }

  std::span<const StatSlot> receive(const SyncCall& call, const Group&,
                                    const StatPosts& posts) override {
    make_current(ordinal());
    const std::int64_t floats = floats_of(call, posts.slots);
    if (all_.bytes() < bytes_of(floats)) all_ = PinnedMemory(ordinal(), bytes_of(floats));
    float* data = grown(gathered_, floats);
    auto* staged = static_cast<float*>(all_.data());
    slots_.clear();
    for (const StatSlot& slot : posts.slots) {
      const std::int64_t own = floats_of(call, slot);
      std::copy_n(slot.data, own, staged);
      slots_.push_back(
          {slot.count, data + (staged - static_cast<float*>(all_.data())), slot.parts});
      staged += own;
    }
    check_cuda(
        cudaMemcpyAsync(data, all_.data(), bytes_of(floats), cudaMemcpyHostToDevice, stream()),
        "cudaMemcpyAsync of statistics from the host");
    backend().follow_no_kernel();
    return slots_;
  }

 private:
  // Used in turn: a rank writes for call i + 2 of a partition when every peer has posted call
  // i + 1, and so is done with call i.
  struct Partials {
    std::array<PinnedMemory, 2> pair;  // [parts, 2, C] each
    std::size_t turn = 0;
  };

  static std::size_t bytes_of(std::int64_t floats) {
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  // Both grow together, in the first step: which call takes which may change from step to step.
  void* next_partial(int partition, std::size_t bytes) {
    if (partials_.size() <= static_cast<std::size_t>(partition)) {
      partials_.resize(static_cast<std::size_t>(partition) + 1);
    }
    Partials& partials = partials_[static_cast<std::size_t>(partition)];
    partials.turn = 1 - partials.turn;
    if (partials.pair[partials.turn].bytes() < bytes) {
      for (PinnedMemory& partial : partials.pair) {
        outgrown_.push_back(std::move(partial));
        partial = PinnedMemory(ordinal(), bytes);
      }
    }
    return partials.pair[partials.turn].data();
  }

  std::vector<Partials> partials_;      // [partition]
  std::vector<PinnedMemory> outgrown_;  // kept: peers may read the last call's
  PinnedMemory all_;                    // [ranks, parts, 2, C]
  Growing gathered_;                    // [ranks, parts, 2, C]
  std::vector<StatSlot> slots_;
};

}  // namespace

Transports make_gpu_host_transports(const RankLayout& layout, const Broadcast&) {
  const auto run = std::make_shared<const GpuRun>(layout.own_devices());
  Transports transports;
  for (int rank = 0; rank < layout.own_ranks(); ++rank) {
    transports.push_back(std::make_unique<GpuHostTransport>(run, rank));
  }
  return transports;
}

}  // namespace lockstep::gpu
