#pragma once
// What ranks show one another at one point of a step: a norm's statistics, a loss's sums, the
// squares of a gradient. Whoever has something to show makes an Exchange once and calls `show` in
// every step; it need not know whether there are other ranks.
//
// The rule that is easily broken: peers read a slot where it lies. `next_slot` keeps it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "lockstep/backend/sums.h"
#include "lockstep/sync/barrier.h"
#include "lockstep/sync/group.h"

namespace lockstep {

/// What a rank shows.
struct Shown {
  StatSlot slot;              // device memory
  std::int64_t channels = 0;  // of a part of the slot, [2, channels]
  Direction direction = Direction::kOther;
  MergeSlots merge = nullptr;  // of the slots of all, as SyncCall::merge; null: they stay apart
};

/// Owned by its user and used by the rank's thread. All ranks make the same calls in the same
/// order.
class Exchange {
 public:
  /// `what`: its name in reports, such as a layer's. `index`: of the call within the step.
  /// `groups`: the ranks that show each other something; none: all.
  explicit Exchange(std::string what, int index = 0, RankPartition groups = {});
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// Gives `next_slot` its memory: two slots of `floats` each, one behind the other, which live as
  /// long as the ranks' threads.
  void set_slots(float* memory, std::int64_t floats);
  /// Returns where to write what is shown next. The two slots take turns: when one comes again, all
  /// ranks have met in the call between, and before that they were done with it.
  float* next_slot();

  /// Shows it to the group's ranks and returns what all of them have shown: a slot per rank, in
  /// ascending order, or the one into which they are merged (Communicator::all_show). A rank
  /// without others gets its own back. The result is good until the next call. Throws as
  /// `all_show`.
  ///
  /// A slot that is not from `next_slot` may be written again once this rank's next exchange with
  /// the same ranks, or its next Communicator::barrier, has returned. `meanwhile`: work that nobody
  /// else waits for, done while the others are waited for; left out where nobody is.
  std::span<const StatSlot> show(Communicator& communicator, const Shown& shown,
                                 const std::function<void()>& meanwhile = nullptr);

 private:
  const std::string what_;
  const int index_;
  const RankPartition groups_;
  std::optional<int> partition_;  // SyncCall::partition, once joined
  float* slots_ = nullptr;
  std::int64_t slot_floats_ = 0;
  bool turn_ = false;
  StatSlot own_;
};

}  // namespace lockstep
