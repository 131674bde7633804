#include "sync/all_reduce.h"

#include <algorithm>
#include <optional>

#include "core/image_tree.h"
#include "lockstep/core/check.h"
#include "lockstep/sync/communicator.h"
#include "sync/wait_timer.h"

namespace lockstep {
namespace {

constexpr std::int64_t kBlock = 512;    // values summed at a time, on the stack
constexpr std::int64_t kMaxNodes = 16;  // enough for 2^15 ranks

/// Every rank sums a piece of its own and writes it to all. In a binary tree over the ranks, as the
/// owner of a range of gradients does where all ranks have as many images, a power of two: both
/// give the same bits then.
class HostSum final : public SumTransport {
 public:
  explicit HostSum(int rank) : rank_(rank) {}

  void start(std::span<float* const> data, std::int64_t count) override {
    const auto ranks = static_cast<std::int64_t>(data.size());
    const std::int64_t end = count * (rank_ + 1) / ranks;
    for (std::int64_t i = count * rank_ / ranks; i < end; i += kBlock) {
      sum_block(data, i, std::min(kBlock, end - i));
    }
  }

 private:
  static void sum_block(std::span<float* const> data, std::int64_t begin, std::int64_t size) {
    float nodes[kMaxNodes * kBlock];
    const auto ranks = static_cast<std::int64_t>(data.size());
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      add_image(rank, data[static_cast<std::size_t>(rank)] + begin, size, nodes, kBlock);
    }
    const float* sum = finish_image_tree(ranks, size, nodes, kBlock);
    for (float* values : data) std::copy_n(sum, size, values + begin);
  }

  const int rank_;
};

SumTransports make_host_sums(int ranks) {
  SumTransports all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(std::make_unique<HostSum>(rank));
  return all;
}

std::optional<GpuAllReduce>& provided() {
  static std::optional<GpuAllReduce> all_reduce;  // filled by register_cuda()
  return all_reduce;
}

}  // namespace

AllReduce::AllReduce(Communicator& own, SumTransport& transport)
    : own_(own), transport_(transport) {
  data_.reserve(static_cast<std::size_t>(own.size()));
}

// The meeting comes first, so that no rank starts a sum that the others do not.
void AllReduce::start(float* data, std::int64_t count) {
  LOCKSTEP_CHECK(count > 0, "expected an all-reduce of at least 1 value, got ", count);
  const WaitTimer timer(seconds_);
  const SyncCall call{"gradients", Direction::kOther, started_++, count};
  own_.enter("all-reduce", call.layer);
  if (!own_.hook_allows(call)) return;
  const StatPosts posts = own_.meet_all(call, {{}, data});
  data_.clear();
  for (void* const peers : posts.handles) data_.push_back(static_cast<float*>(peers));
  transport_.start(data_, count);
  summed_at_ = own_.barriers_of_all_;
}

// On the CPU a sum is there when every rank has done its piece, which it has when it comes to any
// later meeting of all: to the next sum's, to a barrier behind the last one, or to this.
void AllReduce::finish() {
  const WaitTimer timer(seconds_);
  const bool open = started_ > 0 && !transport_.on_streams() && summed_at_ == own_.barriers_of_all_;
  started_ = 0;
  if (open) own_.meet("the end of the sums");
  transport_.finish();
}

SumTransports make_sum_transports(const RankLayout& layout, const Broadcast& broadcast) {
  if (layout.own_devices().front().kind == DeviceKind::kCpu) {
    return make_host_sums(layout.own_ranks());
  }
  if (provided()) return provided()->make(layout, broadcast);
  throw ConfigError(
      "gradient_exchange = \"all_reduce\" needs NCCL between GPUs, which this build does not have; "
      "use \"owner\"");
}

void provide_gpu_all_reduce(const GpuAllReduce& all_reduce) { provided() = all_reduce; }

const GpuAllReduce* gpu_all_reduce() { return provided() ? &*provided() : nullptr; }

}  // namespace lockstep
