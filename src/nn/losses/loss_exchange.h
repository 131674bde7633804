#pragma once
// What a loss must know of the global batch before it can say what a sample costs.

#include "lockstep/nn/loss_node.h"
#include "lockstep/sync/exchange.h"

namespace lockstep {

/// An Exchange with slots of its own.
class LossExchange : public Exchange {
 public:
  /// `slot_floats`: the most that a slot has.
  LossExchange(const LossSite& site, std::int64_t slot_floats)
      : Exchange(concat("the loss at ", site.output), site.index),
        slots_(site.network.backend().allocate(2 * static_cast<std::size_t>(slot_floats) *
                                               sizeof(float))) {
    set_slots(static_cast<float*>(slots_.data()), slot_floats);
  }

 private:
  const Storage slots_;
};

}  // namespace lockstep
