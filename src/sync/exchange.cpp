#include "lockstep/sync/exchange.h"

#include <utility>

#include "lockstep/sync/communicator.h"

namespace lockstep {

Exchange::Exchange(std::string what, int index, RankPartition groups)
    : what_(std::move(what)), index_(index), groups_(std::move(groups)) {}

void Exchange::set_slots(float* memory, std::int64_t floats) {
  slots_ = memory;
  slot_floats_ = floats;
}

float* Exchange::next_slot() {
  turn_ = !turn_;
  return slots_ + (turn_ ? slot_floats_ : 0);
}

std::span<const StatSlot> Exchange::show(Communicator& communicator, const Shown& shown,
                                         const std::function<void()>& meanwhile) {
  if (communicator.size() == 1) {
    own_ = shown.slot;
    return {&own_, 1};
  }
  if (!partition_) partition_ = groups_.empty() ? 0 : communicator.join(groups_);
  const SyncCall call{.layer = what_.c_str(),
                      .direction = shown.direction,
                      .index = index_,
                      .channels = shown.channels,
                      .partition = *partition_,
                      .merge = shown.merge};
  return communicator.all_show(call, shown.slot, meanwhile);
}

}  // namespace lockstep
