#include "lockstep/sync/all_reduce.h"

#include <algorithm>
#include <optional>

#include "lockstep/core/check.h"
#include "lockstep/sync/abortable_barrier.h"

namespace lockstep {
namespace {

constexpr std::int64_t kBlock = 512;  // values summed at a time, on the stack

/// What the ranks of a run on the CPU share.
struct HostSum {
  explicit HostSum(int ranks) : barrier(ranks), data(static_cast<std::size_t>(ranks)) {}

  AbortableBarrier barrier;
  std::vector<float*> data;  // [rank] of the present call
};

/// Every rank sums a piece of its own and writes it to all. In rank order from 0, as the owner of a
/// range of gradients does in `sgd_update`: both give the same bits.
class HostAllReduce final : public AllReduce {
 public:
  HostAllReduce(std::shared_ptr<HostSum> shared, int rank)
      : shared_(std::move(shared)), rank_(rank) {}

  void start(float* data, std::int64_t count) override {
    shared_->data[static_cast<std::size_t>(rank_)] = data;
    shared_->barrier.arrive_and_wait(rank_);
    const auto ranks = static_cast<std::int64_t>(shared_->data.size());
    const std::int64_t end = count * (rank_ + 1) / ranks;
    for (std::int64_t i = count * rank_ / ranks; i < end; i += kBlock) {
      sum_block(i, std::min(kBlock, end - i));
    }
    shared_->barrier.arrive_and_wait(rank_);
  }

  void finish() override {}  // `start` has done everything
  void abort(const std::exception_ptr& cause) override { shared_->barrier.abort(cause); }

 private:
  void sum_block(std::int64_t begin, std::int64_t size) const {
    float sums[kBlock] = {};
    for (const float* data : shared_->data) {
      for (std::int64_t i = 0; i < size; ++i) sums[i] += data[begin + i];
    }
    for (float* data : shared_->data) std::copy_n(sums, size, data + begin);
  }

  const std::shared_ptr<HostSum> shared_;
  const int rank_;
};

AllReduces make_host_all_reduces(int ranks) {
  const auto shared = std::make_shared<HostSum>(ranks);
  AllReduces all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back(std::make_unique<HostAllReduce>(shared, rank));
  }
  return all;
}

std::optional<GpuAllReduce>& provided() {
  static std::optional<GpuAllReduce> all_reduce;  // filled before main
  return all_reduce;
}

}  // namespace

AllReduces make_all_reduces(std::span<const Device> devices) {
  if (devices.front().kind == DeviceKind::kCpu) {
    return make_host_all_reduces(static_cast<int>(devices.size()));
  }
  if (provided()) return provided()->make(devices);
  throw ConfigError(
      "this build has no NCCL, which run.gradient_exchange = \"all_reduce\" needs between GPUs; "
      "use \"owner\"");
}

void provide_gpu_all_reduce(const GpuAllReduce& all_reduce) { provided() = all_reduce; }

const GpuAllReduce* gpu_all_reduce() { return provided() ? &*provided() : nullptr; }

}  // namespace lockstep
