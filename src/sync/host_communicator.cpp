#include "sync/host_communicator.h"

#include <algorithm>
#include <array>
#include <vector>

#include "lockstep/backend/moments.h"
#include "sync/rendezvous.h"

namespace lockstep {
namespace {

/// The merged statistics of one sync group.
class HostMerge {
 public:
  explicit HostMerge(int ranks) : slots_(static_cast<std::size_t>(ranks)) {}

  void merge(std::span<const SyncMessage> messages, std::span<SyncAnswer> answers) {
    const SyncCall& call = messages.front().call;
    if (call.direction == Direction::kOther) return;
    std::transform(messages.begin(), messages.end(), slots_.begin(),
                   [](const SyncMessage& message) {
                     return StatSlot{message.count, static_cast<const float*>(message.payload)};
                   });
    turn_ = 1 - turn_;
    std::vector<float>& merged = merged_[turn_];
    const auto elements = static_cast<std::size_t>(2 * call.channels);
    if (merged.size() < elements) merged.resize(elements);
    const std::int64_t count = call.direction == Direction::kForward
                                   ? merge_moments(slots_, call.channels, merged.data())
                                   : merge_sums(slots_, call.channels, merged.data());
    std::fill(answers.begin(), answers.end(), SyncAnswer{count, merged.data()});
  }

 private:
  std::vector<StatSlot> slots_;  // [rank in the group]
  std::array<std::vector<float>, 2>
      merged_{};  // [2, C] each, grown in the first step; used in turn
  int turn_ = 0;
};

class HostCommunicator final : public RendezvousEnd {
 public:
  using RendezvousEnd::RendezvousEnd;

 private:
  std::span<const StatSlot> exchange_in_group(const SyncCall& call,
                                              const StatSlot& local) override {
    turn_ = 1 - turn_;
    const SyncAnswer answer = meet({call, local.count, local.data});
    slots_[turn_] = {answer.count, static_cast<const float*>(answer.payload)};
    return {&slots_[turn_], 1};
  }

  std::array<StatSlot, 2> slots_{};  // the last two answers
  int turn_ = 0;
};

}  // namespace

SyncMaster::Callback make_host_merge(int ranks) {
  const auto merge = std::make_shared<HostMerge>(ranks);
  return [merge](auto messages, auto answers) { merge->merge(messages, answers); };
}

std::unique_ptr<CommunicatorGroup> make_host_communicators(std::span<const Device> devices,
                                                           const CommunicatorOptions& options) {
  return std::make_unique<RendezvousGroup>(
      devices, options, [](int, int width) { return make_host_merge(width); },
      [](RendezvousGroup& group, int rank) {
        return std::make_unique<HostCommunicator>(group, rank);
      });
}

}  // namespace lockstep
