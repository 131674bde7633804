#pragma once
// Sums over the global batch that a loss needs before it can say what a sample costs.

#include <span>
#include <string>

#include "lockstep/nn/loss_node.h"
#include "lockstep/sync/communicator.h"

namespace lockstep {

/// A loss's exchanges. Used by its replica's thread; all ranks make the same calls.
class SumExchange {
 public:
  /// Of slots of up to so many floats.
  SumExchange(const LossSite& site, std::size_t slot_floats);

  /// Where the next slot is to be written, [parts, 2, elements] (SumOperations::sum_over_batch).
  /// Its two places take turns, so that peers are done with one when it comes again.
  float* next_slot();
  /// The slots of all ranks, in their order; one device on its own has only its own. Good until the
  /// next call. `local`: in the last `next_slot`; it has at least one part, zeros where there are
  /// no samples.
  std::span<const StatSlot> all(Communicator* communicator, const StatSlot& local,
                                std::int64_t elements);

 private:
  const std::string place_;  // in reports
  const int index_;
  const std::size_t slot_floats_;
  const Storage slots_;
  bool turn_ = false;
  StatSlot own_;
};

}  // namespace lockstep
